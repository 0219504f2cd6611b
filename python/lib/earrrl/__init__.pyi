from decimal import Decimal
from os import PathLike
from typing import Any, Awaitable, Callable, Coroutine, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, TypeVar, Union, final
from uuid import UUID

__version__: str
__all__ = [
    "Decision",
    "Engine",
    "Limiter",
    "ManualClock",
    "Passing",
    "RateLimits",
    "Refusal",
    "Rule",
    "Settlement",
    "__version__",
]

_Key = Union[str, bytes, int, UUID, Decimal]
_Cost = Union[int, float]
_Action = Literal["deny", "shadow-ban", "quarantine", "delay", "observe"]
_Outcome = Literal["allow", "observe", "quarantine", "delay", "shadow-ban", "deny"]
_Path = Union[str, PathLike[str]]
_Header = Tuple[bytes, bytes]
_KeyPart = Union[str, Callable[[Any], Optional[_Key]]]

# Functions of limits on routes may be asynchronous.
_T = TypeVar("_T")
_Later = Callable[[Any], Union[_T, Awaitable[_T]]]
_RouteKeyPart = Union[str, _Later[Optional[_Key]]]
_View = TypeVar("_View", bound=Callable[..., Any])

@final
class Decision:
    @property
    def allowed(self) -> bool: ...
    @property
    def outcome(self) -> _Outcome: ...
    @property
    def rule(self) -> str: ...
    @property
    def rate(self) -> Optional[float]: ...
    @property
    def limit(self) -> float: ...
    @property
    def remaining(self) -> int: ...
    @property
    def retry_after(self) -> Optional[float]: ...
    @property
    def earliest(self) -> Optional[float]: ...
    @property
    def reset_after(self) -> float: ...
    @property
    def delay(self) -> float: ...
    @property
    def at(self) -> int: ...
    def headers(self) -> Dict[str, str]: ...
    def __bool__(self) -> bool: ...

@final
class ManualClock:
    def __new__(cls, start: Optional[float] = None) -> ManualClock: ...
    def advance(self, seconds: float) -> None: ...
    def time(self) -> float: ...

_Clock = Union[ManualClock, Literal["time.time"]]

@final
class Limiter:
    def __new__(
        cls,
        rule: str,
        path: Optional[_Path] = None,
        capacity: int = 100_000,
        *,
        action: Optional[_Action] = None,
        max_delay: Optional[float] = None,
        max_cost: Optional[_Cost] = None,
        name: str = "default",
        clock: Optional[_Clock] = None,
    ) -> Limiter: ...
    def check(self, key: _Key, cost: Optional[_Cost] = None) -> Decision: ...
    def check_at(self, key: _Key, at: int, cost: Optional[_Cost] = None) -> Decision: ...
    def peek_at(self, key: _Key, at: int, cost: Optional[_Cost] = None) -> Decision: ...
    def charge_at(self, key: _Key, at: int, cost: Optional[_Cost] = None) -> Decision: ...
    def refund_at(
        self, key: _Key, at: int, cost: Optional[_Cost] = None, charged_at: Optional[int] = None
    ) -> None: ...
    def peek(self, key: _Key, cost: Optional[_Cost] = None) -> Decision: ...
    def charge(self, key: _Key, cost: Optional[_Cost] = None) -> Decision: ...
    def refund(self, key: _Key, cost: Optional[_Cost] = None, at: Optional[int] = None) -> None: ...
    def reset(self, key: _Key) -> None: ...
    def clear(self) -> int: ...
    @property
    def rule(self) -> str: ...
    def __len__(self) -> int: ...

_Charges = Mapping[str, Union[_Key, Tuple[_Key, _Cost]]]

@final
class Engine:
    def __new__(
        cls, rules: Mapping[str, str], path: Optional[_Path] = None, capacity: int = 100_000, *, clock: Optional[_Clock] = None
    ) -> Engine: ...
    def check(self, charges: _Charges) -> Decision: ...
    def peek(self, charges: _Charges) -> Decision: ...
    def charge(self, charges: _Charges) -> Decision: ...
    def refund(self, charges: _Charges, at: Optional[int] = None) -> None: ...
    def reset(self, rule: str, key: _Key) -> None: ...
    @property
    def rules(self) -> Dict[str, str]: ...

