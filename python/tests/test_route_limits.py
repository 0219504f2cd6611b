"""Limits on single routes, with each framework as it really runs."""

import decimal
import re
import uuid

import pytest
from conftest import asgi, wsgi
from test_paths import SERVERS, SPELLINGS, answer

from earrrl import RateLimits, Rule

LIMIT = "2/day"


def statuses(call, app, path="/", count=3, **arguments):
    return [call(app, path, **arguments)[0] for _ in range(count)]


def by_key(request):
    return request.headers.get("x-key")


async def later_by_key(request):
    return request.headers.get("x-key")


def fastapi_app(limits, **options):
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/now")
    @limits.limit(LIMIT, **options)
    def now(user: str = "alice"):
        return user

    @app.get("/later")
    @limits.limit(LIMIT, **options)
    async def later(user: str = "alice"):
        return {"user": user}

    @app.get("/free")
    async def free():
        return "free"

    return app


def starlette_app(limits, **options):
    from starlette.applications import Starlette
    from starlette.endpoints import HTTPEndpoint
    from starlette.responses import PlainTextResponse
    from starlette.routing import Mount, Route

    @limits.limit(LIMIT, **options)
    def now(request):
        return PlainTextResponse("now")

    class Later(HTTPEndpoint):
        @limits.limit(LIMIT, **options)
        async def get(self, request):
            return PlainTextResponse("later")

    free = Route("/free", lambda request: PlainTextResponse("free"))
    return Starlette(routes=[Route("/now", now), Mount("/", routes=[Route("/later", Later)]), free])


def flask_app(limits, **options):
    from flask import Blueprint, Flask
    from flask.views import MethodView

    app, part = Flask("service"), Blueprint("part", "part")

    @app.get("/now")
    @limits.limit(LIMIT, **options)
    def now():
        return "now"

    class Later(MethodView):
        decorators = [limits.limit(LIMIT, **options)]

        def get(self):
            return "later"

    class Latest(Later):
        def get(self):
            return "latest"

    part.add_url_rule("/later", view_func=Later.as_view("later"))
    part.add_url_rule("/latest", view_func=Latest.as_view("latest"))
    app.register_blueprint(part)
    app.add_url_rule("/free", view_func=lambda: "free")
    return app


APPS = {"fastapi": (fastapi_app, asgi), "starlette": (starlette_app, asgi), "flask": (flask_app, wsgi)}


@pytest.fixture(params=APPS)
def framework(request):
    return APPS[request.param]


def test_each_route_has_a_limit_of_its_own(framework):
    make, call = framework
    app = make(RateLimits())
    assert statuses(call, app, "/now") == statuses(call, app, "/later") == [200, 200, 429]
    assert statuses(call, app, "/now", 1, peer="192.0.2.8") == [200]
    if call is wsgi:
        assert statuses(call, app, "/latest") == [200, 200, 429]
        assert statuses(call, app, "/free", 5) == [200] * 5


def test_headers_and_problems_are_those_of_the_middleware(framework):
    make, call = framework
    app = make(RateLimits(), name=None)
    for path in ("/now", "/later"):
        (_, first, _), _, (status, headers, body) = [call(app, path) for _ in range(3)]
        assert re.fullmatch(r'"[a-z0-9_-]+";r=1;t=\d+', first["ratelimit"]) and first["ratelimit-policy"].endswith(";q=2;w=86400")
        assert status == 429 and int(headers["retry-after"]) <= 86400 and ";r=0;t=" in headers["ratelimit"]
        assert headers["content-type"] == "application/problem+json" and b"#quota-exceeded" in body


def test_functions_get_the_request_of_the_framework(framework):
    make, call = framework
    app = make(RateLimits(), key=by_key, exempt=lambda request: request.headers.get("x-key") == "admin", cost=lambda request: 2)
    keys = ["a", "a", "b", "admin", "admin", "b"]
    assert [call(app, "/now", [("x-key", key)])[0] for key in keys] == [200, 429, 200, 200, 200, 429]


def test_keys_are_ids_of_the_usual_types(framework):
    make, call = framework
    for key in (7, b"\xff", "a", uuid.uuid4(), decimal.Decimal("1.5")):
        app = make(RateLimits(), key=lambda request: key)
        assert statuses(call, app, "/now") == [200, 200, 429]
    for wrong in (1.5, True, {}, object()):
        app = make(RateLimits(), key=lambda request: wrong)
        if call is asgi:
            with pytest.raises(TypeError, match=r"key: .*<lambda> returned \w+; expected str, bytes, int, UUID or Decimal"):
                call(app, "/now")
        else:
            assert call(app, "/now")[0] == 500


