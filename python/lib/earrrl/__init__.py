"""Rate limits in process: exact, bounded in memory, and shared by all processes of a host that open one file.

>>> from earrrl import Limiter
>>> limiter = Limiter("gcra 5/m burst=5")
>>> [bool(limiter.check("alice")) for _ in range(6)]
[True, True, True, True, True, False]
>>> decision = limiter.check("alice")
>>> decision.allowed, decision.remaining, 0 < decision.retry_after <= 12
(False, 0, True)

With ``path=``, all processes that open the file share the limit, and a process that is killed comes back with it.

>>> import tempfile
>>> path = tempfile.mkdtemp() + "/login"
>>> one, other = Limiter("gcra 1/h burst=1", path=path), Limiter("gcra 1/h burst=1", path=path)
>>> one.check("alice").allowed, other.check("alice").allowed
(True, False)
"""

from ._native import Decision, Engine, Limiter, ManualClock, Passing, Refusal, Rule, Settlement, __version__
from ._rate_limits import RateLimits

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
