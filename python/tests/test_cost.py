"""No call leaves memory behind."""

import gc
import os
import resource

import pytest
from limits import parse
from limits.storage import storage_from_string

import earrrl.limits
from earrrl import Engine, Limiter, Passing, RateLimits, Rule

CHECKS = 10_000_000 if os.environ.get("EARRRL_LONG") else 200_000


def bytes_in_use():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


LIMITER = Limiter("gcra 5/s burst=9", capacity=1000)
ENGINE = Engine({"login": "gcra 5/s burst=9", "log": "sliding-log 5/1s"}, capacity=1000)
STORAGE = storage_from_string("earrrl://?capacity=1000")
LIMITS = RateLimits([Rule("a", "gcra 5/s burst=9", [lambda scope: "key", "client"], cost_after=lambda status, headers: 1)], capacity=1000)


def check(turn):
    LIMITER.check(f"client {turn % 5000}").headers()


def check_several(turn):
    ENGINE.check({"login": f"{turn % 5000}", "log": (b"key", 0.5)})


def refuse(turn):
    for wrong in ((1.5,), ("a", "b"), ("\ud800",), ("a", -1)):
        with pytest.raises((TypeError, ValueError)):
            LIMITER.check(*wrong)


def judge(turn):
    judged = LIMITS.judge("GET", b"/", [(b"content-type", b"a")], f"10.0.0.{turn % 255}", {})
    if isinstance(judged, Passing):
        judged.enter()
        judged.leave(200, [(b"a", b"b")])
    else:
        assert judged.headers and judged.body


def build(turn):
    Limiter("gcra 5/s burst=9", capacity=1000)
    with pytest.raises(ValueError):
        Limiter("gcra 5/s burst=x")


def build_cycles(turn):
    limits = RateLimits([Rule("a", "gcra 5/s burst=9", exempt=lambda scope: limits)], capacity=1000)
    if turn % 50 == 0:
        gc.collect()


def store(turn):
    key = parse("5/minute").key_for(f"{turn % 5000}")
    STORAGE.incr(key, 60)
    STORAGE.get_expiry(key)
    STORAGE.acquire_sliding_window_entry(key, 5, 60)


@pytest.mark.parametrize(
    ("share", "work"), [(1, check), (4, check_several), (40, refuse), (8, judge), (200, build), (200, build_cycles), (20, store)],
)
def test_no_leak(share, work):
    for turn in range(20_000 // share):
        work(turn)
    before = bytes_in_use()
    for turn in range(CHECKS // share):
        work(turn)
    # An object that is left behind by each call takes 16 bytes at least.
    assert bytes_in_use() - before < max(2 << 20, 16 * CHECKS // share // 2)
