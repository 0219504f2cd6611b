"""Rate limits for ASGI: FastAPI, Starlette, Django, Quart, Litestar and every other framework.

>>> from earrrl import RateLimits, Rule
>>> from earrrl.asgi import RateLimitMiddleware
>>> async def app(scope, receive, send): ...
>>> limits = RateLimits([Rule("address", "gcra 5/s burst=20")])
>>> app = RateLimitMiddleware(app, limits)
"""

from . import Refusal
from ._arguments import check
from ._judge import judge_scope, refused
from ._routes import route_of_asgi


class RateLimitMiddleware:
    """Judges each HTTP request and WebSocket before the application that it wraps.

    Denied requests get status 429 with problem details, ``Retry-After`` and ``RateLimit``. A handler finds the decision on
    a request that is passed on over its limit in ``scope["state"]["earrrl_verdict"]``, and the handle that charges later
    costs in ``scope["state"]["earrrl_settlement"]``; Starlette and FastAPI call them ``request.state.earrrl_verdict``.

    ``respond(scope, refusal)`` may return another type and body for denied requests: ``("text/plain", b"Not so fast!")``.
    """

    def __init__(self, app, limits, respond=None):
        check("asgi", app, limits)
        self.app = app
        self.limits = limits
        self.respond = respond
        self._reads_route = limits.reads_route

    async def __call__(self, scope, receive, send):
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        route = route_of_asgi(self.app, scope) if self._reads_route else None
        judged = judge_scope(self.limits, scope, scope, route)
        if type(judged) is Refusal:
            return await self._refuse(judged, scope, receive, send)
        if judged.delay:
            # Services that hold no request back need not wait for this import, which takes longer than all others.
            import asyncio

            await asyncio.sleep(judged.delay)
        verdict, settlement = judged.enter()
        if verdict or settlement:
            state = scope.setdefault("state", {})
            state["earrrl_verdict"], state["earrrl_settlement"] = verdict, settlement
        answered = False

        # A coroutine of its own around that of the server would take time for each message.
        def send_with_headers(message):
            nonlocal answered
            if not answered and message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                answered = True
                headers = list(message.get("headers") or ())
                message = {**message, "headers": headers + judged.leave(message.get("status", 101), headers)}
            return send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        finally:
            # A client that leaves before the response does not avoid the costs that depend on it.
            if not answered:
                judged.leave(499, [])

    async def _refuse(self, refusal, scope, receive, send):
        prefix = "http"
        if scope["type"] == "websocket":
            await receive()
            if "websocket.http.response" not in scope.get("extensions", {}):
                # Without the extension, the server answers 403.
                return await send({"type": "websocket.close", "code": 1008})
            prefix = "websocket.http"
        headers, body = refused(refusal, self.respond, scope)
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": f"{prefix}.response.start", "status": refusal.status, "headers": headers})
        await send({"type": f"{prefix}.response.body", "body": body})
