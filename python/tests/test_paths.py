"""No spelling of a path evades a limit: all that reach a handler of a real service are counted under one key."""

import re
import socket

import pytest
from conftest import HERE, asgi, wsgi

from earrrl import RateLimits, Rule
from earrrl.asgi import RateLimitMiddleware as Asgi
from earrrl.wsgi import RateLimitMiddleware as Wsgi

SPELLINGS = [
    re.sub(rb"\{(..)\}", lambda byte: bytes.fromhex(byte[1].decode()), line.split()[0].encode())
    for line in (HERE.parents[1] / "testdata/paths/spellings.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
SERVERS = {
    "starlette": ["uvicorn", "--port", "{port}", "paths_asgi:app"],
    "flask": ["gunicorn", "--no-control-socket", "--bind", "127.0.0.1:{port}", "paths_flask:app"],
    "django": ["gunicorn", "--no-control-socket", "--bind", "127.0.0.1:{port}", "paths_django:app"],
}


def answer(port, target):
    """Sends a request as it is, and returns the whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except ConnectionResetError:
            pass
        return received


@pytest.mark.parametrize("service", SERVERS)
def test_spellings_of_a_path_count_together(start, service):
    server = start(SERVERS[service])
    server.wait(1)
    seen = {"key": [], "paths": []}
    for target in SPELLINGS:
        received = answer(server.port, target)
        if b"REACHED" in received:
            left = dict(re.findall(rb'"(\w+)";r=(\d+)', received))
            for rule in seen:
                assert rule.encode() in left, f"{service} serves {target!r} uncounted"
                seen[rule].append(int(left[rule.encode()]))
    assert len(SPELLINGS) > 123 and len(seen["key"]) > 10
    for left in seen.values():
        assert left == sorted(set(left), reverse=True), f"{service} has several keys: {left}"


def test_paths_that_are_wrong():
    for wrong, message in [("login", "paths: `login`: expected a path that begins"), ([], "paths: an empty list"), ("/a*b", "may stand at the end")]:
        with pytest.raises(ValueError, match=message):
            Rule("login", "gcra 1/h burst=1", paths=wrong)
    with pytest.raises(TypeError, match="paths: expected a path, or a list of paths, not int"):
        Rule("login", "gcra 1/h burst=1", paths=[1])


def test_a_rule_for_paths_leaves_others_alone():
    def app(environ, start_response):
        start_response("200 OK", [])
        return [b""]

    service = Wsgi(app, RateLimits([Rule("login", "gcra 1/h burst=1", paths=["/login", "/api/*"])]))
    statuses = [wsgi(service, path)[0] for path in ["/", "/other", "/login", "/Login/", "/api", "/api/v1", "/apis"]]
    assert statuses == [200, 200, 200, 429, 429, 429, 200]


ROUTES = Rule("route", "gcra 1/h burst=2", ["client", "route"])


def test_routes_of_flask_and_django():
    import django.conf
    from django.core.handlers.wsgi import WSGIHandler
    from django.test import override_settings
    from django.urls import path
    from flask import Flask

    app = Flask("service")
    app.add_url_rule("/users/<user>", view_func=lambda user: user)
    app.wsgi_app = Wsgi(app.wsgi_app, RateLimits([ROUTES]))
    if not django.conf.settings.configured:
        django.conf.settings.configure(ROOT_URLCONF=(), ALLOWED_HOSTS=["*"], DEBUG=True)
    from django.http import HttpResponse

    views = (path("users/<user>", lambda request, user: HttpResponse(user)),)
    with override_settings(ROOT_URLCONF=views, ALLOWED_HOSTS=["*"], MIDDLEWARE=[], DEBUG=False):
        for service in (app, Wsgi(WSGIHandler(), RateLimits([ROUTES]))):
            paths = ["/users/1", "/none", "/users/2", "/users/3", "/other", "/nothing"]
            assert [wsgi(service, one)[0] for one in paths] == [200, 404, 200, 429, 404, 429]


def test_routes_of_starlette():
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    limits = RateLimits([ROUTES])
    hello = lambda request: PlainTextResponse("hello")
    app = Starlette(routes=[Route("/users/{user}", hello, middleware=[Middleware(Asgi, limits=limits)]), Route("/free", hello)])
    assert [asgi(app, path)[0] for path in ["/users/1", "/users/2", "/users/3", "/free"]] == [200, 200, 429, 200]
    # In front of the application, the route is not known yet.
    with pytest.raises(ValueError, match="key: the route is not known"):
        asgi(Asgi(app, limits), "/free")


def test_targets_that_are_no_uri():
    service = Wsgi(lambda environ, start_response: start_response("200 OK", []) or [], RateLimits([Rule("path", "gcra 1/h burst=1", "path")]))
    assert [wsgi(service, path)[0] for path in ["/a b", "/a c", '/a"', "/é", "/a b", "/A%20B"]] == [200, 200, 200, 200, 429, 200]


def test_paths_are_those_of_the_application_below_a_prefix():
    from flask import Flask
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    flask = Flask("service")
    flask.add_url_rule("/login", "login", lambda: "REACHED")
    page = Starlette(routes=[Route("/login", lambda request: PlainTextResponse("REACHED"))])
    for paths in ("/login", "/shop/login"):
        limits = [RateLimits([Rule("paths", "2/day", paths=paths)]) for _ in range(3)]
        services = [
            (wsgi, DispatcherMiddleware(None, {"/shop": Wsgi(flask.wsgi_app, limits[0])}), "/shop/login"),
            # A proxy has taken the prefix from the path, of which uvicorn's --root-path informs the application.
            (asgi, with_root_path(Asgi(page, limits[1])), "/shop/login"),
            (asgi, with_root_path(Asgi(Starlette(routes=[Mount("/", page)]), limits[2])), "/shop/login"),
        ]
        for call, app, path in services:
            assert [call(app, path)[0] for _ in range(3)] == [200, 200, 429]
    # A middleware of a mounted application knows the path from the whole application on.
    part = Asgi(page, RateLimits([Rule("paths", "2/day", paths="/part/login")]))
    app = with_root_path(Starlette(routes=[Mount("/part", part)]))
    assert [asgi(app, "/shop/part/login")[0] for _ in range(3)] == [200, 200, 429]


def with_root_path(app):
    async def proxied(scope, receive, send):
        await app({**scope, "root_path": "/shop"}, receive, send)

    return proxied
