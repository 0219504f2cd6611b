"""Random input, the same in every run: a decision, a response or an exception of Python, never a crash or a panic.

A panic is a `BaseException`, which none of these tests expects.
"""

import contextlib
import random
import string

import pytest
from conftest import asgi, wsgi
from limits import parse
from limits.errors import ConfigurationError
from limits.storage import storage_from_string

from earrrl import Engine, Limiter, RateLimits, Rule
from earrrl.asgi import RateLimitMiddleware as Asgi
from earrrl.limits import EarrrlStorage
from earrrl.wsgi import RateLimitMiddleware as Wsgi

REFUSED = (TypeError, ValueError, KeyError, OverflowError, OSError, MemoryError, NotImplementedError)
THINGS = [
    None, True, 0, 1, -1, 7, 429, 2**31, 2**63, 2**64 - 1, 2**64, -(2**64), 10**400, 0.0, -0.0, 1e-9, 1e18, 1e308, float("inf"), float("nan"),
    "", "a", "\0", "\ud800", "é" * 1000, "k" * 100_000, "login", "client", "path", "header:x-api-key", "cookie:", "header:", "skip", "delay",
    "observe", "10.0.0.0/8", "gcra 5/s burst=9", b"", b"a", b"\xff" * 4097, bytearray(b"a"), memoryview(b"a"), [], ["client", "path"], {}, (),
    {"login": "a"}, {"login": ("a", 1)}, {"login": ("a", float("nan"))}, {"a": ("gcra 5/s burst=9", len)}, {"login": {}}, object(), type, len,
    repr, lambda request: 1 / 0, lambda *given: "key", lambda *given: 10**30, 1j, range(3), [b"a", (b"a", b"b")], [(b"a", b"b")], [["a", "b"]],
]


@pytest.fixture
def chance():
    return random.Random(2026)


def some_options(chance, names):
    """Returns random values for some of the options."""
    return {name: chance.choice(THINGS) for name in names if chance.random() < 0.1}


def test_arguments_of_limiters_and_engines(chance):
    targets = [Limiter("gcra 5/s burst=9", capacity=100), Limiter("sliding-log 5/1m", capacity=100), Engine({"login": "gcra 1/s burst=9"})]
    methods = ["check", "check_at", "peek", "charge", "refund", "reset", "__init__", "__len__", "__repr__"]
    for _ in range(20_000):
        target, method = chance.choice(targets), chance.choice(methods)
        with contextlib.suppress(*REFUSED):
            getattr(target, method, repr)(*chance.choices(THINGS, k=chance.randrange(4)))


def test_texts_of_rules(chance):
    words = ["gcra", " ", "1/s", "burst=", "9", "é", "\0", "1e400", "fixed-window", "/", "half-life=1s", "-", "18446744073709551616", "\ud800"]
    for _ in range(5_000):
        with contextlib.suppress(ValueError):
            Limiter("".join(chance.choices(words, k=6)), capacity=chance.choice([1, 7, 1000]))


def test_options_of_limiters(chance, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = [tmp_path, tmp_path / ("a" * 300), tmp_path / "states", "", "\0", "/dev/null/a", "/proc/self/mem", *THINGS]
    for _ in range(3_000):
        # Tables of up to some gigabytes are built as asked.
        capacity = chance.choice([thing for thing in THINGS if not isinstance(thing, (int, float)) or thing < 10_000 or thing > 2**50])
        options = some_options(chance, ["action", "max_delay", "max_cost", "name"])
        with contextlib.suppress(*REFUSED):
            Limiter("gcra 5/s burst=9", chance.choice(places), capacity, **options).check("a")
        with contextlib.suppress(*REFUSED):
            Engine({"a": chance.choice(THINGS)}, chance.choice(places), capacity).check({"a": "b"})


def odd_rule(chance):
    options = ["key", "paths", "cost", "cost_after", "settled", "missing", "exempt", "plans", "limit_by", "action", "max_delay", "max_cost"]
    return Rule("a", "gcra 5/s burst=9", **some_options(chance, options))


def odd_limits(chance, rules):
    options = ["trusted_proxies", "hops", "source", "ipv4_prefix", "ipv6_prefix", "status", "headers_on_allowed", "x_rate_limit"]
    return RateLimits(rules, **some_options(chance, options))


def test_options_of_middlewares(chance):
    built = 0
    for _ in range(3_000):
        with contextlib.suppress(*REFUSED):
            limits = odd_limits(chance, [odd_rule(chance)])
            built += 1
            judge_oddly(chance, limits)
    assert built > 100


def judge_oddly(chance, limits):
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError, *REFUSED):
            judged = limits.judge("GET", b"/", chance.choice(THINGS), "192.0.2.7", {})
            getattr(judged, "enter", repr)()
            getattr(judged, "leave", repr)(chance.choice(THINGS), chance.choice(THINGS))
        with contextlib.suppress(*REFUSED):
            getattr(limits, chance.choice(["reset", "refund", "change"]))(*chance.choices(["a", *THINGS], k=2))


def bytes_of_a_client(chance):
    """Returns what a client can put into a header: any bytes that a server lets through."""
    return bytes(chance.choices([*range(9), *range(32, 256), *b",,;;==::..[]\"\"ffoorr"], k=chance.choice([0, 1, 5, 40, 3000])))


