#!/usr/bin/env python3
"""Server CPU microseconds (user and system) a decision, and requests a second, of the server, its
floors and its peers, one after the other in one run: 50 connections, 100 000 keys.

Needs: cargo, redis-server, redis-benchmark, wrk; throttlecrab-server on the PATH, if it is to be
in the table (`cargo install throttlecrab-server`, which needs protoc). Keep the machine idle otherwise.
"""

import argparse
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KEYS, CONNECTIONS, ROUNDS = 100_000, 50, 5
DEPTHS = {1: 200_000, 16: 1_500_000, 64: 3_000_000}
TICKS = os.sysconf("SC_CLK_TCK")
# The clients of a benchmark send faster than any usual limit, so one rule denies none of their requests, and the other
# nearly all of them, as in an attack by more clients than the directory of names has places.
RULES = "default=recent-average 1000000/s half-life=10s strict; shut=recent-average 1/s half-life=10s strict"


def build(profile, manifest, *arguments):
    command = ["cargo", "build", "--profile", profile, "--manifest-path", manifest, *arguments]
    subprocess.run(command, check=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A process that listens on a port of its own."""

    def __init__(self, name, command):
        self.name, self.port = name, free_port()
        command = [word.format(port=self.port, http=free_port()) for word in command]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.05)
        sys.exit(f"{name} does not listen")

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self):
        self.process.kill()
        self.process.wait()


def redis_benchmark(server, words, depth, requests):
    command = ["redis-benchmark", "-p", str(server.port), "-c", str(CONNECTIONS), "-n", str(requests),
               "-P", str(depth), "-r", str(KEYS), "-q", *words]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return requests, float(re.findall(r"([\d.]+) requests per second", output)[-1])


def wrk(server):
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", "-d5s", "-s", f"{HERE}/check.lua",
               f"http://127.0.0.1:{server.port}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    requests = int(re.search(r"(\d+) requests in", output)[1])
    return requests, float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1])


def measure(loads):
    """Medians of CPU microseconds a request and of requests a second, of each (server, load). They
    take turns, so that what else the machine does meets them all."""
    rounds = [[] for _ in loads]
    for turn in range(ROUNDS + 1):
        for (server, load), figures in zip(loads, rounds):
            before = server.cpu()
            requests, rate = load(server)
            if turn > 0:
                figures.append(((server.cpu() - before) / requests * 1e6, rate))
    return [[statistics.median(column) for column in zip(*figures)] for figures in rounds]


def last_reply(port, depth):
    """The least of some times from sending a pipeline to its last reply, in microseconds."""
    request = b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n" * depth
    times = []
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(50):
            start, lines = time.perf_counter(), 0
            client.sendall(request)
            while lines < 6 * depth:
                lines += client.recv(1 << 20).count(b"\n")
            times.append(time.perf_counter() - start)
    return min(times) * 1e6, statistics.median(times) * 1e6


def row(name, figures, base=None):
    cells = []
    for depth, (cpu, rate) in figures.items():
        ratio = f" {cpu / base[depth][0]:5.2f}x" if base else " " * 7
        cells.append(f"{cpu:7.3f}{ratio} {rate / 1000:7.0f} k/s")
    print(f"{name:34}" + " |".join(cells), flush=True)


def resp_table(earrrl):
    throttle = ["CL.THROTTLE", "user:__rand_int__", "15", "30", "60"]
    script = open(f"{HERE}/earrrl.lua").read()
    redis = ["redis-server", "--port", "{port}", "--save", "", "--appendonly", "no"]
    plans = [
        ("redis PING", redis, ["PING"]),
        ("floor: parse, answer +PONG", [f"{HERE}/../target/release/floor_resp", "127.0.0.1:{port}"], throttle),
        ("earrrl PING", earrrl, ["PING"]),
        ("earrrl CL.THROTTLE", earrrl, throttle),
        ("earrrl EARRRL.CHECK", earrrl, ["EARRRL.CHECK", "default", "user:__rand_int__"]),
        ("earrrl EARRRL.CHECK, denied", earrrl, ["EARRRL.CHECK", "shut", "user:__rand_int__"]),
        ("redis, the article's Lua script", redis,
         ["EVAL", script, "2", "r:__rand_int__", "t:__rand_int__", "0.0693", "1"]),
    ]
    if shutil.which("throttlecrab-server"):
        command = ["throttlecrab-server", "--redis", "--redis-host", "127.0.0.1", "--redis-port", "{port}"]
        plans.append(("throttlecrab THROTTLE", command, ["THROTTLE", *throttle[1:]]))
    else:
        print("throttlecrab-server is not installed: no row", file=sys.stderr)
    print("RESP: server CPU microseconds a request, times redis PING, requests a second")
    print(" " * 34 + " |".join(f"P={depth:<24}" for depth in DEPTHS))
    servers = [Server(name, command) for name, command, _ in plans]
    table = {name: {} for name, *_ in plans}
    for depth, requests in DEPTHS.items():
        def load(name, words):
            slow = 10 if "Lua" in name or "throttlecrab" in name else 1
            return lambda server: redis_benchmark(server, words, depth, requests // slow)
        loads = [(server, load(name, words)) for server, (name, _, words) in zip(servers, plans)]
        for (name, *_), figures in zip(plans, measure(loads)):
            table[name][depth] = figures
    for server in servers:
        server.stop()
    for name, figures in table.items():
        row(name, figures, table["redis PING"])


def http_table(earrrl):
    print("\nHTTP: POST /v1/check, server CPU microseconds a request, times the bare route")
    floor = [f"{HERE}/../target/release/floor_http", "127.0.0.1:{port}"]
    a_runtime_a_core = [*floor, "a runtime a core"]
    swapped = [word.replace("{port}", "{x}").replace("{http}", "{port}").replace("{x}", "{http}")
               for word in earrrl]
    servers = [Server("bare axum route", floor), Server("the same, a runtime a core", a_runtime_a_core),
               Server("earrrl", swapped)]
    table = measure([(server, wrk) for server in servers])
    for server, figures in zip(servers, table):
        server.stop()
        row(server.name, {1: figures}, {1: table[0]})


def depth_table(earrrl):
    print("\nA pipeline's last reply, microseconds (least, median)")
    server = Server("earrrl", earrrl)
    for depth in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]:
        least, median = last_reply(server.port, depth)
        print(f"P={depth:<6} {least:8.0f} {median:8.0f}")
    server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests, one round")
    parser.add_argument("--no-build", action="store_true", help="what is built already")
    options = parser.parse_args()
    if options.quick:
        global ROUNDS
        ROUNDS = 1
        DEPTHS.update({depth: requests // 5 for depth, requests in DEPTHS.items()})
    if not options.no_build:
        build("dist", f"{ROOT}/Cargo.toml", "-p", "earrrl-server")
        build("release", f"{HERE}/Cargo.toml")
    earrrl = [f"{ROOT}/target/dist/earrrl", "serve", "--resp", "127.0.0.1:{port}", "--http", "127.0.0.1:{http}",
              "--rule", RULES]
    resp_table(earrrl)
    http_table(earrrl)
    depth_table(earrrl)


if __name__ == "__main__":
    main()
