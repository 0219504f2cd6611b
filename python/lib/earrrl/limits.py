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
"""

from functools import lru_cache
from urllib.parse import parse_qs, urlparse

from limits import parse
from limits.aio.storage import SlidingWindowCounterSupport as AsyncSlidingWindowCounterSupport
from limits.aio.storage import Storage as AsyncStorage
from limits.errors import ConfigurationError
from limits.storage import SlidingWindowCounterSupport, Storage
from limits.storage.base import TimestampedSlidingWindow

from ._native import Windows

_DEFAULT_CAPACITY = 100_000


class EarrrlStorage(Storage, SlidingWindowCounterSupport, TimestampedSlidingWindow):
    """The storage for synchronous code. All windows begin at multiples of their length since the epoch."""

    STORAGE_SCHEME = ["earrrl"]

    def __init__(self, uri="earrrl://", wrap_exceptions=False, **options):
        super().__init__(uri, wrap_exceptions, **options)
        self._windows = _open_windows(uri, options)

    @property
    def base_exceptions(self):
        return OSError

    def incr(self, key, expiry, amount=1):
        return self._windows.incr(key, expiry, amount)

    def get(self, key):
        return self._windows.get(key, _window_of(key))[0]

    def get_expiry(self, key):
        return self._windows.get(key, _window_of(key))[1]

    def check(self):
        return True

    def reset(self):
        return self._windows.reset()

    def clear(self, key):
        self._windows.clear(key, _window_of(key))

    def acquire_sliding_window_entry(self, key, limit, expiry, amount=1):
        return self._windows.acquire(key, limit, expiry, amount)

    def get_sliding_window(self, key, expiry):
        return self._windows.sliding(key, expiry)

    def clear_sliding_window(self, key, expiry):
        self._windows.clear_sliding(key, expiry)


class AsyncEarrrlStorage(AsyncStorage, AsyncSlidingWindowCounterSupport, TimestampedSlidingWindow):
    """The storage for asynchronous code. A decision takes a microsecond, so nothing is awaited."""

    STORAGE_SCHEME = ["async+earrrl"]

    def __init__(self, uri="async+earrrl://", wrap_exceptions=False, **options):
        super().__init__(uri, wrap_exceptions, **options)
        self._windows = _open_windows(uri, options)

    @property
    def base_exceptions(self):
        return OSError

    async def incr(self, key, expiry, amount=1):
        return self._windows.incr(key, expiry, amount)

    async def get(self, key):
        return self._windows.get(key, _window_of(key))[0]

    async def get_expiry(self, key):
        return self._windows.get(key, _window_of(key))[1]

    async def check(self):
        return True

    async def reset(self):
        return self._windows.reset()

    async def clear(self, key):
        self._windows.clear(key, _window_of(key))

    async def acquire_sliding_window_entry(self, key, limit, expiry, amount=1):
        return self._windows.acquire(key, limit, expiry, amount)

    async def get_sliding_window(self, key, expiry):
        return self._windows.sliding(key, expiry)

    async def clear_sliding_window(self, key, expiry):
        self._windows.clear_sliding(key, expiry)


def _open_windows(uri, options):
    """Returns the counters that a URI describes."""
    parts = urlparse(uri)
    if parts.netloc:
        raise ConfigurationError(f"{uri}: expected earrrl:// or earrrl:///DIRECTORY, not a host")
    capacity = options.get("capacity") or parse_qs(parts.query).get("capacity", [_DEFAULT_CAPACITY])[-1]
    try:
        return Windows(parts.path or None, int(capacity))
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"{uri}: capacity: {capacity!r} is not a number of clients") from error


@lru_cache(maxsize=1000)
def _window(amount, multiples, granularity):
    try:
        return parse(f"{amount} per {multiples} {granularity}").get_expiry()
    except ValueError:
        return None


def _window_of(key):
    """Returns the seconds of a limit's window, which the strategies write at the end of its keys; None for other keys."""
    parts = key.rsplit("/", 3)
    return _window(*parts[1:]) if len(parts) == 4 else None
