"""The class ``RateLimits``: the rules of a service, and limits on single routes."""

from threading import Lock

from . import _native  # type: ignore[attr-defined]
from ._judge import EnvironJudge
from ._route_limit import RouteLimit

# The greatest number of limits on routes, each of which has memory of its own. An application that makes a limit in each
# request would have a new one each time, which limits nothing.
_MOST_ROUTES = 1000


class RateLimits(_native.RateLimits):
    """The rules of a service, which the middlewares take, and limits on routes.

    >>> from earrrl import RateLimits, Rule
    >>> limits = RateLimits([Rule("address", "gcra 5/s burst=20")], trusted_proxies=["10.0.0.0/8"])
    >>> limits.change("address", "gcra 10/s burst=40")
    >>> @limits.limit("5/minute")
    ... def login(request): ...
    """

    __module__ = "earrrl"

    def __init__(self, rules=(), path=None, capacity=100_000, **options):
        self._options = {"path": path, "capacity": capacity, **options}
        # The limits on routes by the names of their rules, each with its settings.
        self._routes = {name: (None, super(RateLimits, self)) for name in self.names}
        self._lock = Lock()

    def limit(self, limit, key=None, *, name=None, respond=None, **options):
        """Returns a decorator for a view of Flask, Starlette, FastAPI or Django, which stands below that of the route."""
        return RouteLimit(self, limit, key, name, respond, options)

    def dependency(self, limit, key=None, *, name=None, **options):
        """Returns a dependency for FastAPI: each route that has it has a limit of its own, unless a ``name`` is given."""
        return RouteLimit(self, limit, key, name, None, options).dependency()

    def change(self, name, limit):
        """Changes the limit of a rule or plan while requests go on."""
        self._with(name).change(name, limit)

    def reset(self, name, key):
        """Forgets a client of a rule or plan."""
        self._with(name).reset(name, key)

    def refund(self, name, key, cost=None):
        """Takes back one request of a client under a rule or plan."""
        self._with(name).refund(name, key, cost)

    def _with(self, name):
        """Returns the limits among which a rule or plan is."""
        return self._routes.get(name, (None, super()))[1]

    def _route(self, name, rules_of, settings, is_fixed):
        """Returns the limits of a route, whose rules get names that begin with ``name``.

        Equal settings share a limit. Others of the same name are an error if users have chosen it; if it is that of a
        view, they get a number.
        """
        with self._lock:
            number, base = 1, name
            while True:
                rules = rules_of(base)
                known = self._routes.get(base)
                if known and known[0] == settings:
                    return known[1]
                limits = None if known else _RouteRules(rules, **self._options)
                if limits and not any(taken in self._routes for taken in limits.names):
                    if len(self._routes) >= _MOST_ROUTES:
                        raise ValueError(f"limit: {_MOST_ROUTES} limits on routes are in use, which is the most; make a limit once, not in each request")
                    self._routes.update((taken, (settings, limits)) for taken in limits.names)
                    return limits
                if is_fixed:
                    raise ValueError(f"name: {name!r} is there already, with other settings; choose another name")
                number += 1
                base = f"{name[:60]}-{number}"


class _RouteRules(_native.RateLimits):
    """The rules of a route."""

    def __init__(self, rules, **options):
        self.of_environ = EnvironJudge(self)
