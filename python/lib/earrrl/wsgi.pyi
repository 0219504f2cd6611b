from typing import Any, Callable, Dict, Iterable

from . import RateLimits

_App = Callable[[Dict[str, Any], Callable[..., Any]], Iterable[bytes]]

class RateLimitMiddleware:
    app: _App
    limits: RateLimits
    def __init__(self, app: _App, limits: RateLimits) -> None: ...
    def __call__(self, environ: Dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]: ...
