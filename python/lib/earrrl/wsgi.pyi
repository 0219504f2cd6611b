from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from . import RateLimits, Refusal

_App = Callable[[Dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_Respond = Callable[[Dict[str, Any], Refusal], Tuple[str, bytes]]

class RateLimitMiddleware:
    app: _App
    limits: RateLimits
    respond: Optional[_Respond]
    def __init__(self, app: _App, limits: RateLimits, respond: Optional[_Respond] = None) -> None: ...
    def __call__(self, environ: Dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]: ...
