#!/usr/bin/env python3
"""Time of a check from Python, beside the storages of `limits`, in one run: the table of docs/python.md.

usage: target/python/bin/python bench/python.py     after scripts/python

Each row is the fastest of 15 runs over 10,000 clients, one after the other, on one thread; the loop's own time is part of it, as
the first row shows. Valkey runs on this machine, without persistence, and is asked over TCP and over a Unix socket.
"""
import contextlib
import itertools
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from limits import parse
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

import earrrl
import earrrl.limits
from earrrl.asgi import RateLimitMiddleware

CLIENTS = [f"198.18.{place >> 8}.{place & 255}" for place in range(10_000)]
RULE = "gcra 1000000/s burst=1000000"
VALKEY = pathlib.Path(__file__).resolve().parents[1] / "target/tools/bin/valkey-server"


def per_call(work, calls):
    """The time of a call in nanoseconds, in the fastest run: other programs of the machine only add to it."""
    times = []
    for _ in range(15):
        clients = list(itertools.islice(itertools.cycle(CLIENTS), calls))
        start = time.perf_counter_ns()
        for client in clients:
            work(client)
        times.append((time.perf_counter_ns() - start) / calls)
    return min(times)


def hit(strategy, uri):
    limiter, limit = strategy(storage_from_string(uri)), parse("1000000/minute")
    return lambda client: limiter.hit(limit, client)


def middleware():
    """An ASGI application behind the middleware, without its headers' consumers: the time is that of both."""
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        pass

    limited = RateLimitMiddleware(app, earrrl.RateLimits([earrrl.Rule("address", RULE)]))

    def call(wrapped):
        def work(client):
            scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": [(b"host", b"a"), (b"accept", b"*/*")],
                     "client": (client, 4711)}
            with contextlib.suppress(StopIteration):
                wrapped(scope, None, send).send(None)
        return work

    return call(app), call(limited)


@contextlib.contextmanager
def redis(folder):
    """Starts Valkey; yields the URIs by TCP and by a Unix socket."""
    socket = f"{folder}/redis.sock"
    command = [VALKEY, "--port", "6399", "--unixsocket", socket, "--save", "", "--dir", folder]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not pathlib.Path(socket).exists():
            time.sleep(0.05)
        yield "redis://127.0.0.1:6399", f"redis+unix://{socket}"
    finally:
        server.terminate()
        server.wait()


def rows(folder, tcp, unix):
    limiter, shared = earrrl.Limiter(RULE), earrrl.Limiter(RULE, path=f"{folder}/limiter")
    engine = earrrl.Engine({"a": RULE, "b": RULE})
    plain, limited = middleware()
    yield "a function in Python that does nothing", lambda client: None, 50_000
    yield "`Limiter.check`", limiter.check, 50_000
    yield "`Limiter.check(…).allowed`", lambda client: limiter.check(client).allowed, 50_000
    yield "`Limiter.check`, in a file", shared.check, 50_000
    yield "`Engine.check` of two rules", lambda client: engine.check({"a": client, "b": client}), 50_000
    yield "an ASGI application that does nothing", plain, 50_000
    yield "the same behind `RateLimitMiddleware`", limited, 50_000
    for strategy, name in [(FixedWindowRateLimiter, "fixed-window"), (SlidingWindowCounterRateLimiter, "sliding-window-counter")]:
        for uri, kind in [("earrrl://", "`earrrl://`"), (f"earrrl://{folder}/limits", "`earrrl:///dev/shm/limits`"),
                          ("memory://", "`memory://`"), (unix, "`redis+unix://`"), (tcp, "`redis://`")]:
            yield f"`limits`, {name}, {kind}", hit(strategy, uri), 2_000 if "redis" in uri else 20_000


def main():
    folder = tempfile.mkdtemp(dir="/dev/shm")
    try:
        with redis(folder) as (tcp, unix):
            print("| | µs |\n|---|---|")
            for name, work, calls in rows(folder, tcp, unix):
                print(f"| {name} | {per_call(work, calls) / 1000:.2f} |", flush=True)
    finally:
        shutil.rmtree(folder)
    code = "import time; before = time.perf_counter(); import earrrl; print(time.perf_counter() - before)"
    imports = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(11)]
    print(f"| `import earrrl` | {statistics.median(imports) * 1e6:.0f} |")


if __name__ == "__main__":
    main()
