"""Requests of Flask and Django for limits on routes, and the choice of the framework; `_starlette.py` has the third.

A visit is one request at its view. It judges the request, refuses it as its framework does, and adds the headers to
the response.
"""

import sys

from ._judge import added, refused, texts

# The parameters in which FastAPI passes the request and the headers of the response, unless the view has its own for them:
# FastAPI passes each of the two in one parameter only.
CONNECTION, RESPONSE = "_earrrl_connection", "_earrrl_response"
# The attribute of views that have a limit.
LIMITED = "_earrrl_limited"


def visit_of(view, args, kwargs, names=(CONNECTION, RESPONSE)):
    """Returns the visit of a call of a view, and takes what is only for the limit from its arguments.

    ``names`` are those of the parameters for the request and the response.
    """
    connection, response = map(kwargs.get, names)
    if not hasattr(view, LIMITED):
        # A view that has another limit needs them, too.
        kwargs.pop(CONNECTION, None), kwargs.pop(RESPONSE, None)
    if connection is not None:
        return _of_starlette().Visit(connection, response)
    django, starlette, flask = map(sys.modules.get, ("django.http", "starlette.requests", "flask"))
    for value in (*args[:2], *kwargs.values()):
        # The requests of Django's REST framework have Django's inside.
        value = getattr(value, "_request", value)
        if django and isinstance(value, django.HttpRequest):
            return DjangoVisit(value)
        if starlette and isinstance(value, starlette.HTTPConnection):
            return _of_starlette().Visit(value, response)
    if flask and flask.has_request_context():
        return FlaskVisit(flask)
    name = getattr(view, "__qualname__", view)
    raise TypeError(f"limit: {name} was called without a request; expected a view of Flask, Django, Starlette with its request, or FastAPI, imported before the decorator")


def _of_starlette():
    """Returns the module for Starlette, which is imported only where Starlette is in use."""
    from . import _starlette

    return _starlette


class _EnvironVisit:
    """The parts of a visit that are the same for Flask and Django."""

    def judge(self, limits, subject):
        return limits.of_environ(self._environ, subject, self._route)

    def enter(self, passing):
        self._environ["earrrl.verdict"], self._environ["earrrl.settlement"] = passing.enter()

    def failed(self, passing, error):
        """Does nothing, since other parts of the framework make a response of the error."""


class FlaskVisit(_EnvironVisit):
    def __init__(self, flask):
        self._flask = flask
        self.request = flask.request._get_current_object()
        self._environ = self.request.environ
        self._route = self.request.url_rule.rule if self.request.url_rule else ""

    def refuse(self, refusal, respond):
        """Raises the exception of the status, for which an application may have a handler."""
        from werkzeug.exceptions import HTTPException, default_exceptions

        headers, body = refused(refusal, respond, self.request)
        headers = texts(headers)
        response = self._flask.Response(body, refusal.status, headers)
        error = default_exceptions.get(refusal.status, HTTPException)(response=response)
        error.refusal = refusal
        self._after(lambda response: [pair for pair in headers if _is_missing(*pair, response.headers)])
        raise error

    def enter(self, passing):
        super().enter(passing)
        # Flask asks for the headers of every response, also of that of an error handler.
        self._after(lambda response: added(passing, response.status_code, response.headers.items()))

    def answered(self, passing, result):
        return result

    def _after(self, headers_of):
        def add(response):
            for name, value in headers_of(response):
                response.headers.add(name, value)
            return response

        self._flask.after_this_request(add)


def _is_missing(name, value, headers):
    """Returns whether the response of an error handler lacks a header of a denial. It has a type of its own."""
    if name.startswith("ratelimit"):
        # These have an item of each limit.
        return value not in headers.getlist(name)
    return name != "content-type" and name not in headers


class DjangoVisit(_EnvironVisit):
    def __init__(self, request):
        self.request = request
        self._environ = request.META
        match = request.resolver_match
        self._route = match.route if match else ""

    def refuse(self, refusal, respond):
        """Returns the response, which Django's own middlewares see."""
        from django.http import HttpResponse  # type: ignore[import-untyped]

        headers, body = refused(refusal, respond, self.request)
        return HttpResponse(body, status=refusal.status, headers=dict(texts(headers)))

    def answered(self, passing, result):
        for name, value in added(passing, result.status_code, result.items()):
            result[name] = f"{result[name]}, {value}" if name in result else value
        return result
