"""The middlewares for ASGI and WSGI: both pass the same tests."""

import asyncio
import functools
import json
import re
import uuid
from decimal import Decimal

import pytest
from conftest import asgi, wsgi

from earrrl import RateLimits, Rule
from earrrl.asgi import RateLimitMiddleware as Asgi
from earrrl.wsgi import RateLimitMiddleware as Wsgi


class AsgiService:
    """An ASGI application with a limit; `seen` is what its handler found."""

    def __init__(self, limits, status=200):
        self.seen, self.status = [], status
        self.app = Asgi(self.hello, limits)

    async def hello(self, scope, receive, send):
        self.seen.append((scope["state"].get("earrrl_verdict"), scope["state"].get("earrrl_settlement")))
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"hello"})

    def get(self, path="/", **request):
        return asgi(self.app, path, **request)


class WsgiService:
    """A WSGI application with a limit; `seen` is what its handler found."""

    def __init__(self, limits, status=200):
        self.seen, self.status = [], status
        self.app = Wsgi(self.hello, limits)

    def hello(self, environ, start_response):
        self.seen.append((environ["earrrl.verdict"], environ["earrrl.settlement"]))
        start_response(f"{self.status} Status", [("x-own", "1")])
        return [b"hello"]

    def get(self, path="/", **request):
        return wsgi(self.app, path, **request)


@pytest.fixture(params=[AsgiService, WsgiService])
def serve(request):
    def serve(*rules, status=200, **options):
        return request.param(RateLimits(list(rules), **options), status)

    return serve


def path_of(request):
    return request.get("path") or request["PATH_INFO"]


def test_denied_requests_get_problem_details(serve):
    service = serve(Rule("address", "gcra 1/h burst=2"))
    status, headers, body = service.get()
    assert (status, body) == (200, b"hello")
    assert headers == {"x-own": "1", "ratelimit": '"address";r=1;t=3600', "ratelimit-policy": '"address";q=2;w=7200'}
    service.get()
    status, headers, body = service.get()
    assert status == 429
    assert headers == {"content-type": "application/problem+json", "retry-after": "3600", "content-length": str(len(body)),
                       "ratelimit": '"address";r=0;t=3600', "ratelimit-policy": '"address";q=2;w=7200'}
    assert json.loads(body) == {"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Too Many Requests",
                                "status": 429, "violated-policies": ["address"]}
    assert service.get(peer="192.0.2.8")[0] == 200
    assert len(service.seen) == 3


def test_ipv6_clients_are_counted_by_their_network(serve):
    service = serve(Rule("address", "gcra 1/h burst=1"))
    assert service.get(peer="2001:db8::1")[0] == 200
    assert service.get(peer="2001:db8::2")[0] == 429
    assert service.get(peer="2001:db8:0:1::1")[0] == 200


@pytest.mark.parametrize(
    ("options", "header", "peer", "client"),
    [
        ({}, "198.51.100.1", "192.0.2.7", "192.0.2.7"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, "6.6.6.6, 198.51.100.1, 10.0.0.2", "10.0.0.1", "198.51.100.1"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, "6.6.6.6", "192.0.2.7", "192.0.2.7"),
        ({"hops": 2}, "6.6.6.6, 198.51.100.1, 10.0.0.2", "10.0.0.1", "198.51.100.1"),
        ({"hops": 1, "ipv4_prefix": 24}, "198.51.100.1", "10.0.0.1", "198.51.100.0/24"),
    ],
)
def test_clients_behind_proxies(serve, options, header, peer, client):
    service = serve(Rule("address", "gcra 1/h burst=1"), **options)
    request = {"headers": [("x-forwarded-for", header)], "peer": peer}
    assert [service.get(**request)[0] for _ in range(2)] == [200, 429]
    service.app.limits.reset("address", client)
    assert service.get(**request)[0] == 200


def test_headers_that_single_proxies_write(serve):
    for source, value in [("forwarded", "for=198.51.100.1"), ("X-Real-Ip", "198.51.100.1"), ("cf-connecting-ip", "198.51.100.1")]:
        rules = [Rule("address", "gcra 1/h burst=1"), Rule("second", "gcra 9/h burst=9")]
        service = serve(*rules, source=source, trusted_proxies=["10.0.0.1"])
        service.get(headers=[(source, value)], peer="10.0.0.1")
        service.app.limits.reset("address", "198.51.100.1")
        assert service.get(headers=[(source, value)], peer="10.0.0.1")[0] == 200


