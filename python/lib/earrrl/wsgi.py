"""Rate limits for WSGI: Flask, Django, Bottle, Pyramid and every other framework.

>>> from earrrl import RateLimits, Rule
>>> from earrrl.wsgi import RateLimitMiddleware
>>> def app(environ, start_response):
...     start_response("200 OK", [])
...     return [b"hello"]
>>> app = RateLimitMiddleware(app, RateLimits([Rule("address", "gcra 1/h burst=1")]))
>>> environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.7"}
>>> for _ in range(2):
...     body = app(environ, lambda status, headers, error=None: print(status, dict(headers)["ratelimit"]))
200 OK "address";r=0;t=3600
429 Too Many Requests "address";r=0;t=3600
"""

import time
from http import HTTPStatus

from . import Refusal
from ._arguments import check
from ._judge import EnvironJudge, added, refused, texts
from ._routes import route_of_wsgi


class RateLimitMiddleware:
    """Judges each request before the application that it wraps.

    Denied requests get status 429 with problem details, ``Retry-After`` and ``RateLimit``. A handler finds the decision on
    a request that is passed on over its limit in ``environ["earrrl.verdict"]``, and the handle that charges later costs in
    ``environ["earrrl.settlement"]``.

    ``respond(environ, refusal)`` may return another type and body for denied requests: ``("text/plain", b"Not so fast!")``.
    """

    def __init__(self, app, limits, respond=None):
        check("wsgi", app, limits)
        self.app = app
        self.limits = limits
        self.respond = respond
        self._judge = EnvironJudge(limits)
        self._reads_route = limits.reads_route

    def __call__(self, environ, start_response):
        route = route_of_wsgi(self.app, environ) if self._reads_route else None
        judged = self._judge(environ, environ, route)
        if type(judged) is Refusal:
            return self._refuse(judged, environ, start_response)
        if judged.delay:
            time.sleep(judged.delay)
        environ["earrrl.verdict"], environ["earrrl.settlement"] = judged.enter()
        return self._pass_on(judged, environ, start_response)

    def _pass_on(self, passing, environ, start_response):
        answered = False

        def start_with_headers(status, headers, *error):
            nonlocal answered
            if not answered:
                answered = True
                headers = headers + added(passing, int(status[:3]), headers)
            return start_response(status, headers, *error)

        def started_later(body):
            """Passes on the body of an application that is a generator, and starts the response with its first part."""
            try:
                yield from body
            finally:
                getattr(body, "close", tuple)()
                if not answered:
                    passing.leave(499, [])

        try:
            body = self.app(environ, start_with_headers)
        except BaseException:
            if not answered:
                passing.leave(499, [])
            raise
        return body if answered else started_later(body)

    def _refuse(self, refusal, environ, start_response):
        headers, body = refused(refusal, self.respond, environ)
        start_response(_status_line(refusal.status), [*texts(headers), ("content-length", str(len(body)))])
        return [body]


def _status_line(status):
    """Returns a status with its reason, which WSGI demands for statuses without one, too."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Error"
