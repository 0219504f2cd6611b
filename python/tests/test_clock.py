"""The clock that tests of applications move: for limiters, engines, middlewares, limits on routes and storages."""

import time
from contextlib import contextmanager
from datetime import datetime, timezone
from unittest import mock

import earrrl.limits  # noqa: F401
import pytest
import time_machine
from conftest import asgi, wsgi
from earrrl import Engine, Limiter, ManualClock, Passing, RateLimits, Rule
from earrrl.asgi import RateLimitMiddleware as ForAsgi
from earrrl.wsgi import RateLimitMiddleware as ForWsgi
from fastapi import FastAPI
from flask import Flask
from freezegun import freeze_time
from limits import parse
from limits.errors import ConfigurationError
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter


def test_the_clock_stands_still_until_it_is_moved():
    clock = ManualClock(1_800_000_000.5)
    assert clock.time() == 1_800_000_000.5
    clock.advance(0.5)
    assert clock.time() == 1_800_000_001
    # By default, it begins with today, and so does every window of up to a day.
    assert ManualClock().time() % 86_400 == 0
    assert 0 <= time.time() - ManualClock().time() < 2 * 86_400


@pytest.mark.parametrize("wrong", [-1, float("nan"), 1e300])
def test_wrong_times(wrong):
    with pytest.raises(ValueError, match="start: .* is not a number of seconds from 0"):
        ManualClock(wrong)
    with pytest.raises(ValueError, match="seconds: .* is not a number of seconds from 0"):
        ManualClock().advance(wrong)


# The ways in which tests move `time.time`: each begins at an instant, and gives a function that moves it by seconds.
@contextmanager
def by_freezegun(start):
    with freeze_time(datetime.fromtimestamp(start, timezone.utc)) as frozen:
        yield frozen.tick


@contextmanager
def by_time_machine(start):
    with time_machine.travel(start, tick=False) as traveller:
        yield traveller.shift


@contextmanager
def by_mock(start):
    with mock.patch("time.time", return_value=start) as function:

        def move(seconds):
            function.return_value += seconds

        yield move


START = 1_800_000_000
MOVERS = pytest.mark.parametrize("moved", [by_freezegun, by_time_machine, by_mock])


@MOVERS
def test_time_time_is_followed(moved):
    with moved(START) as move:
        limiter = Limiter("gcra 10/s burst=1", clock="time.time")
        engine = Engine({"login": "gcra 10/s burst=1"}, clock="time.time")
        limits = RateLimits([Rule("login", "gcra 10/s burst=1")], clock="time.time")
        for check in (limiter.check, lambda key: engine.check({"login": key}), lambda key: isinstance(judge(limits), Passing)):
            # A tenth of a second is no whole number of nanoseconds in a time since the epoch.
            for _ in range(3):
                assert [bool(check("alice")) for _ in range(2)] == [True, False]
                move(0.1)
        limiter.check("alice")
        limiter.refund("alice")
        assert limiter.check("alice").at == round(time.time() * 1e6) * 1000


def judge(limits):
    return limits.judge("GET", b"/", [], "192.0.2.7", None)


@MOVERS
def test_limits_on_routes_and_storages_follow_time_time(moved):
    with moved(START) as move:
        limits, flask = RateLimits(clock="time.time"), Flask(__name__)

        @flask.get("/")
        @limits.limit("2/minute")
        def hello():
            return "hello"

        limiter = FixedWindowRateLimiter(storage_from_string("earrrl://", clock="time.time"))
        limit = parse("2/minute")
        for _ in range(2):
            assert [wsgi(flask)[0] for _ in range(3)] == [200, 200, 429]
            assert [limiter.hit(limit, "alice") for _ in range(3)] == [True, True, False]
            assert limiter.get_window_stats(limit, "alice").reset_time == time.time() + 60
            move(60)
        assert limiter.get_window_stats(limit, "alice").remaining == 2


@MOVERS
def test_a_time_that_goes_back_stands_still(moved):
    with moved(START):
        limiter = Limiter("gcra 1/m burst=1", clock="time.time")
        assert limiter.check("alice")
    # A second test begins earlier, and waits as long for the next request as the first would have.
    with moved(START - 3600) as move:
        assert not limiter.check("alice")
        move(60)
        assert limiter.check("alice")


