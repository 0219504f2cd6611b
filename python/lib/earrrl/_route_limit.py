"""A limit on one route: a decorator of views, and a dependency of FastAPI."""

import functools
import inspect
import itertools
import re
import sys
import time
import typing

from . import _native  # type: ignore[attr-defined]
from ._frameworks import CONNECTION, LIMITED, RESPONSE, visit_of

# The numbers of the parameters in which FastAPI passes what dependencies have found.
_numbers = itertools.count()


class RouteLimit:
    """A limit, before it is known for which route it is.

    Its functions get the framework's request. If one of them is asynchronous or a dependency of FastAPI, all are asked
    before the request is judged, and the rules read their answers.
    """

    def __init__(self, limits, limit, key, name, respond, options):
        self._limits = limits
        self._name = name
        self._respond = respond
        texts = [text.strip() for text in limit.split(";")] if isinstance(limit, str) else list(limit)
        if not texts:
            raise ValueError("limit: an empty list; expected at least one limit, such as 5/minute")
        if (option := next((one for one in ("plans", "limit_by") if options.get(one)), None)) and len(texts) > 1:
            raise ValueError(f"{option}: a limit with {option} has one text")
        if "paths" in options:
            raise TypeError("paths: a limit on a route is for all paths of the route; use a Rule of the middleware")
        self._settings = (texts, key, options)
        self._functions = _Functions(key, options)
        self._rules("limit")
        if name is not None:
            self._of(None)

    def __call__(self, view):
        """Returns the view with the limit. It is as asynchronous as the view."""
        if inspect.isgeneratorfunction(view) or inspect.isasyncgenfunction(view):
            raise TypeError(f"limit: {_called(view)} is a generator, whose response has begun before it is asked; use Depends(limits.dependency(…))")
        limits, functions, names = self._of(view), self._functions, (CONNECTION, RESPONSE)
        if _returns_coroutine(view):

            @functools.wraps(view)
            async def limited(*args, **kwargs):
                visit = visit_of(view, args, kwargs, names)
                judged = visit.judge(limits, await functions.ask(visit.request, kwargs) if functions.are_asked else visit.request)
                if type(judged) is _native.Refusal:
                    return visit.refuse(judged, self._respond)
                if judged.delay:
                    await _pause(judged.delay)
                visit.enter(judged)
                try:
                    result = await view(*args, **kwargs)
                except BaseException as error:
                    visit.failed(judged, error)
                    raise
                return visit.answered(judged, result)

        else:
            if asynchronous := functions.asynchronous:
                raise TypeError(f"{asynchronous} is asynchronous, but {_called(view)} is not: write `async def {_called(view)}`, or a function that returns its value at once")

            @functools.wraps(view)
            def limited(*args, **kwargs):
                visit = visit_of(view, args, kwargs, names)
                judged = visit.judge(limits, _at_once(functions.ask(visit.request, kwargs)) if functions.are_asked else visit.request)
                if type(judged) is _native.Refusal:
                    return visit.refuse(judged, self._respond)
                if judged.delay:
                    time.sleep(judged.delay)
                visit.enter(judged)
                try:
                    result = view(*args, **kwargs)
                except BaseException as error:
                    visit.failed(judged, error)
                    raise
                return visit.answered(judged, result)

        setattr(limited, LIMITED, True)
        if "fastapi" in sys.modules:
            limited.__signature__, names = self._signature(view)
        return limited

    def dependency(self):
        """Returns the dependency. Its value is the decision, if there is one."""
        from ._starlette import Visit

        if "cost_after" in self._settings[2]:
            raise TypeError("cost_after: a dependency does not see the response; use limits.limit")
        functions = self._functions
        routes = {}

        async def limited(**kwargs):
            visit = Visit(kwargs.pop(CONNECTION), kwargs.pop(RESPONSE))
            endpoint = visit.request.scope["endpoint"]
            limits = routes.get(endpoint) or routes.setdefault(endpoint, self._of(endpoint))
            judged = visit.judge(limits, await functions.ask(visit.request, kwargs) if functions.are_asked else visit.request)
            if type(judged) is _native.Refusal:
                visit.refuse(judged, None)
            if judged.delay:
                await _pause(judged.delay)
            visit.enter(judged)
            visit.answered(judged, None)
            return visit.request.state.earrrl_verdict

        limited.__signature__, _ = self._signature(None)
        return limited

    def _of(self, view):
        """Returns the limits of a view."""
        name = self._name or _name_of(view)
        return self._limits._route(name, self._rules, (*self._settings, self._name or _identity(view)), self._name is not None)

    def _rules(self, name):
        """Returns the rules with their names."""
        texts, _, options = self._settings
        options = {**options, **self._functions.of_rule}
        if plans := options.get("plans"):
            options["plans"] = {f"{name}-{plan}": value for plan, value in plans.items()}
        return [_native.Rule(name if not place else f"{name}-{place + 1}", text, **options) for place, text in enumerate(texts)]

    def _signature(self, view):
        """Returns the signature of a view with the parameters that FastAPI passes to the limit, and the names of those for
        the request and the response."""
        from fastapi import Response
        from starlette.requests import HTTPConnection

        signature = inspect.signature(view) if view else inspect.Signature()
        try:
            hints = typing.get_type_hints(view, include_extras=True) if view else {}
        except Exception:
            # FastAPI reports names that are not known.
            hints = {}
        own = [one.replace(annotation=hints.get(one.name, one.annotation)) for one in signature.parameters.values()]
        wanted = {CONNECTION: HTTPConnection, RESPONSE: Response}
        names = {name: next((one.name for one in own if _passes(one, kind)), name) for name, kind in wanted.items()}
        added = {names[name]: (kind, inspect.Parameter.empty) for name, kind in wanted.items()}
        added |= {name: (typing.Any, found) for name, found in self._functions.dependencies.values()}
        known = signature.parameters
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
                      for name, (kind, default) in added.items() if name not in known]
        rest = [own.pop()] if own and own[-1].kind is inspect.Parameter.VAR_KEYWORD else []
        return signature.replace(parameters=own + parameters + rest), (*names.values(),)