@pytest.mark.parametrize(
    ("key", "alike", "different"),
    [
        ("header:X-Api-Key", {"headers": [("x-api-key", "a")]}, {"headers": [("x-api-key", "b")]}),
        ("cookie:session", {"headers": [("cookie", "a=1; session=s")]}, {"headers": [("cookie", "session=t")]}),
        ("path", {"path": "/a"}, {"path": "/b"}),
        ("path", {"path": "/a b"}, {"path": "/a c"}),
        ("method", {"method": "GET"}, {"method": "POST"}),
        (["client", "path"], {"path": "/a"}, {"path": "/a", "peer": "192.0.2.8"}),
        (path_of, {"path": "/a"}, {"path": "/b"}),
        ([path_of, path_of, "client"], {"path": "/a"}, {"path": "/b"}),
    ],
)
def test_keys(serve, key, alike, different):
    service = serve(Rule("key", "gcra 1/h burst=1", key))
    assert [service.get(**request)[0] for request in (alike, alike, different)] == [200, 429, 200]


def test_a_key_for_everyone(serve):
    service = serve(Rule("all", "gcra 1/h burst=1", "everyone"))
    assert [service.get(peer=peer)[0] for peer in ("192.0.2.7", "192.0.2.8")] == [200, 429]


def test_requests_without_a_key(serve):
    for missing, statuses in [("share", [200, 429]), ("skip", [200, 200]), (401, [401, 401])]:
        service = serve(Rule("key", "gcra 1/h burst=1", "header:x-api-key", missing=missing))
        assert [service.get()[0] for _ in range(2)] == statuses
    service = serve(Rule("key", "gcra 1/h burst=1", lambda request: None, missing="skip"))
    assert [service.get()[0] for _ in range(2)] == [200, 200]


def test_costs_exemptions_and_plans(serve):
    service = serve(Rule(
        "address", "gcra 1/h burst=10", cost=lambda request: 6 if path_of(request) == "/export" else True,
        exempt=lambda request: path_of(request) == "/healthz",
        plans={"partner": ("gcra 1/h burst=20", lambda request: path_of(request) == "/partner")},
    ))
    assert service.get("/export")[1]["ratelimit"] == '"address";r=4;t=14400'
    assert service.get("/export")[0] == 429
    assert service.get("/healthz") == (200, {"x-own": "1"}, b"hello")
    assert service.get("/partner")[1]["ratelimit"] == '"partner";r=19;t=68400'
    assert service.get()[1]["ratelimit"] == '"address";r=3;t=10800'
    assert serve(Rule("address", "gcra 1/h burst=10", cost=2.5)).get()[1]["ratelimit"] == '"address";r=7;t=25200'


def test_a_function_gives_clients_limits_while_requests_go_on(serve):
    limits = {}
    service = serve(Rule("address", "fixed-window 3/30d", "everyone", limit_by=lambda request: limits["text"]), always_verdict=True)
    for text, quota, remaining in [(None, 3, 2), ("fixed-window 5/30d", 5, 3), ("4 per 30 days", 4, 1), ("fixed-window 9/29d", 9, 8), ("gcra 1/h burst=2", 2, 1)]:
        limits["text"] = text
        service.get()
        decision = service.seen[-1][0]
        assert (decision.rule, decision.remaining) == ("address", remaining), text
        assert decision.headers()["RateLimit-Policy"].startswith(f'"address";q={quota};'), text
    assert service.app.limits.names == ["address"]
    for wrong, problem in [("5/fortnight", "limit of a request: "), ("concurrent 9 timeout=1m", "reserve"), (5, "limit_by: .* returned int; expected the text")]:
        limits["text"] = wrong
        with pytest.raises((ValueError, TypeError), match=problem):
            service.get()


def test_the_first_of_several_plans_that_apply_is_used(serve):
    plans = {"zeta": ("gcra 1/h burst=30", lambda request: True), "alpha": ("gcra 1/h burst=20", lambda request: True)}
    service = serve(Rule("address", "gcra 1/h burst=10", plans=plans))
    assert service.get()[1]["ratelimit"] == '"zeta";r=29;t=104400'


def test_costs_that_depend_on_the_response(serve):
    rule = lambda: Rule("login", "gcra 1/h burst=10", cost_after=lambda status, headers: 5 if (b"x-own", b"1") in headers and status == 401 else 0)
    failing, succeeding = serve(rule(), status=401), serve(rule())
    for service, left in [(failing, 4), (succeeding, 9)]:
        service.get()
        assert service.get()[1]["ratelimit"].startswith(f'"login";r={left - 1};')


