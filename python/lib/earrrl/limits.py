"""A storage for the package `limits`, and so for slowapi and flask-limiter: exact across all processes of a host.

>>> import earrrl.limits
>>> from limits import parse
>>> from limits.storage import storage_from_string
>>> from limits.strategies import FixedWindowRateLimiter
>>> limiter = FixedWindowRateLimiter(storage_from_string("earrrl://"))
>>> [limiter.hit(parse("2/day"), "alice") for _ in range(3)]
[True, True, False]

``earrrl:///dev/shm/limits`` keeps the counts in the files of a directory, which all processes of the host share;
``earrrl://`` keeps them in this process. ``?capacity=1000000`` bounds the number of clients, for each kind of window.
``earrrl://127.0.0.1:6380`` and ``earrrl+unix:///run/earrrl.sock`` ask a server, which several hosts share.
"""

import asyncio
from functools import lru_cache
from urllib.parse import parse_qs, unquote, urlparse

from limits import parse
from limits.aio.storage import SlidingWindowCounterSupport as AsyncSlidingWindowCounterSupport
from limits.aio.storage import Storage as AsyncStorage
from limits.errors import ConfigurationError
from limits.storage import SlidingWindowCounterSupport, Storage
from limits.storage.base import TimestampedSlidingWindow

from ._native import ServerWindows, Windows

_DEFAULT_CAPACITY = 100_000
_DEFAULT_PORT = 6380


class EarrrlStorage(Storage, SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """The storage for synchronous code. A fixed window begins with a key's first request."""

    STORAGE_SCHEME = ["earrrl", "earrrl+unix"]

    def __init__(self, uri="earrrl://", wrap_exceptions=False, **options):
        super().__init__(uri, wrap_exceptions, **options)
        self._windows = _open_windows(uri, options)
        # What `flask limiter config` shows; without the token.
        self.storage = uri.rpartition("@")[2]

    @property
    def base_exceptions(self):
        return OSError

    def incr(self, key, expiry, amount=1):
        return self._windows.incr(key, expiry, amount)

    def get(self, key):
        return self._windows.get(key, _limit_of(key)[1])[0]

    def get_expiry(self, key):
        return self._windows.get(key, _limit_of(key)[1])[1]

    def check(self):
        return self._windows.check()

    def reset(self):
        return self._windows.reset()

    def clear(self, key):
        self._windows.clear(key, _limit_of(key)[1])

    def acquire_sliding_window_entry(self, key, limit, expiry, amount=1):
        return self._windows.acquire(key, limit, expiry, amount)

    def get_sliding_window(self, key, expiry):
        return self._windows.sliding(key, expiry, _limit_of(key)[0])

    def clear_sliding_window(self, key, expiry):
        self._windows.clear_sliding(key, expiry)


class AsyncEarrrlStorage(AsyncStorage, AsyncSlidingWindowCounterSupport, TimestampedSlidingWindow):
    """The storage for asynchronous code. A decision in this process takes a microsecond, so nothing is awaited."""

    STORAGE_SCHEME = ["async+earrrl", "async+earrrl+unix"]

    def __init__(self, uri="async+earrrl://", wrap_exceptions=False, **options):
        super().__init__(uri, wrap_exceptions, **options)
        self._windows = _open_windows(uri, options)

    @property
    def base_exceptions(self):
        return OSError

    async def _do(self, method, *arguments):
        """Calls a method; a thread waits for the answer of a server."""
        if isinstance(self._windows, ServerWindows):
            return await asyncio.to_thread(method, *arguments)
        return method(*arguments)

    async def incr(self, key, expiry, amount=1):
        return await self._do(self._windows.incr, key, expiry, amount)

    async def get(self, key):
        return (await self._do(self._windows.get, key, _limit_of(key)[1]))[0]

    async def get_expiry(self, key):
        return (await self._do(self._windows.get, key, _limit_of(key)[1]))[1]

    async def check(self):
        return await self._do(self._windows.check)

    async def reset(self):
        return self._windows.reset()

    async def clear(self, key):
        self._windows.clear(key, _limit_of(key)[1])

    async def acquire_sliding_window_entry(self, key, limit, expiry, amount=1):
        return await self._do(self._windows.acquire, key, limit, expiry, amount)

    async def get_sliding_window(self, key, expiry):
        return await self._do(self._windows.sliding, key, expiry, _limit_of(key)[0])

    async def clear_sliding_window(self, key, expiry):
        self._windows.clear_sliding(key, expiry)


def _open_windows(uri, options):
    """Returns the counters that a URI describes."""
    try:
        parts = urlparse(uri)
        path, token = unquote(parts.path), parts.password and unquote(parts.password)
        is_unix = parts.scheme.endswith("+unix")
        if path.strip("/") if parts.hostname else is_unix and not path:
            raise ValueError("a host with a path" if parts.hostname else "no path")
        if options.get("clock") and (is_unix or parts.hostname):
            raise ValueError("a clock, while a server has its own")
        if is_unix:
            return ServerWindows(None, path, token)
        if parts.hostname:
            host = parts.netloc.rpartition("@")[2]
            return ServerWindows(host if parts.port else f"{host}:{_DEFAULT_PORT}", None, token)
        capacity = options.get("capacity") or parse_qs(parts.query).get("capacity", [_DEFAULT_CAPACITY])[-1]
        return Windows(path or None, int(capacity), options.get("clock"))
    except (ValueError, OverflowError) as error:
        expected = "earrrl://, earrrl:///DIRECTORY, earrrl://HOST:PORT, or earrrl+unix:///SOCKET"
        raise ConfigurationError(f"{uri}: {error}; expected {expected}") from error


@lru_cache(maxsize=1000)
def _parse(amount, multiples, granularity):
    try:
        limit = parse(f"{amount} per {multiples} {granularity}")
        return limit.amount, limit.get_expiry()
    except ValueError:
        return None, None


def _limit_of(key):
    """Returns the amount and the window of a limit, which the strategies write at the end of its keys; None for other keys."""
    parts = str.rsplit(key, "/", 3)
    return _parse(*parts[1:]) if len(parts) == 4 else (None, None)
