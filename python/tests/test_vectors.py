"""The vectors of testdata/, which the library's own tests use too."""

import json
import pathlib

import pytest

from earrrl import Limiter

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "vectors"
SECOND = 1_000_000_000
# Vectors count from 0, and a limiter's windows from the epoch: a whole number of days.
START = 20_000 * 86_400 * SECOND


def cases(name):
    return json.loads((VECTORS / f"{name}.json").read_text())["cases"]


def nanos(seconds):
    return START + round(seconds * SECOND)


def test_gcra():
    limiter = Limiter("gcra 1/s burst=5")
    for at, cost, allowed, remaining, reset_after, retry_after in json.loads((VECTORS / "gcra.json").read_text())["steps"]:
        decision = limiter.check_at("key", START + at, cost)
        assert (decision.allowed, decision.remaining, round(decision.reset_after * SECOND)) == (allowed, remaining, reset_after)
        never = decision.retry_after is None or decision.allowed
        assert (-1 if never else round(decision.retry_after * SECOND)) == retry_after


@pytest.mark.parametrize("case", cases("weighted_credits"), ids=lambda case: case["name"])
def test_credit_pools(case):
    units, seconds = case["refill"]
    limiter = Limiter(f"credit-pool {case['capacity']} refill={units}/{seconds}s")
    for at, cost, _, allowed, balance, retry_after, full_after in case["events"]:
        decision = limiter.check_at("key", nanos(at), cost)
        assert (decision.allowed, decision.remaining) == (allowed, int(balance + 1e-9))
        assert decision.retry_after == pytest.approx(retry_after, abs=1e-6)
        assert decision.reset_after == pytest.approx(full_after, abs=1e-6)


@pytest.mark.parametrize("case", cases("exponential"), ids=lambda case: f"{case['rule']} every {case['gap_s']} s")
def test_exponential(case):
    limiter = Limiter(case["rule"])
    period = int(case["rule"].split("/")[1].split("s")[0])
    expected = {place: (rate, allowed) for place, rate, allowed in case["rows"]}
    for place in range(case["requests"]):
        decision = limiter.check_at("key", nanos(place * case["gap_s"]), case["cost"])
        if place in expected:
            rate, allowed = expected[place]
            assert (decision.allowed, decision.rate) == (allowed, pytest.approx(rate / period, rel=1e-9))


WINDOWS = {
    "fixed": "fixed-window {quota}/{window}s",
    "sliding_log": "sliding-log {quota}/{window}s",
    "sliding_log_count_denied": "sliding-log {quota}/{window}s strict",
    "hybrid60": "sliding-window {quota}/{window}s sub-windows={parts} lenient",
    "hybrid61": "sliding-window {quota}/{window}s sub-windows={parts} harsh",
}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("case", [case for case in cases("sliding") if "decisions" in case], ids=lambda case: case["name"])
def test_windows(case, kind):
    if kind not in case["decisions"]:
        return
    rule = WINDOWS[kind].format(quota=case["quota"], window=case["window_s"], parts=case["sub_windows"])
    limiter = Limiter(rule)
    admitted = "".join("01"[limiter.check_at("key", START + at * 1_000_000).allowed] for at in case["times_ms"])
    assert admitted == case["decisions"][kind]