def test_clients_that_leave_do_not_avoid_costs(serve):
    costs = []

    def cost_after(status, headers):
        costs.append(status)
        return 5

    service = serve(Rule("login", "gcra 1/h burst=10", cost_after=cost_after))
    good, service.seen = service.seen, None
    for _ in range(2):
        with pytest.raises(AttributeError):
            service.get()
    service.seen = good
    assert costs == [499, 499]
    assert service.get()[0] == 429


def test_handlers_charge_costs(serve):
    service = serve(Rule("tokens", "gcra 1/h burst=10", cost=0, settled=True))
    service.get()
    verdict, settlement = service.seen[0]
    assert verdict is None
    settlement.charge(812)
    assert service.get()[0] == 429
    with pytest.raises(TypeError, match="cost: expected"):
        settlement.charge("1")


def test_actions_that_pass_requests_on(serve):
    for action in ("observe", "quarantine", "shadow-ban"):
        service = serve(Rule("address", "gcra 1/h burst=1", action=action))
        assert [service.get()[0:2] for _ in range(2)] == [(200, {"x-own": "1"})] * 2
        assert service.seen[0] == (None, None)
        verdict = service.seen[1][0]
        assert (verdict.outcome, verdict.rule) == (action, "address")


def test_requests_are_held_back(serve):
    service = serve(Rule("address", "gcra 20/s burst=1", action="delay", max_delay=0.08))
    statuses = [service.get()[0] for _ in range(2)]
    assert statuses == [200, 200]
    assert service.seen[1][0].outcome == "delay" and 0 < service.seen[1][0].delay <= 0.05


def test_requests_that_are_dropped_while_held_back_are_refunded():
    limits = RateLimits([Rule("a", "gcra 1/h burst=1", action="delay", max_delay=9000)])
    judge = lambda: limits.judge("GET", b"/", [], "192.0.2.7", None)
    assert judge().delay == 0
    for _ in range(3):
        assert 0 < judge().delay <= 3600
    judge().enter()
    assert 3600 < judge().delay <= 7200


def test_options_of_responses(serve):
    assert serve(Rule("address", "gcra 1/h burst=1"), headers_on_allowed=False).get()[1] == {"x-own": "1"}
    older = serve(Rule("address", "gcra 1/h burst=2"), x_rate_limit=True).get()[1]
    assert {"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1", "x-ratelimit-reset": "3600"}.items() < older.items()
    limits = RateLimits([Rule("address", "gcra 1/h burst=1")], status=503, always_verdict=True)
    service = AsgiService(limits)
    assert [service.get()[0] for _ in range(2)] == [200, 503]
    assert service.seen[0][0].allowed


def test_responses_of_the_services_own(serve):
    service = serve(Rule("address", "gcra 1/h burst=1"))
    service.app.respond = lambda request, refusal: ("text/plain", b"%d: not so fast" % refusal.status)
    service.get()
    status, headers, body = service.get()
    assert (status, body, headers["content-type"], headers["content-length"]) == (429, b"429: not so fast", "text/plain", "16")
    assert headers["retry-after"] == "3600"


def test_several_rules(serve):
    service = serve(Rule("address", "gcra 1/h burst=9"), Rule("key", "gcra 1/h burst=1", "header:x-api-key", missing="skip"))
    key = {"headers": [("x-api-key", "a")]}
    assert service.get(**key)[1]["ratelimit"] == '"key";r=0;t=3600, "address";r=8;t=28800'
    assert service.get(**key)[0] == 429
    assert service.get()[1]["ratelimit"] == '"address";r=7;t=25200'


def test_grpc_calls_get_a_status_of_grpc(serve):
    service = serve(Rule("address", "gcra 1/h burst=1"))
    call = {"headers": [("content-type", "application/grpc")], "method": "POST"}
    service.get(**call)
    status, headers, body = service.get(**call)
    assert (status, headers["grpc-status"], body) == (200, "8", b"")


def test_limits_change_while_requests_go_on(serve):
    service = serve(Rule("address", "gcra 1/h burst=2"))
    limits = service.app.limits
    service.get()
    limits.change("address", "gcra 1/h burst=10")
    assert service.get()[1]["ratelimit-policy"] == '"address";q=10;w=36000'
    # What the client has used stays used.
    assert [service.get()[0] for _ in range(9)] == [200] * 8 + [429]
    limits.refund("address", "192.0.2.7", 1)
    assert service.get()[0] == 200
    limits.reset("address", "192.0.2.7")
    assert service.get()[1]["ratelimit"] == '"address";r=9;t=32400'
    with pytest.raises(KeyError, match="neither a rule nor a plan is called \"login\""):
        limits.reset("login", "a")
    with pytest.raises(ValueError, match="column"):
        limits.change("address", "gcra 1/h burst=x")