def test_asynchronous_functions():
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def is_admin(request):
        return request.headers.get("x-key") == "admin"

    async def is_big(request):
        return request.headers.get("x-key") == "big"

    async def limit_of(request):
        return "6/day" if request.headers.get("x-key") == "wide" else None

    @RateLimits().limit(LIMIT, ["everyone", later_by_key], exempt=is_admin, cost=lambda request: 2, plans={"big": ("4/day", is_big)}, limit_by=limit_of)
    async def hello(request):
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", hello)])
    keys = ["a", "a", "admin", "admin", "big", "big", "big", "wide", "wide", "wide", "wide", "b"]
    assert [asgi(app, "/", [("x-key", key)])[0] for key in keys] == [200, 429, 200, 200, 200, 200, 429, 200, 200, 200, 429, 200]
    with pytest.raises(TypeError, match="key: later_by_key is asynchronous, but asgi is not"):
        RateLimits().limit(LIMIT, later_by_key)(asgi)


def test_dependencies_of_fastapi():
    from fastapi import APIRouter, Depends, FastAPI, Header

    def current_user(x_key: str = Header()):
        return {"name": x_key}

    def user_name(user: dict = Depends(current_user)):
        return user["name"]

    limits = RateLimits()
    app, part = FastAPI(), APIRouter(prefix="/part", dependencies=[Depends(limits.dependency(LIMIT, Depends(user_name)))])

    @part.get("/one")
    async def one():
        return "one"

    @part.get("/other")
    def other():
        return "other"

    @app.get("/decorated")
    @limits.limit(LIMIT, key=Depends(user_name))
    def decorated():
        return "decorated"

    app.include_router(part)
    for path in ("/part/one", "/part/other", "/decorated"):
        found = [asgi(app, path, [("x-key", key)]) for key in ("alice", "alice", "bob", "alice")]
        assert [status for status, _, _ in found] == [200, 200, 200, 429]
        assert ";r=1;" in found[0][1]["ratelimit"] and found[3][1]["content-type"] == "application/problem+json"


def test_a_name_shares_a_limit():
    from fastapi import Depends, FastAPI

    limits = RateLimits()
    app = FastAPI(dependencies=[Depends(limits.dependency(LIMIT, name="all"))])
    app.get("/one")(lambda: "one")
    app.get("/other")(lambda: "other")
    assert [asgi(app, path)[0] for path in ("/one", "/other", "/one")] == [200, 200, 429]
    limits.reset("all", "192.0.2.7")
    limits.change("all", "3/day")
    assert statuses(asgi, app, "/other", 4) == [200, 200, 200, 429]
    with pytest.raises(ValueError, match="name: 'all' is there already, with other settings"):
        limits.limit("5/day", name="all")
    with pytest.raises(ValueError, match="name: 'address' is there already"):
        RateLimits([Rule("address", "gcra 1/s burst=1")]).limit("5/day", name="address")


def test_several_limits_of_one_view():
    from flask import Flask

    limits, app = RateLimits(), Flask("service")

    @app.get("/")
    @limits.limit("3/day")
    @limits.limit("9/day;2/hour", by_key)
    def hello():
        return "hello"

    found = [wsgi(app, headers=[("x-key", key)])[0] for key in "aaabcd"]
    assert found == [200, 200, 429, 429, 429, 429]


def test_several_limits_of_a_view_of_fastapi():
    from fastapi import Depends, FastAPI, Header

    limits, app = RateLimits(), FastAPI()

    def user(x_key: str = Header()):
        return x_key

    @app.get("/")
    @limits.limit("3/day", Depends(user))
    @limits.limit("2/day", ["client", Depends(user)])
    async def hello(name: str = "alice"):
        return name

    assert [asgi(app, headers=[("x-key", key)])[0] for key in "aaab"] == [200, 200, 429, 200]


