#!/usr/bin/env python3
"""CPU a call of Envoy's rate limit service: earrrl beside a bare tonic echo, under h2load.

Build first: cargo build --release -p earrrl-server --bin earrrl --example echo_grpc
Then: bench/envoy.py [CALLS]    Needs h2load (Debian: nghttp2-client).
"""
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(ROOT, "target/release")
CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def yaml(descriptors):
    lines = ["domain: bench", "descriptors:"]
    for number in range(descriptors - 1):
        lines += [f"  - key: path\n    value: /p{number}",
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


def measure(name, command, port, folder):
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert server.poll() is None, f"{name} ended"
                time.sleep(0.05)
        for clients, streams in ((50, 1), (2, 25)):
            load = ["h2load", "-t1", f"-n{CALLS}", f"-c{clients}", f"-m{streams}", "-d", f"{folder}/body",
                    "-H", "content-type: application/grpc", "-H", "te: trailers",
                    f"http://127.0.0.1:{port}{PATH}"]
            before = cpu(server.pid)
            out = subprocess.run(load, capture_output=True, text=True, check=True).stdout
            used = cpu(server.pid) - before
            rate = re.search(r"([\d.]+) req/s", out).group(1)
            done = int(re.search(r"(\d+) succeeded", out).group(1))
            print(f"{name:24} {clients:3}x{streams:<3} {used / CALLS * 1e6:6.2f} us CPU a call, "
                  f"{float(rate):9.0f} calls/s, {CALLS - done} failed", flush=True)
    finally:
        server.kill()
        server.wait()


with tempfile.TemporaryDirectory() as folder:
    entry = field(1, field(1, b"user") + field(2, b"alice"))
    message = field(1, b"bench") + field(2, entry)
    with open(f"{folder}/body", "wb") as file:
        file.write(b"\0" + struct.pack(">I", len(message)) + message)
    for descriptors in (10, 1000):
        with open(f"{folder}/{descriptors}.yaml", "w") as file:
            file.write(yaml(descriptors))
    for turn in range(2):
        port = free_port()
        measure("tonic echo", [f"{RELEASE}/examples/echo_grpc", f"127.0.0.1:{port}"], port, folder)
        for descriptors in (10, 1000):
            port = free_port()
            command = [f"{RELEASE}/earrrl", "serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0",
                       "--grpc", f"127.0.0.1:{port}", "--envoy-config", f"{folder}/{descriptors}.yaml"]
            measure(f"earrrl, {descriptors} descriptors", command, port, folder)