@final
class Rule:
    def __new__(
        cls,
        name: str,
        limit: str,
        key: Union[None, _KeyPart, Sequence[_KeyPart]] = None,
        *,
        paths: Union[None, str, Sequence[str]] = None,
        cost: Union[None, _Cost, Callable[[Any], _Cost]] = None,
        cost_after: Optional[Callable[[int, List[_Header]], _Cost]] = None,
        settled: bool = False,
        missing: Union[None, Literal["share", "skip"], int] = None,
        exempt: Optional[Callable[[Any], object]] = None,
        plans: Optional[Mapping[str, Tuple[str, Callable[[Any], object]]]] = None,
        limit_by: Optional[Callable[[Any], Optional[str]]] = None,
        action: Optional[_Action] = None,
        max_delay: Optional[float] = None,
        max_cost: Optional[_Cost] = None,
    ) -> Rule: ...

@final
class Settlement:
    def charge(self, cost: _Cost) -> None: ...

@final
class Passing:
    @property
    def delay(self) -> float: ...
    @property
    def reads_response(self) -> bool: ...
    def enter(self) -> Tuple[Optional[Decision], Optional[Settlement]]: ...
    def leave(self, status: int, headers: List[_Header]) -> List[_Header]: ...

@final
class Refusal:
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> List[_Header]: ...
    @property
    def body(self) -> bytes: ...

class RateLimits:
    def __init__(
        self,
        rules: Sequence[Rule] = (),
        path: Optional[_Path] = None,
        capacity: int = 100_000,
        *,
        trusted_proxies: Optional[Sequence[str]] = None,
        hops: int = 0,
        source: str = "x-forwarded-for",
        ipv4_prefix: int = 32,
        ipv6_prefix: int = 64,
        status: int = 429,
        headers_on_allowed: bool = True,
        x_rate_limit: bool = False,
        always_verdict: bool = False,
        clock: Optional[_Clock] = None,
    ) -> None: ...
    def judge(
        self,
        method: str,
        path: bytes,
        headers: List[_Header],
        peer: Optional[str],
        request: Any,
        route: Optional[str] = None,
        prefix: int = 0,
    ) -> Union[Passing, Refusal]: ...
    def limit(
        self,
        limit: Union[str, Sequence[str]],
        key: Union[None, _RouteKeyPart, Sequence[_RouteKeyPart]] = None,
        *,
        name: Optional[str] = None,
        respond: Optional[Callable[[Any, Refusal], Tuple[str, bytes]]] = None,
        cost: Union[None, _Cost, _Later[_Cost]] = None,
        cost_after: Optional[Callable[[int, List[_Header]], _Cost]] = None,
        settled: bool = False,
        missing: Union[None, Literal["share", "skip"], int] = None,
        exempt: Optional[_Later[object]] = None,
        plans: Optional[Mapping[str, Tuple[str, _Later[object]]]] = None,
        limit_by: Optional[_Later[Optional[str]]] = None,
        action: Optional[_Action] = None,
        max_delay: Optional[float] = None,
        max_cost: Optional[_Cost] = None,
    ) -> Callable[[_View], _View]: ...
    def dependency(
        self,
        limit: Union[str, Sequence[str]],
        key: Union[None, _RouteKeyPart, Sequence[_RouteKeyPart]] = None,
        *,
        name: Optional[str] = None,
        cost: Union[None, _Cost, _Later[_Cost]] = None,
        settled: bool = False,
        missing: Union[None, Literal["share", "skip"], int] = None,
        exempt: Optional[_Later[object]] = None,
        plans: Optional[Mapping[str, Tuple[str, _Later[object]]]] = None,
        limit_by: Optional[_Later[Optional[str]]] = None,
        action: Optional[_Action] = None,
        max_delay: Optional[float] = None,
        max_cost: Optional[_Cost] = None,
    ) -> Callable[..., Coroutine[Any, Any, Optional[Decision]]]: ...
    @property
    def headers(self) -> List[str]: ...
    @property
    def names(self) -> List[str]: ...
    @property
    def reads_target(self) -> bool: ...
    @property
    def reads_route(self) -> bool: ...
    def change(self, name: str, limit: str) -> None: ...
    def reset(self, name: str, key: _Key) -> None: ...
    def refund(self, name: str, key: _Key, cost: Optional[_Cost] = None) -> None: ...