class _Functions:
    """The functions of a limit, in the order in which they are asked."""

    def __init__(self, key, options):
        parts = key if isinstance(key, (list, tuple)) else [key]
        plans = options.get("plans") or {}
        conditions = [condition for _, condition in plans.values()]
        options_of = {"exempt": [options.get("exempt")], "key": parts, "plans": conditions,
                      "limit_by": [options.get("limit_by")], "cost": [options.get("cost")]}
        self._asked = [(option, value) for option, values in options_of.items() for value in values if callable(value) or _is_dependency(value)]
        # Each dependency with the name of the parameter in which FastAPI passes what it has found.
        self.dependencies = {place: (f"_earrrl_found_{next(_numbers)}", value)
                             for place, (_, value) in enumerate(self._asked) if _is_dependency(value)}
        # The first asynchronous function, as errors name it.
        self.asynchronous = next((f"{option}: {_called(value)}" for option, value in self._asked if _is_asynchronous(value)), None)
        self.are_asked = bool(self.dependencies or self.asynchronous)
        self.of_rule = {"key": key}
        if self.are_asked:
            places = iter(range(len(self._asked)))
            exempt, parts, conditions, limit_by, cost = ([self._reader(value, places) for value in values] for values in options_of.values())
            plans = {name: (text, condition) for (name, (text, _)), condition in zip(plans.items(), conditions)}
            self.of_rule = {"key": parts if len(parts) > 1 else parts[0], "exempt": exempt[0], "plans": plans or None, "limit_by": limit_by[0], "cost": cost[0]}

    def _reader(self, value, places):
        """Returns a function that reads an answer, in place of the function that gives it."""
        if not (callable(value) or _is_dependency(value)):
            return value
        place = next(places)

        def answer(answers):
            return answers[place]

        answer.__qualname__ = _called(value)
        return answer

    async def ask(self, request, kwargs):
        """Returns the answers of all functions that are needed, and takes those that FastAPI has found from ``kwargs``."""
        answers = [None] * len(self._asked)
        found = {place: kwargs.pop(name) for place, (name, _) in self.dependencies.items()}
        done = set()
        for place, (option, function) in enumerate(self._asked):
            if "exempt" in done or option in done:
                continue
            value = found[place] if place in found else function(request)
            answers[place] = await value if inspect.isawaitable(value) else value
            if option in ("exempt", "plans") and answers[place]:
                done.add(option)
        return answers


def _at_once(work):
    """Returns the result of a coroutine that does not wait."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    finally:
        work.close()
    raise TypeError("a function of a limit returned something to be awaited; expected a value")


async def _pause(delay):
    import asyncio

    await asyncio.sleep(delay)


def _is_dependency(value):
    return type(value).__module__ == "fastapi.params" and hasattr(value, "dependency")


def _passes(parameter, kind):
    """Returns whether FastAPI passes the request or the response, of this type, in a parameter of a view."""
    from starlette.requests import Request
    from starlette.websockets import WebSocket

    annotation = parameter.annotation
    found, *metadata = typing.get_args(annotation) if hasattr(annotation, "__metadata__") else [annotation]
    if any(map(_is_dependency, (*metadata, parameter.default))) or not isinstance(found, type):
        return False
    return issubclass(found, kind) and not issubclass(found, (Request, WebSocket))


def _owner(view):
    """Returns the view that is a class of a method that Django's ``method_decorator`` has bound; ``None`` for others."""
    bound = inspect.unwrap(view, stop=lambda one: isinstance(one, functools.partial))
    return getattr(getattr(bound, "func", None), "__self__", None)


def _returns_coroutine(view):
    """Returns whether the result of a view is awaited. Django's ``dispatch`` and the functions of ``as_view`` say it by an
    attribute, the latter to ``inspect`` only from Python 3.12 on."""
    return inspect.iscoroutinefunction(view) or hasattr(view, "_is_coroutine") or getattr(_owner(view), "view_is_async", False)


def _is_asynchronous(function):
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def _called(function):
    return getattr(getattr(function, "dependency", function), "__qualname__", type(function).__name__)


def _identity(view):
    """Returns what is the same for all copies of a view, such as the methods that Django binds for each request. Classes
    inherit ``dispatch``, and Flask makes one function of each, but each is a view of its own."""
    owner, name = _owner(view), getattr(view, "__name__", None)
    view = inspect.unwrap(getattr(view, "view_class", view))
    return owner and type(owner), getattr(view, "__code__", view), name


def _name_of(view):
    """Returns the name of a rule from the module and the name of a view."""
    if owner := _owner(view):
        module, called = type(owner).__module__, f"{_called(type(owner))}.{view.__name__}"
    else:
        view = getattr(view, "view_class", view)
        module, called = getattr(view, "__module__", ""), _called(view)
        # Flask gives the functions of classes the names of their endpoints.
        if not called.endswith(name := getattr(view, "__name__", "")):
            called = name
    full = f"{module}-{called}".replace("<locals>", "").lower()
    return re.sub("[^a-z0-9_]+", "-", full).strip("-_")[-64:].lstrip("-_") or "limit"
