from typing import Any, Awaitable, Callable, MutableMapping

from . import RateLimits

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

class RateLimitMiddleware:
    app: _App
    limits: RateLimits
    def __init__(self, app: _App, limits: RateLimits) -> None: ...
    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None: ...
