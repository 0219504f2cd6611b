"""A Starlette service with one handler, limited by path."""

import os

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from earrrl import RateLimits, Rule
from earrrl.asgi import RateLimitMiddleware

rules = [Rule("key", "fixed-window 9999/3650d", ["client", "path"]), Rule("paths", "fixed-window 9999/3650d", paths=["/v1/login"])]
app = Starlette(routes=[
    Route("/v1/login", lambda request: PlainTextResponse("REACHED")),
    Route("/pid", lambda request: PlainTextResponse(str(os.getpid()))),
])
app.add_middleware(RateLimitMiddleware, limits=RateLimits(rules))
