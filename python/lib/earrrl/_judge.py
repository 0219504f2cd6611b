"""Judging a request as ASGI or WSGI describes it, for the middlewares and for limits on routes."""


def judge_scope(limits, scope, request, route=None):
    """Judges the request of an ASGI scope. The functions of the rules get ``request``."""
    peer = scope.get("client")
    # Frameworks find the route by the decoded path, not by the spelling in `raw_path`.
    path = scope["path"].encode(errors="replace")
    # Starlette adds the prefixes of mounted applications to `root_path`, to which the rules' paths belong.
    root = scope.get("app_root_path", scope.get("root_path", "")).rstrip("/").encode(errors="replace")
    prefix = len(root) if path.startswith(root + b"/") else 0
    return limits.judge(scope.get("method", "GET"), path, list(scope["headers"]), peer and peer[0], request, route, prefix)


class EnvironJudge:
    """Judges requests of WSGI environments, whose names of headers it knows once for all requests."""

    def __init__(self, limits):
        self._limits = limits
        self._reads_target = limits.reads_target
        names = ((name, name.upper().replace("-", "_")) for name in limits.headers)
        self._headers = [(name.encode(), key if key == "CONTENT_TYPE" else f"HTTP_{key}") for name, key in names]

    def __call__(self, environ, request, route=None):
        """Judges the request of an environment. The functions of the rules get ``request``."""
        headers = [(name, environ[key].encode("latin-1", "replace")) for name, key in self._headers if key in environ]
        path, prefix = b"/", environ.get("SCRIPT_NAME", "")
        if self._reads_target:
            path = (prefix + environ.get("PATH_INFO", "")).encode("latin-1", "replace")
        return self._limits.judge(environ["REQUEST_METHOD"], path, headers, environ.get("REMOTE_ADDR"), request, route, len(prefix))


def refused(refusal, respond, request):
    """Returns the headers and the body of a denial, for which a function of the application may choose another body."""
    headers, body = refusal.headers, refusal.body
    if respond:
        kind, body = respond(request, refusal)
        headers = [header for header in headers if header[0] != b"content-type"] + [(b"content-type", kind.encode())]
    return headers, body


def added(passing, status, headers):
    """Returns the headers to add to a response, whose own are ``headers``; all of them are texts, as WSGI has them."""
    return texts(passing.leave(status, raw(headers) if passing.reads_response else []))


def texts(headers):
    """Returns headers as texts, as WSGI has them."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def raw(headers):
    """Returns texts as bytes, as ASGI has headers."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
