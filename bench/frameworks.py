#!/usr/bin/env python3
"""Processor time of a request through FastAPI, Flask, Express and Fastify, with and without a limit, beside that of other
packages: the table of docs/evidence.md.

usage: target/python/bin/python bench/frameworks.py [FRAMEWORK…]     `just bench-frameworks` makes what it needs

uvicorn, gunicorn and Node serve on this machine, and h2load (Debian: nghttp2-client) asks over four connections that stay open. All
servers of a framework run at once, and are asked in turns, after as many requests as V8 takes to compile what is called often. A
row has the lower quartile of the server's processor time in all rounds, since other programs of the machine only add to it, and
its ratio to that of the bare application. All limits count in memory, and are so high that they deny nothing.

If a request to another package fails, its round is repeated, and the program says so: threads of the storage `memory://` of
`limits`, for example, start one timer twice now and then.
"""
import contextlib
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROUNDS = 15
# The requests of a round. The first rounds, which are not counted, have four times as many.
REQUESTS = {"fastapi": 1000, "flask": 500, "express": 4000, "fastify": 8000}
# The rounds of another package that may fail.
MOST_FAILURES = 3
LIMIT = "10000000/minute"
HEADERS = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "accept": "text/html,*/*;q=0.8",
           "accept-language": "en-GB,en;q=0.5", "accept-encoding": "gzip, deflate", "cookie": "session=d2f6a1c09b", "priority": "u=0, i"}
OURS = ["`earrrl`, middleware", "`earrrl`, limit on a route"]
ROWS = {"fastapi": [*OURS, "slowapi"], "flask": [*OURS, "flask-limiter"],
        "express": [*OURS, "express-rate-limit", "rate-limiter-flexible", "rate-limiter-flexible, with headers"], "fastify": [*OURS, "@fastify/rate-limit"]}


def unlimited(view):
    return view


def fastapi(kind):
    from fastapi import FastAPI, Request

    from earrrl import RateLimits, Rule
    from earrrl.asgi import RateLimitMiddleware

    app = FastAPI()
    if kind == "slowapi":
        from slowapi import Limiter
        from slowapi.util import get_remote_address

        app.state.limiter = limiter = Limiter(get_remote_address, storage_uri="memory://")

        @app.get("/")
        @limiter.limit(LIMIT)
        async def hello(request: Request):
            return {"hello": "world"}

        return app
    if kind == OURS[0]:
        app.add_middleware(RateLimitMiddleware, limits=RateLimits([Rule("address", LIMIT)]))

    @app.get("/")
    @(RateLimits().limit(LIMIT) if kind == OURS[1] else unlimited)
    async def hello():
        return {"hello": "world"}

    return app


def flask(kind):
    from flask import Flask
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    from earrrl import RateLimits, Rule
    from earrrl.wsgi import RateLimitMiddleware

    app = Flask(__name__)
    limit = unlimited
    if kind == "flask-limiter":
        limit = Limiter(get_remote_address, app=app, storage_uri="memory://").limit(LIMIT)
    elif kind == OURS[0]:
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, RateLimits([Rule("address", LIMIT)]))
    elif kind == OURS[1]:
        limit = RateLimits().limit(LIMIT)

    @app.get("/")
    @limit
    def hello():
        return {"hello": "world"}

    return app


def serve(framework, kind, port):
    if framework == "fastapi":
        import uvicorn

        return uvicorn.run(fastapi(kind), port=port, log_level="warning", access_log=False)
    from gunicorn.app.base import BaseApplication

    class Server(BaseApplication):
        def load_config(self):
            # The usual worker closes every connection after one request.
            settings = {"bind": f"127.0.0.1:{port}", "worker_class": "gthread", "threads": 4, "keepalive": 600, "loglevel": "warning"}
            for name, value in settings.items():
                self.cfg.set(name, value)

        def load(self):
            return flask(kind)

    Server().run()


@contextlib.contextmanager
def serving(framework, kind):
    """Starts a server; yields its process and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if framework in ("fastapi", "flask"):
        command = [sys.executable, __file__, "--serve"]
    else:
        command = ["node", ROOT / "target/bench-node/frameworks.mjs"]
    server = subprocess.Popen([*command, framework, kind, str(port)])
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert server.poll() is None, f"{framework}, {kind} ended"
            time.sleep(0.05)
        yield server.pid, port
    finally:
        server.terminate()
        server.wait()


def processor_time(pid):
    """The nanoseconds that a process and its workers have used, by their clocks."""
    workers = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(time.clock_gettime_ns(~int(one) << 3 | 2) for one in (pid, *workers))


def spent(pid, port, requests):
    """The microseconds of processor time of a request."""
    headers = [part for name, value in HEADERS.items() for part in ("-H", f"{name}: {value}")]
    before = processor_time(pid)
    output = subprocess.check_output(["h2load", "--h1", "-t1", "-c4", f"-n{requests}", *headers, f"http://127.0.0.1:{port}/"], text=True)
    used = processor_time(pid) - before
    assert f" {requests} 2xx" in output, output
    return used / requests / 1000


def spent_by(kind, server, requests):
    """The same of an application. A round in which a request to another package failed is repeated."""
    for _ in range(MOST_FAILURES):
        try:
            return spent(*server, requests)
        except AssertionError as failure:
            if kind in ("bare", *OURS):
                raise
            print(f"{kind} failed, and is asked again: {failure}", file=sys.stderr)
    return spent(*server, requests)


def compare(framework):
    kinds, requests = ["bare", *ROWS[framework]], REQUESTS[framework]
    with contextlib.ExitStack() as servers:
        running = {kind: servers.enter_context(serving(framework, kind)) for kind in kinds}
        for kind, server in running.items():
            spent_by(kind, server, 4 * requests)
        rounds = [[spent_by(kind, server, requests) for kind, server in running.items()] for _ in range(ROUNDS)]
    quartiles = [statistics.quantiles(times)[0] for times in zip(*rounds)]
    for kind, time_of in zip(kinds, quartiles):
        print(f"| {framework} | {kind} | {time_of:.0f} | {time_of / quartiles[0]:.2f} |", flush=True)


def main():
    if sys.argv[1:2] == ["--serve"]:
        return serve(*sys.argv[2:4], int(sys.argv[4]))
    print("| framework | | µs | of the bare one |\n|---|---|---:|---:|", flush=True)
    for framework in sys.argv[1:] or ROWS:
        compare(framework)


if __name__ == "__main__":
    main()
