"""Requests of Starlette and FastAPI for limits on routes."""

import json

from starlette.exceptions import HTTPException, WebSocketException
from starlette.responses import Response

from ._judge import judge_scope, refused, texts


class RateLimitExceeded(HTTPException):
    """The exception of a denied request. An application may have a handler for its status, or for ``HTTPException``."""

    def __init__(self, refusal, headers, body):
        super().__init__(refusal.status, json.loads(refusal.body)["title"], dict(headers))
        self.refusal = refusal
        self.response = Response(body, refusal.status, dict(headers))


class _WebSocketExceeded(WebSocketException):
    """The exception of a denied WebSocket, with the response for servers that can send one."""

    def __init__(self, response):
        super().__init__(1008, "rate limit exceeded")
        self.response = response


class Visit:
    """A request or WebSocket at its view. ``response`` has the headers that FastAPI adds to its responses."""

    def __init__(self, connection, response):
        self.request = connection
        self._response = response

    def judge(self, limits, subject):
        route = getattr(self.request.scope.get("route"), "path", "")
        return judge_scope(limits, self.request.scope, subject, route)

    def enter(self, passing):
        state = self.request.scope.setdefault("state", {})
        state["earrrl_verdict"], state["earrrl_settlement"] = passing.enter()

    def refuse(self, refusal, respond):
        """Raises the exception of the status, and sees to it that the application has a handler for it."""
        headers, body = refused(refusal, respond, self.request)
        handlers, _ = self.request.scope.get("starlette.exception_handlers", ({}, {}))
        error = RateLimitExceeded(refusal, texts(headers), body)
        if self.request.scope["type"] == "websocket":
            handlers.setdefault(_WebSocketExceeded, _close)
            raise _WebSocketExceeded(error.response)
        # The framework's own handler makes another body; one of the application's is preferred.
        if getattr(handlers.get(HTTPException), "__module__", "starlette.").startswith(("starlette.", "fastapi.")):
            handlers.setdefault(RateLimitExceeded, _respond)
        raise error

    def answered(self, passing, result):
        """Adds the headers to the response that a view returns, or to that which FastAPI makes of its result."""
        response = result if isinstance(result, Response) else self._response
        if response is None:
            passing.leave(101, [])
            return result
        status = response.status_code or getattr(self.request.scope.get("route"), "status_code", None) or 200
        response.raw_headers.extend(passing.leave(status, list(response.raw_headers)))
        return result

    def failed(self, passing, error):
        """Charges the costs that depend on the response, and adds the headers to it if the error has some."""
        added = passing.leave(getattr(error, "status_code", 500), [])
        if isinstance(error, HTTPException):
            own = error.headers or {}
            error.headers = {**own, **{name: f"{own[name]}, {value}" if name in own else value for name, value in texts(added)}}
        if isinstance(error, (RateLimitExceeded, _WebSocketExceeded)):
            error.response.raw_headers.extend(added)


async def _respond(request, error):
    return error.response


async def _close(websocket, error):
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(error.response)
    else:
        # Without the extension, the server answers 403.
        await websocket.close(error.code, error.reason)
