# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What the stubs allow, for `mypy --strict` and pyright in scripts/python; lines with `type: ignore` are errors."""

from typing import Any, Dict, Optional, Tuple

from limits import parse
from limits.strategies import FixedWindowRateLimiter

from earrrl import Decision, Engine, Limiter, ManualClock, RateLimits, Refusal, Rule, Settlement
from earrrl.asgi import RateLimitMiddleware as Asgi
from earrrl.limits import EarrrlStorage
from earrrl.wsgi import RateLimitMiddleware as Wsgi


def figures(decision: Decision) -> Tuple[bool, int, Optional[float], Dict[str, str]]:
    return decision.allowed, decision.remaining, decision.retry_after, decision.headers()


def limiter() -> int:
    logins = Limiter("gcra 1/s burst=5", "/dev/shm/typed", capacity=1000, action="delay", max_delay=1.5, max_cost=3)
    logins.refund("alice", 2, at=logins.check(b"alice", cost=2.5).at)
    figures(logins.peek("alice"))
    logins.check(7)
    logins.check(1.5)  # type: ignore[arg-type]
    logins.check("alice", "1")  # type: ignore[arg-type]
    Limiter("gcra 1/s burst=5", action="ban")  # type: ignore[arg-type]
    return len(logins) + logins.clear()


def clocks() -> float:
    clock = ManualClock(5)
    clock.advance(1.5)
    print(Limiter("5/minute", clock=clock), Engine({}, clock=clock), RateLimits(clock=clock))
    Limiter("5/minute", clock=5)  # type: ignore[arg-type]
    print(Limiter("5/minute", clock="time.time"), Engine({}, clock="time.time"), RateLimits(clock="time.time"))
    return clock.time()


def engine() -> Decision:
    several = Engine({"user": "gcra 1/s burst=5"}, capacity=10)
    several.charge({"user": 1.5})  # type: ignore[dict-item]
    keys: Dict[str, str] = {"user": "alice"}
    several.check(keys)
    return several.check({"user": "alice"}) or several.peek({"user": ("alice", 5)})


def not_so_fast(request: Any, refusal: Refusal) -> Tuple[str, bytes]:
    return "text/plain", str(refusal.status).encode()


async def hello(scope: Any, receive: Any, send: Any) -> None:
    settlement: Optional[Settlement] = scope["state"]["earrrl_settlement"]
    if settlement:
        settlement.charge(5)


def middlewares() -> Tuple[Asgi, Wsgi]:
    rule = Rule(
        "key", "gcra 1/s burst=5", ["header:x-api-key", lambda scope: 7], paths="/v1/*", cost=lambda scope: 2.5, cost_after=lambda status, headers: 1,
        missing=401, exempt=lambda scope: scope["path"] == "/", plans={"partner": ("gcra 9/s burst=9", lambda scope: True)}, limit_by=lambda scope: "gcra 9/s burst=9",
    )
    limits = RateLimits([rule], trusted_proxies=["10.0.0.0/8"])
    RateLimits(rule)  # type: ignore[arg-type]
    return Asgi(hello, limits, respond=not_so_fast), Wsgi(lambda environ, start_response: [b""], limits, not_so_fast)


async def user_of(request: Any) -> Optional[str]:
    return "alice" if request.headers else None


def routes() -> str:
    limits = RateLimits(path="/dev/shm/typed-routes")

    @limits.limit("5/minute;100/hour", ["client", user_of], exempt=lambda request: False, cost=lambda request: 2, name="hello", missing=401)
    async def hello(request: Any) -> str:
        return "hello"

    @limits.limit(["5/minute"], lambda request: 7, respond=not_so_fast)
    def plain(count: int) -> str:
        return "plain" * count

    limits.limit("5/minute", lambda request: 1.5)  # type: ignore[arg-type]
    limits.dependency("5/minute", "header:x-api-key", name="hello")
    plain("2")  # type: ignore[arg-type]
    return plain(2)


def storage() -> bool:
    return FixedWindowRateLimiter(EarrrlStorage("earrrl://")).hit(parse("5/minute"), "alice")