def test_clocks_that_are_none():
    with pytest.raises(ValueError, match="clock: time is no clock; expected time.time or a ManualClock"):
        Limiter("5/m", clock="time")
    for make in (lambda: Engine({}, clock=time.time), lambda: RateLimits(clock=5)):
        with pytest.raises(TypeError, match='clock: expected a ManualClock or "time.time", not '):
            make()
    with mock.patch("time.time", return_value=-5):
        with pytest.raises(ValueError, match="time.time: -5.0 is not a number of seconds from 0"):
            Limiter("5/m", clock="time.time")
    limiter = Limiter("5/m", clock="time.time")
    for wrong, error in ((float("nan"), ValueError), ("now", TypeError)):
        with mock.patch("time.time", return_value=wrong), pytest.raises(error):
            limiter.check("alice")
    with mock.patch("time.time", side_effect=KeyError("mine")), pytest.raises(KeyError, match="mine"):
        limiter.check("alice")
    assert limiter.check("alice")


@pytest.mark.parametrize("rule", ["fixed-window 5/1m", "gcra 5/m burst=5", "sliding-log 5/1m", "recent-average 5/m half-life=1m", "token-bucket 5 refill=5/m"])
def test_limiters_and_engines(rule):
    clock = ManualClock()
    limiter = Limiter(rule, clock=clock)
    engine = Engine({"login": rule}, clock=clock)
    for check in (limiter.check, lambda key: engine.check({"login": key})):
        assert 5 <= [bool(check("alice")) for _ in range(50)].count(True) < 20
        assert not check("alice")
    clock.advance(3600)
    assert limiter.check("alice") and engine.check({"login": "alice"})


def test_middlewares():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    def other(environ, start_response):
        start_response("200 OK", [])
        return [b""]

    for call, made in ((asgi, lambda limits: ForAsgi(app, limits)), (wsgi, lambda limits: ForWsgi(other, limits))):
        clock = ManualClock()
        service = made(RateLimits([Rule("address", "gcra 1/h burst=1")], clock=clock))
        assert [call(service)[0] for _ in range(2)] == [200, 429]
        clock.advance(3600)
        assert call(service)[0] == 200


def test_limits_on_routes():
    clock = ManualClock()
    limits = RateLimits(clock=clock)
    api, flask = FastAPI(), Flask(__name__)

    @api.get("/")
    @limits.limit("2/minute")
    async def hello():
        return "hello"

    @flask.get("/")
    @limits.limit("2/minute")
    def hello_too():
        return "hello"

    for call, app in ((asgi, api), (wsgi, flask)):
        assert [call(app, headers=[("host", "a.example")])[0] for _ in range(3)] == [200, 200, 429]
        clock.advance(59)
        assert call(app, headers=[("host", "a.example")])[0] == 429
        clock.advance(1)
        assert call(app, headers=[("host", "a.example")])[0] == 200


@pytest.mark.parametrize("strategy", [FixedWindowRateLimiter, SlidingWindowCounterRateLimiter])
def test_storages(strategy):
    clock = ManualClock()
    limiter = strategy(storage_from_string("earrrl://", clock=clock))
    limit = parse("2/minute")
    assert [limiter.hit(limit, "alice") for _ in range(3)] == [True, True, False]
    clock.advance(120)
    assert limiter.hit(limit, "alice")
    if strategy is FixedWindowRateLimiter:
        assert limiter.get_window_stats(limit, "alice").reset_time == clock.time() + 60


def test_no_clock_beside_other_processes(tmp_path):
    clock = ManualClock()
    for make in (lambda: Limiter("gcra 1/s burst=1", path=tmp_path / "a", clock=clock), lambda: Engine({}, path=tmp_path / "b", clock=clock),
                 lambda: RateLimits(path=tmp_path / "c", clock=clock)):
        with pytest.raises(ValueError, match="clock: processes that share a path have the system's clock; expected one of both"):
            make()
    for uri in (f"earrrl://{tmp_path}/d", "earrrl://127.0.0.1:6380", "earrrl+unix:///run/a.sock"):
        with pytest.raises(ConfigurationError, match="clock"):
            storage_from_string(uri, clock=clock)
