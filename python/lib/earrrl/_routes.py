"""The route of a request, as its framework names it: the key ``route``.

The middlewares of an application run before it looks for the route. Flask and Django can be asked in advance; Starlette
and FastAPI know the route where the middleware is one of the route itself.
"""


def route_of_asgi(app, scope):
    """Returns the route, the empty text if the path has none, or ``None`` if it is not known yet."""
    route = scope.get("route")
    if route is not None:
        return route.path
    if _is_django(app):
        return _django(scope["path"])
    return None


def route_of_wsgi(app, environ):
    """Returns the route, the empty text if the path has none, or ``None`` if it is not known yet."""
    # `app.wsgi_app` is a method of Flask's application.
    routes = getattr(getattr(app, "__self__", app), "url_map", None)
    if routes is not None:
        return _werkzeug(routes, environ)
    return _django(environ.get("PATH_INFO", "")) if _is_django(app) else None


def _werkzeug(routes, environ):
    from werkzeug.exceptions import HTTPException
    from werkzeug.routing import RequestRedirect

    try:
        rule, _ = routes.bind_to_environ(environ).match(return_rule=True)
        return rule.rule
    except (HTTPException, RequestRedirect):
        return ""


def _is_django(app):
    return type(app).__module__.startswith("django.core.handlers.")


def _django(path):
    from django.urls import Resolver404, resolve  # type: ignore[import-untyped]

    try:
        return resolve(path).route
    except Resolver404:
        return ""