def test_views_of_fastapi_with_a_response_and_a_connection_of_their_own():
    from typing import Annotated

    from fastapi import FastAPI, Response
    from starlette.requests import HTTPConnection

    limits, app = RateLimits(), FastAPI()

    @app.get("/plain")
    @limits.limit("2/day")
    @limits.limit("9/day")
    def plain(response: Response, connection: HTTPConnection):
        response.headers["x-own"] = connection.url.path
        return "hello"

    @app.get("/annotated")
    @limits.limit("2/day")
    async def annotated(response: Annotated[Response, "the headers"]):
        response.headers["x-own"] = "/annotated"
        return "hello"

    for path in ("/plain", "/annotated"):
        found = [asgi(app, path) for _ in range(3)]
        assert [status for status, _, _ in found] == [200, 200, 429]
        assert found[0][1]["x-own"] == path and ";r=1;" in found[0][1]["ratelimit"]


def test_error_handlers_of_the_frameworks():
    from fastapi.responses import PlainTextResponse
    from starlette.exceptions import HTTPException

    for kind in (429, HTTPException):
        app = fastapi_app(RateLimits())

        @app.exception_handler(kind)
        def handler(request, error):
            return PlainTextResponse(f"own {error.refusal.status}", error.status_code, error.headers)

        assert [asgi(app, "/now")[2] for _ in range(3)][-1] == asgi(app, "/now")[2] == b"own 429"
        assert int(asgi(app, "/now")[1]["retry-after"]) > 0
    app = flask_app(RateLimits())
    app.register_error_handler(429, lambda error: (f"own {error.refusal.status}", 429))
    [*_, (status, headers, body)] = [wsgi(app, "/now") for _ in range(3)]
    assert (status, body) == (429, b"own 429") and int(headers["retry-after"]) > 0 and headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("has_handler", [False, True])
def test_a_denial_has_the_headers_of_all_limits(has_handler):
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse
    from flask import Flask

    limits, flask, fastapi = RateLimits(), Flask("service"), FastAPI()
    flask.get("/")(limits.limit("9/day", name="outer")(limits.limit("2/day", name="inner")(lambda: "hello")))

    @fastapi.get("/")
    @limits.limit("9/day", name="outer-later")
    @limits.limit("2/day", name="inner-later")
    async def hello():
        return "hello"

    if has_handler:
        flask.register_error_handler(429, lambda error: ("own", 429))
        fastapi.exception_handler(429)(lambda request, error: PlainTextResponse("own", 429, error.headers))
    for call, app in ((wsgi, flask), (asgi, fastapi)):
        status, headers, body = [call(app) for _ in range(3)][-1]
        assert (status, body == b"own") == (429, has_handler) and int(headers["retry-after"]) > 0
        for name in ("ratelimit", "ratelimit-policy"):
            assert sorted(re.findall('"([a-z]+)', headers[name])) == ["inner", "outer"]


def test_own_bodies(framework):
    make, call = framework
    app = make(RateLimits(status=503), respond=lambda request, refusal: ("text/plain", b"Not so fast!"))
    [*_, (status, headers, body)] = [call(app, "/now") for _ in range(3)]
    assert (status, headers["content-type"].split(";")[0], body) == (503, "text/plain", b"Not so fast!")


def test_websockets():
    from fastapi import FastAPI, WebSocket

    app, limits = FastAPI(), RateLimits()

    @app.websocket("/")
    @limits.limit(LIMIT)
    async def talk(websocket: WebSocket):
        await websocket.accept()
        await websocket.close()

    assert [asgi(app, kind="websocket")[0] for _ in range(3)] == ["websocket.accept"] * 2 + ["websocket.close"]
    assert asgi(app, kind="websocket", extensions=["websocket.http.response"])[0] == 429


def test_streams_and_costs_after():
    from fastapi.responses import StreamingResponse
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    limits = RateLimits()

    @limits.limit("5/day", cost_after=lambda status, headers: 2 if status == 404 else 0)
    async def stream(request):
        if request.headers.get("x-key"):
            raise HTTPException(404)
        return StreamingResponse(iter(["a", "b"]))

    app = Starlette(routes=[Route("/", stream)])
    found = [asgi(app, headers=[("x-key", "a")] if turn == 1 else []) for turn in range(4)]
    assert [(status, headers["ratelimit"].split(";")[1]) for status, headers, _ in found] == [(200, "r=4"), (404, "r=3"), (200, "r=0"), (429, "r=0")]
    assert found[0][2] == b"ab"


