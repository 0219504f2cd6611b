#!/usr/bin/env python3
"""Envoy's rate limit service beside a bare tonic echo of the same messages, under h2load.

    bench/envoy.py cpu [CALLS]       processor time a call, by connections and streams, in turns
    bench/envoy.py late [CALLS]      how long calls take at four fifths of what the machine can do

Build first: cargo build --profile dist -p earrrl-server --bin earrrl --example echo_grpc
Needs h2load (Debian: nghttp2-client). Keep the machine idle. EARRRL is another binary to measure besides.
"""
import collections
import contextlib
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(ROOT, "target/dist")
PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
SHAPES = ((50, 1), (2, 25))
LATE = 20_000  # Envoy's default timeout, in microseconds


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def yaml(descriptors):
    """The last key is the one that is asked for."""
    lines = ["domain: bench", "descriptors:"]
    for number in range(descriptors - 1):
        lines += [f"  - key: {'path' if number % 2 else f'key{number}'}", f"    value: /p{number}",
                  "    rate_limit: {unit: hour, requests_per_unit: 5}"]
    lines += ["  - key: user", "    rate_limit: {unit: year, requests_per_unit: 4000000000}"]
    return "\n".join(lines) + "\n"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu(pid):
    parts = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(name, folder):
    """The server of this name: its process, its port, and how many calls it says to have answered well."""
    grpc, http = free_port(), free_port()
    kind, descriptors, headers = (name.split() + ["", ""])[:3]
    if kind == "echo":
        command = [f"{RELEASE}/examples/echo_grpc", f"127.0.0.1:{grpc}"]
    else:
        config = f"{folder}/{headers}.toml"
        with open(config, "w") as file:
            file.write(f'[envoy]\nheaders = "{headers}"\n')
        binary = os.environ["EARRRL"] if kind == "other" else f"{RELEASE}/earrrl"
        command = [binary, "serve", "--http", f"127.0.0.1:{http}", "--resp", "127.0.0.1:0", "--grpc",
                   f"127.0.0.1:{grpc}", "--config", config, "--envoy-config", f"{folder}/{descriptors}.yaml"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answered():
        if kind == "echo":
            return None
        text = urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics").read().decode()
        found = re.search(r'^earrrl_grpc_responses_total\{.*"(?:OK|0)"\} (\d+)', text, re.M)
        return int(found.group(1)) if found else 0

    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", grpc)).close()
                break
            except OSError:
                assert server.poll() is None, f"{name} ended"
                time.sleep(0.05)
        yield server.pid, grpc, answered
    finally:
        server.kill()
        server.wait()


def load(port, folder, clients, streams, calls, *more):
    command = ["h2load", "-t1", f"-n{calls}", f"-c{clients}", f"-m{streams}", "-d", f"{folder}/body",
               "-H", "content-type: application/grpc", "-H", "te: trailers", *more,
               f"http://127.0.0.1:{port}{PATH}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    done = int(re.search(r"(\d+) succeeded", out).group(1))
    assert done == calls, out
    return float(re.search(r"([\d.]+) req/s", out).group(1))


def spend(name, folder, shape, calls):
    """Microseconds of processor time a call, and calls a second."""
    with serving(name, folder) as (pid, port, answered):
        load(port, folder, *shape, calls // 10)
        well, before = answered(), cpu(pid)
        rate = load(port, folder, *shape, calls)
        used = cpu(pid) - before
        assert well is None or answered() - well == calls, "calls failed"
    return used / calls * 1e6, rate


def compare(folder, calls):
    names = ["echo", "earrrl 10 off", "earrrl 10 draft-11", "earrrl 1000 draft-11"]
    if "EARRRL" in os.environ:
        names += ["other 10 off", "other 10 draft-11"]
    spent = collections.defaultdict(list)
    for _ in range(3):
        for name in names:
            for shape in SHAPES:
                spent[name, shape].append(spend(name, folder, shape, calls))
    print("| | " + " | ".join(f"{c}x{s}: us CPU a call, calls/s" for c, s in SHAPES) + " |")
    for name in names:
        cells = []
        for shape in SHAPES:
            micros, rates = zip(*spent[name, shape])
            cells.append(f"{statistics.median(micros):.2f} ({min(micros):.2f} to {max(micros):.2f}), "
                         f"{statistics.median(rates):,.0f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


def late(folder, calls):
    clients, streams = 50, 100
    with serving("earrrl 10 draft-11", folder) as (_, port, answered):
        log = f"{folder}/log"
        # Of server and client together, with what the client writes down.
        capacity = load(port, folder, clients, 4, max(calls // 20, 100_000), f"--log-file={log}")
        well = answered()
        each = int(capacity * 0.8 / clients)
        os.remove(log)
        rate = load(port, folder, clients, streams, calls, f"--rps={each}", f"--log-file={log}")
        assert answered() - well == calls, "calls failed"
    times = collections.Counter()
    with open(log, "rb") as lines:
        for line in lines:
            times[int(line.split(b"\t")[2])] += 1
    print(f"{calls:,} calls at {rate:,.0f} a second, of {capacity:,.0f} that the machine can do:")
    wanted = [(share, calls * share) for share in (0.5, 0.99, 0.999, 0.9999)]
    seen = 0
    for micros in sorted(times):
        seen += times[micros]
        while wanted and seen >= wanted[0][1]:
            print(f"  p{wanted.pop(0)[0] * 100:g}  {micros / 1000:.2f} ms")
    over = sum(count for micros, count in times.items() if micros > LATE)
    print(f"  longest {max(times) / 1000:.2f} ms, {over} later than {LATE // 1000} ms")


def main():
    what = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        entry = field(1, field(1, b"user") + field(2, b"alice"))
        message = field(1, b"bench") + field(2, entry)
        with open(f"{folder}/body", "wb") as file:
            file.write(b"\0" + struct.pack(">I", len(message)) + message)
        for descriptors in (10, 1000):
            with open(f"{folder}/{descriptors}.yaml", "w") as file:
                file.write(yaml(descriptors))
        if what == "cpu":
            compare(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 200_000)
        else:
            late(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000)


main()