ADDRESSES = ["192.0.2.7", "2001:db8::1", "::ffff:192.0.2.7", "fe80::1%eth0", "", "unix:", "999.1.1.1", "é", None]
READ = ["x-forwarded-for", "cookie", "x-api-key", "content-type", "X-Forwarded-For", "forwarded", "host", ""]


@pytest.mark.parametrize("source", ["x-forwarded-for", "forwarded", "x-api-key"])
@pytest.mark.parametrize("call", [asgi, wsgi])
def test_requests_of_hostile_clients_get_a_response(chance, call, source):
    keys = ["client", ["header:x-api-key", "path"], ["cookie:a", "method"], "header:content-type"]
    rules = [Rule(f"rule{place}", "gcra 1/h burst=50", key, cost_after=lambda status, headers: 1) for place, key in enumerate(keys)]
    limits = RateLimits(rules, trusted_proxies=["192.0.0.0/8", "2000::/3"], source=source, capacity=1000)

    async def hello(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"hello"})

    def greet(environ, start_response):
        start_response("200 OK", [("a", "b")])
        return [b"hello"]

    app = Asgi(hello, limits) if call is asgi else Wsgi(greet, limits)
    statuses = set()
    for _ in range(1_000):
        headers = [(chance.choice(READ), bytes_of_a_client(chance).decode("latin-1")) for _ in range(chance.randrange(5))]
        method = chance.choice(["GET", "POST", "", "G T", "M" * 5000])
        path = "/" + bytes_of_a_client(chance).decode("latin-1")
        statuses.add(call(app, path, headers=headers, peer=chance.choice(ADDRESSES), method=method)[0])
    assert statuses == {200, 429}


def test_scopes_and_environs_of_odd_servers(chance):
    limits = RateLimits([Rule("a", "gcra 1/h burst=9", ["client", "path", "cookie:a"])], capacity=1000)
    asked = []
    app, web = Asgi(lambda *arguments: asked.append(arguments), limits), Wsgi(lambda *arguments: asked.append(arguments), limits)
    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": [], "client": ("192.0.2.7", 1), "state": {}}
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "SCRIPT_NAME": "", "HTTP_COOKIE": "a=b", "REMOTE_ADDR": "192.0.2.7"}
    for _ in range(5_000):
        with contextlib.suppress(AttributeError, *REFUSED):
            app({**scope, **some_options(chance, scope)}, None, None).send(None)
        with contextlib.suppress(AttributeError, *REFUSED):
            web({**environ, **some_options(chance, environ)}, chance.choice(THINGS))
    assert asked


def uri_of(chance, folder):
    host = ["", "", "127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:99999", "[::1]:1", "[::1", "127.0.0.1:x", ":@127.0.0.1:1", "a:%00@127.0.0.1:1"]
    path = ["", folder, f"{folder}/a", f"{folder}/%2e%2e/b", f"{folder}/%00", "/dev/null/a", "/proc/1/mem", "/" + "a" * 5000, "\0"]
    query = ["", "", "?", "?capacity=", "?capacity=x", "?capacity=-1", "?capacity=0", "?capacity=7", "?capacity=1e9", "?capacity=" + "9" * 30, "?a=b#c"]
    scheme = chance.choice(["earrrl", "earrrl", "earrrl+unix", "async+earrrl", "EARRRL"])
    return f"{scheme}://{chance.choice(host)}{chance.choice(path)}{chance.choice(query)}"


def test_uris_and_calls_of_limits(chance, tmp_path):
    methods = ["incr", "get", "get_expiry", "clear", "acquire_sliding_window_entry", "get_sliding_window", "clear_sliding_window"]
    keys = [parse("5/minute").key_for("a"), "LIMITER/a/1/1/second", "a/0/0/minute", "///", "/1/1/year", "a/9/99999999999/month", *THINGS]
    for _ in range(2_000):
        try:
            storage = storage_from_string(uri_of(chance, f"{tmp_path}/in"))
        except (ConfigurationError, ValueError, OSError):
            continue
        if not hasattr(storage, "_windows") or storage.STORAGE_SCHEME[0].startswith("async"):
            continue
        for method in chance.choices(methods, k=3):
            with contextlib.suppress(RuntimeError, *REFUSED):
                getattr(storage, method)(*chance.choices(keys, k=1), *chance.choices([1, 60, 3600, *THINGS], k=chance.randrange(4)))


def test_random_texts_are_no_uris(chance, tmp_path, monkeypatch):
    # A text may name a folder, which is then created: only pieces by which it lies in this test's own folder are used.
    monkeypatch.chdir(tmp_path)
    pieces = sorted([*(set(string.printable) - set("/%")), *"é:@[]?=", "%é", f"//{tmp_path}/a", f"/{tmp_path}/a"])
    storages = 0
    for _ in range(2_000):
        with contextlib.suppress(ConfigurationError, ValueError, OSError):
            storages += isinstance(storage_from_string("earrrl:" + "".join(chance.choices(pieces, k=12))), EarrrlStorage)
    assert storages and any(tmp_path.iterdir())