def test_django_views():
    import django.conf

    if not django.conf.settings.configured:
        django.conf.settings.configure(ROOT_URLCONF=(), ALLOWED_HOSTS=["*"], DEBUG=True)
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpResponse
    from django.test import override_settings
    from django.urls import include, path
    from django.utils.decorators import method_decorator
    from django.views import View

    limits = RateLimits()

    @limits.limit(LIMIT)
    def now(request):
        return HttpResponse("now")

    @limits.limit(LIMIT, later_by_key, missing="share")
    async def later(request):
        return HttpResponse("later")

    class Method(View):
        @limits.limit(LIMIT)
        def get(self, request):
            return HttpResponse("method")

    @method_decorator(limits.limit(LIMIT), name="dispatch")
    class Dispatch(View):
        def get(self, request):
            return HttpResponse("dispatch")

    @method_decorator([limits.limit(LIMIT), limits.limit("9/day")], name="dispatch")
    class Twin(View):
        def get(self, request):
            return HttpResponse("twin")

    @method_decorator(limits.limit(LIMIT), name="dispatch")
    class Later(View):
        async def get(self, request):
            return HttpResponse("later")

    class Awaited(View):
        async def get(self, request):
            return HttpResponse("awaited")

    class Plain(View):
        def get(self, request):
            return HttpResponse("plain")

    class Other(Plain):
        pass

    plain = limits.limit(LIMIT)
    routes = [path("now", now), path("later", later), path("method", Method.as_view()), path("dispatch", Dispatch.as_view()),
              path("plain", plain(Plain.as_view())), path("other", plain(Other.as_view())), path("awaited", plain(Awaited.as_view())),
              path("twin", Twin.as_view()), path("later-dispatch", Later.as_view())]
    names = [str(route.pattern) for route in routes]
    with override_settings(ROOT_URLCONF=(path("api/", include(routes)),), ALLOWED_HOSTS=["*"], MIDDLEWARE=[], DEBUG=False):
        app = WSGIHandler()
        for name in names:
            found = [wsgi(app, f"/api/{name}", [("x-key", "a")]) for _ in range(3)]
            assert [status for status, _, _ in found] == [200, 200, 429], name
            assert ";r=1;" in found[0][1]["ratelimit"] and found[2][1]["content-type"] == "application/problem+json"
        # The methods that Django binds for each request make no further limits: one view has two, and two are for functions
        # of `method_decorator`.
        assert len(limits._routes) == len(names) + 3


def test_limits_that_are_made_in_each_request_end():
    limits = RateLimits(capacity=1)
    for number in range(1000):
        limits.limit(LIMIT, name=f"limit-{number}")
    with pytest.raises(ValueError, match="limit: 1000 limits on routes are in use, which is the most; make a limit once"):
        limits.limit(LIMIT, name="one-more")
    # Those that are there are shared on.
    limits.limit(LIMIT, name="limit-7")


def test_mistakes():
    limits = RateLimits()
    for wrong, message in [("5/fortnight", "5/fortnight"), ("", "expected recent-average"), ([], "limit: an empty list")]:
        with pytest.raises(ValueError, match=message):
            limits.limit(wrong)
    for options in ({"key": "cleint"}, {"plans": {"big": ("9/day", by_key)}, "limit": "1/day;2/day"}):
        with pytest.raises(ValueError):
            limits.limit(**{"limit": LIMIT, **options})
    with pytest.raises(TypeError, match="paths: a limit on a route is for all paths"):
        limits.limit(LIMIT, paths="/")
    with pytest.raises(TypeError, match="stream is a generator"):
        @limits.limit(LIMIT)
        def stream():
            yield 1
    with pytest.raises(TypeError, match="limit: .*hello was called without a request"):
        @limits.limit(LIMIT)
        def hello():
            pass
        hello()


@pytest.mark.parametrize("service", SERVERS)
def test_what_reaches_a_handler_is_counted(start, service):
    command = [part.replace("paths_", "routes_") for part in SERVERS[service]]
    server = start(command)
    server.wait(1)
    left = []
    for target in SPELLINGS:
        received = answer(server.port, target)
        if b"REACHED" in received:
            left.append(int(re.search(rb'"login";r=(\d+)', received)[1]))
    assert len(left) >= 8 and left == list(range(9998, 9998 - len(left), -1)), left
