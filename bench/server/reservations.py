#!/usr/bin/env python3
"""The price of a reservation with its commit, beside a check, over RESP: in memory and over Redis.

    bench/server/reservations.py BINARY [VALKEY_SERVER]

Prints the processor microseconds of the server and of Redis, user and system, and Redis's commands: medians of rounds
in which the two take turns, one request at a time, and the medians of the rounds' ratios, which other programs on the
machine change less. Then the bytes of memory for each live reservation.
"""

import glob
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request

from instructions import connected, free_port, resp

ROUNDS, REQUESTS, LIVE = 25, 1000, 50_000
# One thread, so that none wakes another.
CONFIG = """
[server]
threads = 1

[engine]
max_reservations = 100_000
%s

[[rule]]
name = "default"
limit = "token-bucket 1000000000 refill=1000/s"
"""
# A busy machine is no outage.
ENGINE = """
redis = "redis://127.0.0.1:%d"
deadline = "10s"
"""


class Process:
    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def cpu(self):
        """Returns the seconds of processor time so far."""
        threads = glob.glob(f"/proc/{self.process.pid}/task/*/schedstat")
        return sum(int(open(thread).read().split()[0]) for thread in threads) / 1e9


def ask(connection, *words):
    """Sends a command, and returns its answer, which is shorter than a packet."""
    connection.sendall(resp(*words))
    answer = connection.recv(1 << 16)
    if answer.startswith(b"-"):
        sys.exit(answer.decode())
    return answer


def info(redis, section, pattern):
    """Returns the sum of a number in a section of Redis's INFO."""
    return sum(int(number) for number in re.findall(pattern, ask(redis, b"INFO", section)))


def check(server, place):
    ask(server, b"EARRRL.CHECK", b"default", b"client-%d" % (place % 100))


def reserve(server, place):
    answer = ask(server, b"EARRRL.RESERVE", b"default", b"client-%d" % (place % 100), b"COST", b"20")
    return re.search(rb"reservation\r\n\$32\r\n(\w+)", answer)[1]


def reserve_and_commit(server, place):
    ask(server, b"EARRRL.COMMIT", reserve(server, place), b"COST", b"7")


def measure(work, server, process, redis, redis_process):
    """Returns the figures of one round for each request of `work`."""

    def figures():
        if not redis:
            return [process.cpu(), 0, 0]
        return [process.cpu(), redis_process.cpu(), info(redis, b"commandstats", rb"calls=(\d+)")]

    before = figures()
    for place in range(REQUESTS):
        work(server, place)
    return [(after - start) / REQUESTS for after, start in zip(figures(), before)]


def live_bytes(server, http, redis):
    """Returns the bytes for each live reservation: of the engine in memory, or of Redis."""
    used = rb"used_memory:(\d+)"
    before = info(redis, b"memory", used) if redis else 0
    for place in range(LIVE):
        reserve(server, place)
    if redis:
        return (info(redis, b"memory", used) - before) / LIVE
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics").read().decode()
    sizes = dict(re.findall(r"^(earrrl_reservations(?:_bytes)?) (\d+)", metrics, re.M))
    return int(sizes["earrrl_reservations_bytes"]) / int(sizes["earrrl_reservations"])


class Server(Process):
    """A server, whose states are in memory or in Redis, and a connection to it."""

    def __init__(self, binary, redis_port):
        port, self.http = free_port(), free_port()
        self.config = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.config.write(CONFIG % (ENGINE % redis_port if redis_port else ""))
        self.config.flush()
        addresses = ["--resp", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{self.http}"]
        super().__init__(binary, "serve", "--config", self.config.name, *addresses)
        self.connection = connected(port)


def table(name, binary, redis_port, redis_process):
    redis = connected(redis_port) if redis_port else None
    with Server(binary, redis_port) as server:
        size = live_bytes(server.connection, server.http, redis)
    rounds = {check: [], reserve_and_commit: []}
    with Server(binary, redis_port) as server:
        for _ in range(ROUNDS):
            for work, seen in rounds.items():
                seen.append(measure(work, server.connection, server, redis, redis_process))
    figures = [list(zip(*seen)) for seen in rounds.values()]
    for what, ones, both in zip(("server, µs", "Redis, µs", "Redis, commands"), *figures):
        scale = 1 if "commands" in what else 1e6
        if any(ones):
            one, two = (statistics.median(each) * scale for each in (ones, both))
            times = statistics.median(second / first for first, second in zip(ones, both))
            print(f"| {name}: {what} | {one:.1f} | {two:.1f} | {times:.2f} |")
    print(f"| {name}: bytes for each live reservation | | {size:.0f} | |", flush=True)


def main():
    binary = sys.argv[1]
    valkey = sys.argv[2] if len(sys.argv) > 2 else shutil.which("valkey-server") or shutil.which("redis-server")
    print("| | a check | a reservation with its commit | times |\n|---|---:|---:|---:|")
    table("memory", binary, None, None)
    port = free_port()
    with Process(valkey, "--port", str(port), "--save", "") as redis:
        connected(port).close()
        table("Redis", binary, port, redis)


if __name__ == "__main__":
    main()
