"""The storage for `limits` over a server."""

import asyncio
import os
import socket
import threading
import time

import pytest
from limits import parse
from limits.aio.strategies import FixedWindowRateLimiter as AsyncFixedWindowRateLimiter
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

import earrrl.limits


@pytest.mark.parametrize("place", [0, 1], ids=["tcp", "unix"])
@pytest.mark.parametrize("strategy", [FixedWindowRateLimiter, SlidingWindowCounterRateLimiter])
def test_strategies(server, place, strategy):
    limiter, other = (strategy(storage_from_string(server[place])) for _ in range(2))
    limit, key = parse("5/day"), f"{strategy.__name__} {place} \r\n é"
    for used in range(5):
        assert limiter.get_window_stats(limit, key).remaining == 5 - used
        assert limiter.test(limit, key) and limiter.hit(limit, key)
    for limiter in (limiter, other):
        assert not limiter.test(limit, key) and not limiter.hit(limit, key)
        stats = limiter.get_window_stats(limit, key)
        assert stats.remaining == 0 and time.time() < stats.reset_time <= time.time() + 86400
    assert limiter.storage.check()
    for refused in (lambda: limiter.clear(limit, key), limiter.storage.reset):
        with pytest.raises(NotImplementedError, match="a server cannot clear the counts of limits"):
            refused()


def test_asynchronous_strategies(server):
    async def work():
        limiter = AsyncFixedWindowRateLimiter(storage_from_string(f"async+{server[0]}"))
        hits = await asyncio.gather(*(limiter.hit(parse("7/day"), "alice") for _ in range(50)))
        assert sum(hits) == 7 and await limiter.storage.check()
        assert time.time() < (await limiter.get_window_stats(parse("7/day"), "alice")).reset_time <= time.time() + 86400
        with pytest.raises(NotImplementedError, match="a server cannot clear the counts of limits"):
            await limiter.storage.reset()

    asyncio.run(work())


def test_threads_and_children_have_connections_of_their_own(server):
    limiter = FixedWindowRateLimiter(storage_from_string(server[0]))
    limit = parse("100/day")
    assert limiter.hit(limit, "shared")
    threads = [threading.Thread(target=lambda: [limiter.hit(limit, "shared") for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(3):
        if (child := os.fork()) == 0:
            os._exit(0 if all(limiter.hit(limit, "shared") for _ in range(10)) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert limiter.get_window_stats(limit, "shared").remaining == 29


def test_tokens_of_uris_are_decoded():
    commands = []
    uri = answering(b"-ERR no\r\n", seen=commands).replace("//", "//:a%2Fb@")
    with pytest.raises(RuntimeError):
        storage_from_string(uri).incr("key", 60)
    assert commands == [b"*2\r\n$4\r\nAUTH\r\n$3\r\na/b\r\n"]


def answering(*answers, seen=None):
    """Starts a server that gives these answers, each to one connection; returns its URI."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for answer in answers:
            connection = listener.accept()[0]
            command = connection.recv(1000)
            if seen is not None:
                seen.append(command)
            connection.sendall(answer)
            connection.close()
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"earrrl://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"-ERR rule: no\r\n", RuntimeError),
        (b"", ConnectionError),
        (b"$3\r\nfoo\r\n", ConnectionError),
        (b"*99999999999\r\n", ConnectionError),
        (b"*2\r\n$9\r\nremaining\r\n$1\r\nx\r\n", ConnectionError),
        (b"*2\r\n$3\r\nfoo\r\n$-1\r\n", ConnectionError),
        (b"*2\r\n$9\r\n" + b"r" * 100_000, ConnectionError),
        (b"\xff\xfe\r\n", ConnectionError),
        ("é".encode(), ConnectionError),
    ],
)
def test_answers_of_other_servers(answer, error):
    with pytest.raises(error, match="the server"):
        storage_from_string(answering(answer)).incr("key", 60)


def test_servers_that_are_not_reached():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    storage = storage_from_string(f"earrrl://127.0.0.1:{port}")
    assert not storage.check()
    with pytest.raises(ConnectionError, match=f"the server at 127.0.0.1:{port}: "):
        storage.incr("key", 60)
    with pytest.raises(StorageError):
        storage_from_string(f"earrrl://127.0.0.1:{port}", wrap_exceptions=True).incr("key", 60)
    with pytest.raises(ConnectionError):
        storage_from_string("earrrl+unix:///nowhere/earrrl.sock").incr("key", 60)
    with pytest.raises(ConfigurationError):
        storage_from_string("earrrl://127.0.0.1:99999999")
