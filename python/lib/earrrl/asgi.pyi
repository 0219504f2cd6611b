from typing import Any, Awaitable, Callable, MutableMapping, Optional, Tuple

from . import RateLimits, Refusal

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]
_Respond = Callable[[_Scope, Refusal], Tuple[str, bytes]]

class RateLimitMiddleware:
    app: _App
    limits: RateLimits
    respond: Optional[_Respond]
    def __init__(self, app: _App, limits: RateLimits, respond: Optional[_Respond] = None) -> None: ...
    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None: ...
