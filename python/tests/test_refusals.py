"""Refused arguments: Python's exceptions with the library's messages."""

import re
from types import MappingProxyType

import pytest

from earrrl import Engine, Limiter, RateLimits, Rule, asgi, wsgi


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("recent-average 1/s half-life=0s",), ValueError, "column 30: half-life: 0ns is not from 1ms to ten years (3660d)"),
        (("gcra 1/s burst=many",), ValueError, "column 16: `many` is not a decimal number from 0 to 1e18"),
        (("concurrent 3 timeout=5s",), ValueError, "counts live reservations"),
        (("gcra 1/s burst=9", None, 0), ValueError, "capacity"),
        (("gcra 1/s burst=9", None, -1), OverflowError, "can't convert negative int"),
        (("gcra 1/s burst=9", "/proc/none/x"), OSError, "state file /proc/none"),
        ((b"gcra 1/s burst=9",), TypeError, "rule"),
        ((None,), TypeError, "rule"),
    ],
)
def test_limiters_that_cannot_be_built(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Limiter(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "ban"}, "action: \"ban\" is not deny, shadow-ban, quarantine, delay or observe"),
        ({"action": "delay"}, "max_delay: the action delay needs the longest delay, at most a day"),
        ({"action": "delay", "max_delay": float("nan")}, "max_delay: the action delay needs the longest delay, at most a day"),
        ({"max_delay": 3}, "max_delay: the action is deny; only delay has one"),
        ({"max_cost": 0}, "max_cost: 0 is not above 0"),
        ({"name": "Login"}, "name: `Login` is not 1 to 64 of a-z 0-9 _ -"),
    ],
)
def test_options_that_are_wrong(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Limiter("gcra 1/s burst=9", **options)


def test_clients_begin_afresh_under_another_algorithm(tmp_path):
    path = tmp_path / "states" / "login"
    kept = Limiter("gcra 1/d burst=2", path=path)
    assert [kept.check("alice").allowed for _ in range(3)] == [True, True, False]
    changed = Limiter("fixed-window 2/3650d", path=path)
    assert not kept.check("alice")
    assert [changed.check("alice").allowed for _ in range(3)] == [True, True, False]


def test_another_algorithm_in_a_path_is_warned_of(tmp_path):
    limits = [RateLimits([Rule("login", text)], path=tmp_path / "states") for text in ["gcra 1/s burst=2"] * 2]
    with pytest.warns(RuntimeWarning, match="rule login: begins afresh, since `token-bucket 2 refill=1/s` had other states"):
        RateLimits([Rule("login", "fixed-window 2/1s")], path=tmp_path / "states")
    assert limits


def test_limiters_of_a_file_apply_their_own_limit(tmp_path):
    path = tmp_path / "states" / "login"
    kept = Limiter("gcra 1/d burst=5", path=path)
    assert [kept.check("alice").allowed for _ in range(6)] == [True] * 5 + [False]
    changed = Limiter("gcra 1/d burst=7", path=path, capacity=7)
    assert not kept.check("alice")
    assert [changed.check("alice").allowed for _ in range(3)] == [True, True, False]
    assert [kept.check("bob").allowed for _ in range(6)] == [True] * 5 + [False]


@pytest.mark.parametrize("method", ["check", "peek", "charge", "refund"])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1.5,), TypeError, "key: expected str, bytes, int, UUID or Decimal, not float"),
        ((True,), TypeError, "key: expected str, bytes, int, UUID or Decimal, not bool"),
        ((None,), TypeError, "key: expected str, bytes, int, UUID or Decimal, not NoneType"),
        (("\ud800",), UnicodeEncodeError, "surrogates"),
        (("a", "1"), TypeError, "cost: expected an int or a float from 0 to 1e18, not str"),
        (("a", -1), ValueError, "cost: this int is not from 0 to 1e18"),
        (("a", 10**30), ValueError, "cost: this int is not from 0 to 1e18"),
        (("a", float("nan")), ValueError, "cost: `NaN` is not a number from 0 to 1e18"),
        (("a", -0.5), ValueError, "cost: `-0.5` is not a number from 0 to 1e18"),
    ],
)
def test_arguments_of_decisions(method, arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        getattr(Limiter("gcra 1/s burst=9"), method)(*arguments)


def test_a_cost_above_the_greatest_is_refused():
    with pytest.raises(ValueError, match="cost: 11 is above the rule's max_cost of 10"):
        Limiter("gcra 1/s burst=9", max_cost=10).check("a", 11)


@pytest.mark.parametrize(
    ("charges", "error"),
    [({"address": "a"}, KeyError), ({}, ValueError), ({"login": 1.5}, TypeError), ({"login": ("a",)}, TypeError), ([], TypeError),
     ({"login": ("a", "b")}, TypeError), ({1: "a"}, TypeError)],
)
def test_charges_of_an_engine(charges, error):
    with pytest.raises(error):
        Engine({"login": "gcra 1/s burst=9"}).check(charges)


def test_mappings_are_taken_for_dicts():
    engine = Engine(MappingProxyType({"login": "gcra 1/d burst=1"}))
    assert engine.check(MappingProxyType({"login": "alice"})) and not engine.check({"login": "alice"})
    Rule("address", "gcra 1/s burst=9", plans=MappingProxyType({"paid": ("gcra 5/s burst=9", bool)}))
    for wrong in ([], None, "login"):
        with pytest.raises(TypeError, match="charges: expected a mapping, not "):
            engine.check(wrong)
        with pytest.raises(TypeError, match="rules: expected a mapping, not "):
            Engine(wrong)
    with pytest.raises(TypeError, match="plans: expected a mapping, not list"):
        Rule("address", "gcra 1/s burst=9", plans=[])


def test_engines_that_cannot_be_built():
    with pytest.raises(ValueError, match="login: .*`1/x`|login: "):
        Engine({"login": "gcra 1/x burst=9"})
    with pytest.raises(ValueError, match="name: `LOGIN`"):
        Engine({"LOGIN": "gcra 1/s burst=9"})


@pytest.mark.parametrize("wrong", ["127.0.0.1", [b"10.0.0.0/8"], 5])
def test_trusted_proxies_are_a_list(wrong):
    with pytest.raises(TypeError, match=re.escape('trusted_proxies: expected a list of networks such as ["10.0.0.0/8"], not ')):
        RateLimits([], trusted_proxies=wrong)


class Application:
    """What frameworks give their middlewares: a method, or an object that is called."""

    def wsgi(self, environ, start_response):
        """An application of WSGI."""

    async def asgi(self, scope, receive, send):
        """An application of ASGI."""

    def either(self, *arguments, **options):
        """A wrapper that passes all arguments on."""


class AsgiObject(Application):
    __call__ = Application.asgi


class WsgiObject(Application):
    __call__ = Application.wsgi


def test_a_middleware_refuses_the_other_interface():
    limits = RateLimits([Rule("address", "gcra 1/s burst=9")])
    for middleware, right, others in [
        (asgi, "asgi", [Application().wsgi, WsgiObject(), lambda environ, start_response: 1]),
        (wsgi, "wsgi", [Application().asgi, AsgiObject(), lambda scope, receive, send: 1]),
    ]:
        for app in others:
            with pytest.raises(TypeError, match=f"app: earrrl.{right} is for {right.upper()}, but .*: use earrrl.[aw]sgi"):
                middleware.RateLimitMiddleware(app, limits)
        for wrong in ([Rule("address", "gcra 1/s burst=9")], None):
            with pytest.raises(TypeError, match=r"limits: expected RateLimits, as in RateLimits\(\[Rule\(…\)\]\), not "):
                middleware.RateLimitMiddleware(Application().either, wrong)
        for app in (Application().either, getattr(Application(), right), print):
            middleware.RateLimitMiddleware(app, limits)