class Asynchronous:
    """An object with an asynchronous method in the place of a function."""

    async def __call__(self, *arguments):
        return False


async def asynchronous(*arguments):
    return False


async def generating(*arguments):
    yield False


OPTIONS = [lambda function: {"exempt": function}, lambda function: {"key": function}, lambda function: {"key": ["client", function]}, lambda function: {"cost": function},
           lambda function: {"cost_after": function}, lambda function: {"plans": {"paid": ("gcra 9/h burst=9", function)}}, lambda function: {"limit_by": function}]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("function", [asynchronous, generating, Asynchronous(), Asynchronous().__call__, functools.partial(asynchronous, 1), functools.partial(functools.partial(Asynchronous()), 1)])
def test_asynchronous_functions_are_refused(option, function):
    with pytest.raises(TypeError, match=r"^(exempt|key|cost|cost_after|plans|limit_by): .* is asynchronous; expected a function that returns its value at once"):
        Rule("address", "gcra 1/h burst=1", **option(function))


@pytest.mark.parametrize("option", OPTIONS)
def test_awaitables_that_functions_return_are_refused(serve, option):
    def sneaky(*arguments):
        return asynchronous()

    service = serve(Rule("address", "gcra 1/h burst=9", **option(sneaky)))
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^(exempt|key|cost|cost_after|plans|limit_by): .*sneaky returned coroutine; expected a value"):
            service.get()


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def test_plain_ids_are_keys(serve):
    for key, text in [(7, "7"), (-(10**30), "-1" + "0" * 30), (ID, str(ID)), (Decimal("1.5"), "1.5"), (b"a", "a"), ("a", "a")]:
        service = serve(Rule("user", "gcra 1/h burst=1", lambda request: key))
        limits = service.app.limits
        assert [service.get()[0] for _ in range(2)] == [200, 429]
        limits.refund("user", key)
        assert service.get()[0] == 200
        limits.reset("user", text)
        assert service.get()[0] == 200

    def rate_of(request):
        return wrong

    for wrong, kind in [(1.5, "float"), (True, "bool"), ([], "list"), (object(), "object")]:
        with pytest.raises(TypeError, match=f"key: .*rate_of returned {kind}; expected str, bytes, int, UUID or Decimal"):
            serve(Rule("user", "gcra 1/h burst=1", rate_of)).get()


def test_functions_say_whether_something_costs(serve):
    service = serve(Rule("login", "gcra 1/h burst=3", cost=0, cost_after=lambda status, headers: status == 401), status=401)
    assert [service.get()[0] for _ in range(5)] == [401, 401, 401, 401, 429]


def test_exceptions_of_functions_charge_nothing(serve):
    service = serve(Rule("a", "gcra 1/h burst=1"), Rule("b", "gcra 1/h burst=1", cost=lambda request: request["none"]))
    for _ in range(3):
        with pytest.raises(KeyError):
            service.get()


def test_long_keys_and_odd_requests_are_limited(serve):
    service = serve(Rule("key", "gcra 1/h burst=1", "header:x-api-key"))
    for key in ("k" * 100_000, "\x7f", "é"):
        headers = [("x-api-key", key.encode().decode("latin-1"))]
        assert [service.get(headers=headers, path="/\udcff\x00")[0] for _ in range(2)][1] == 429
    service = serve(Rule("address", "gcra 1/h burst=1"))
    for peer in (None, "", "unix:", "not an address"):
        service.get(peer=peer)
    assert service.get(peer=None)[0] == 429


def test_servers_whose_headers_are_lists():
    service = AsgiService(RateLimits([Rule("key", "gcra 1/h burst=1", "header:x-api-key")]))
    assert [service.get(headers=[("x-api-key", key)], pair=list)[0] for key in "aba"] == [200, 200, 429]


def test_environs_that_are_not_latin1():
    service = WsgiService(RateLimits([Rule("key", "gcra 1/h burst=1", "header:x-api-key")]))
    assert [service.get(headers=[("x-api-key", "\u4e2d")])[0] for _ in range(2)] == [200, 429]


