"""The arguments of both middlewares."""

from . import RateLimits

_ARGUMENTS = {"asgi": 3, "wsgi": 2}


def check(kind, app, limits):
    """Raises ``TypeError`` for limits that are no ``RateLimits``, and for an application of the other interface."""
    if not isinstance(limits, RateLimits):
        raise TypeError(f"limits: expected RateLimits, as in RateLimits([Rule(…)]), not {type(limits).__name__}")
    other = "wsgi" if kind == "asgi" else "asgi"
    if _required(app) == _ARGUMENTS[other]:
        raise TypeError(f"app: earrrl.{kind} is for {kind.upper()}, but this application takes the arguments of {other.upper()}: use earrrl.{other}")


def _required(app):
    """Returns the number of arguments that a call of the application must have; 0 if that is not known."""
    call = app if hasattr(app, "__code__") else type(app).__call__
    code = getattr(call, "__code__", None)
    if code is None:
        return 0
    is_bound = hasattr(app, "__self__") or call is not app
    return code.co_argcount - len(call.__defaults__ or ()) - is_bound