def test_applications_that_are_generators():
    def hello(environ, start_response):
        if environ["PATH_INFO"] == "/fail":
            raise ZeroDivisionError
        start_response("200 OK", [("x-own", "1")])
        yield b"hello"

    service = Wsgi(hello, RateLimits([Rule("login", "gcra 1/h burst=9", cost_after=lambda status, headers: 4 if status == 499 else 0)]))
    status, headers, body = wsgi(service)
    assert (status, headers["ratelimit"], body) == (200, '"login";r=8;t=28800', b"hello")
    with pytest.raises(ZeroDivisionError):
        wsgi(service, "/fail")
    assert wsgi(service)[1]["ratelimit"] == '"login";r=2;t=7200'


def test_websockets_and_other_scopes():
    limits = RateLimits([Rule("address", "gcra 1/h burst=1")])
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])
        await send({"type": "websocket.accept"})

    service = Asgi(app, limits)
    assert asgi(service, kind="websocket")[0] == "websocket.accept"
    assert asgi(service, kind="websocket")[0] == "websocket.close"
    assert asgi(service, kind="websocket", extensions=["websocket.http.response"])[0] == 429
    asgi(service, kind="lifespan")
    assert seen == ["websocket", "lifespan"]


def test_processes_share_a_directory(tmp_path):
    both = [AsgiService(RateLimits([Rule("address", "gcra 1/h burst=3")], path=tmp_path / "states")) for _ in range(2)]
    assert [both[turn % 2].get()[0] for turn in range(5)] == [200] * 3 + [429] * 2


def test_tasks_that_are_cancelled_while_held_back_are_not_charged_later_costs():
    costs = []
    rule = Rule("a", "gcra 1/h burst=1", action="delay", max_delay=9000, cost_after=lambda status, headers: costs.append(status) or 0)
    service = AsgiService(RateLimits([rule]))

    async def leave():
        scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": [], "client": ("192.0.2.7", 1), "state": {}}
        for _ in range(3):
            task = asyncio.ensure_future(service.app(scope, None, lambda message: asyncio.sleep(0)))
            await asyncio.sleep(0.001)
            task.cancel()

    asyncio.run(leave())
    assert costs == [200]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("Login", "gcra 1/h burst=1"), {}, ValueError, "name: `Login`"),
        (("login", "gcra 1/h"), {}, ValueError, "burst"),
        (("login", "gcra 1/h burst=1", "address"), {}, ValueError, 'key: "address" is not client, everyone, method, path, route'),
        (("login", "gcra 1/h burst=1", []), {}, ValueError, "key: an empty list"),
        (("login", "gcra 1/h burst=1", "header:a b"), {}, ValueError, 'key: "a b" is not the name of a header'),
        (("login", "gcra 1/h burst=1", 1), {}, TypeError, "key: expected a text, a function, or a list of these, not int"),
        (("login", "gcra 1/h burst=1"), {"missing": "deny"}, ValueError, 'missing: "deny" is not share, skip, or a status'),
        (("login", "gcra 1/h burst=1"), {"missing": 200}, ValueError, "missing: 200 is not a status from 400 to 999"),
        (("login", "gcra 1/h burst=1"), {"exempt": 1}, TypeError, "exempt: expected a function, not int"),
        (("login", "fixed-window 1/1h"), {"action": "delay", "max_delay": 1}, ValueError, "can't delay"),
    ],
)
def test_rules_that_are_wrong(arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Rule(*arguments, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trusted_proxies": ["10.0.0.0/33"]}, 'trusted_proxies: "10.0.0.0/33" is not a network such as 10.0.0.0/8'),
        ({"trusted_proxies": ["10.0.0.0/8", "0.0.0.0/0"]}, "trusted_proxies: 0.0.0.0/0 is everybody; name the proxies' networks, or set hops"),
        ({"trusted_proxies": ["10.0.0.0/8"], "hops": 1}, "hops: trusted_proxies is set already; want one of them"),
        ({"source": "x-real-ip"}, "source: x-real-ip is read only behind proxies; set trusted_proxies or hops"),
        ({"ipv6_prefix": 129}, "ipv6_prefix: expected a whole number from 0 to 128"),
        ({"source": "a b"}, 'source: "a b" is not the name of a header'),
        ({"status": 200}, "status: 200 is not a status from 400 to 999"),
        ({"rules": [Rule("a", "gcra 1/h burst=1"), Rule("a", "gcra 2/h burst=1")]}, "two rules or plans of the layer are called `a`"),
    ],
)
def test_limits_that_are_wrong(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        RateLimits(options.pop("rules", [Rule("a", "gcra 1/h burst=1")]), **options)
