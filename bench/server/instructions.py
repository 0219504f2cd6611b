#!/usr/bin/env python3
"""Instructions a request that the server executes, counted by valgrind's callgrind.

    bench/server/instructions.py BINARY [BINARY…]      a column a binary, such as one from before a change, or the
                                                       bare axum routes of floor_http

Each number of requests is sent twice, by one connection that waits for every answer: once and a sixth as often.
The difference leaves out what starting costs. The system's own instructions are not counted.
"""

import json
import pathlib
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time

REQUESTS = 60000

# One thread, so that none wakes another.
CONFIG = """
[server]
threads = 1

[[rule]]
name = "default"
limit = "recent-average 1000000/s half-life=10s strict"
"""
DESCRIPTORS = """
domain: bench
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 4000000000}
"""


def resp(*words):
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%s" % (len(words), parts)


def check_http(place):
    body = json.dumps({"rule": "default", "key": "client-%d" % (place % 100)}).encode()
    head = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def throttle(place):
    return resp(b"CL.THROTTLE", b"client-%d" % (place % 100), b"1000", b"60000", b"60")


def allow_resp(place):
    return resp(b"EARRRL.ALLOW", b"default", b"client-%d" % (place % 100))


def check_resp(place):
    return resp(b"EARRRL.CHECK", b"default", b"client-%d" % (place % 100))


def authz(place):
    head = (
        "GET /v1/authz HTTP/1.1\r\nHost: shop.example\r\nX-Real-IP: 192.0.2.%d\r\nX-Forwarded-For: 192.0.2.%d\r\n"
        "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /items/7?page=2\r\nX-Forwarded-Proto: https\r\n"
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: text/html,application/xhtml+xml\r\n\r\n"
    )
    return (head % (place % 100, place % 100)).encode()


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def rate_limit(place):
    """A call of Envoy's rate limit service: headers as literals, then a message with one descriptor."""
    path = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    block = b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x01\x09localhost\x0f\x10\x10application/grpc"
    entry = field(1, b"user") + field(2, b"client-%02d" % (place % 100))
    message = field(1, b"bench") + field(2, field(1, entry))
    stream = 2 * place + 1
    data = b"\0" + struct.pack(">I", len(message)) + message
    return frame(1, 4, stream, block) + frame(0, 1, stream, data)


# HTTP/2's preface, windows for all answers, and nothing that the server would wait for.
GREETING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(4, 0, 0, struct.pack(">HI", 4, 1 << 30))
    + frame(8, 0, 0, struct.pack(">I", 1 << 30))
)

# The name, the protocol, what is sent, how many requests at once, and how often their answers have this in them.
WORK = [
    ("CL.THROTTLE", "resp", throttle, 1, rb"\*5\r\n"),
    ("CL.THROTTLE, pipelines of 16", "resp", throttle, 16, rb"\*5\r\n"),
    ("EARRRL.ALLOW", "resp", allow_resp, 1, rb":\d\r\n"),
    ("EARRRL.ALLOW, pipelines of 16", "resp", allow_resp, 16, rb":\d\r\n"),
    ("EARRRL.CHECK", "resp", check_resp, 1, rb"\*\d+\r\n"),
    ("EARRRL.CHECK, pipelines of 16", "resp", check_resp, 16, rb"\*\d+\r\n"),
    ("POST /v1/check", "http", check_http, 1, rb"HTTP/1.1 [24]"),
    ("GET /v1/authz", "http", authz, 1, rb"HTTP/1.1 [24]"),
    # The head of the trailers' frame.
    ("ShouldRateLimit", "grpc", rate_limit, 1, rb"\0\0.\x01\x05\0"),
]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def connected(port):
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit("the server does not listen")


def exchange(connection, request, answers, pattern):
    connection.sendall(request)
    seen = b""
    while len(re.findall(pattern, seen)) < answers or not whole(seen):
        more = connection.recv(1 << 16)
        if not more:
            sys.exit("the server closed the connection: %r" % seen[-200:])
        seen += more


def whole(seen):
    """HTTP: the body is there."""
    length = re.search(rb"content-length: (\d+)\r\n", seen)
    return not length or len(seen.partition(b"\r\n\r\n")[2]) >= int(length[1])


def is_floor(binary):
    """Returns true for the bare axum routes of floor_http, which answer HTTP only."""
    return pathlib.Path(binary).name == "floor_http"


def count(binary, work, requests):
    _, protocol, make, together, pattern = work
    ports = {"http": free_port(), "resp": free_port(), "grpc": free_port()}
    descriptors = tempfile.NamedTemporaryFile("w", suffix=".yaml")
    descriptors.write(DESCRIPTORS)
    descriptors.flush()
    config = tempfile.NamedTemporaryFile("w", suffix=".toml")
    config.write(CONFIG)
    config.flush()
    addresses = [word for name in ports for word in ("--" + name, "127.0.0.1:%d" % ports[name])]
    report = tempfile.NamedTemporaryFile("r")
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-file=" + report.name, binary]
    serve = ["serve", "--config", config.name, "--envoy-config", descriptors.name, *addresses]
    if is_floor(binary):
        serve = ["127.0.0.1:%d" % ports["http"], "a runtime a core"]
    with subprocess.Popen(command + serve, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        with connected(ports[protocol]) as connection:
            if protocol == "grpc":
                connection.sendall(GREETING)
            for start in range(0, requests, together):
                places = range(start, start + together)
                exchange(connection, b"".join(map(make, places)), together, pattern)
        server.terminate()
    return int(re.search(r"Collected : (\d+)", report.read())[1])


def main():
    for work in WORK:
        figures = []
        for binary in sys.argv[1:]:
            if is_floor(binary) and work[1] != "http":
                figures.append("%8s" % "")
                continue
            more, less = count(binary, work, REQUESTS), count(binary, work, REQUESTS // 6)
            figures.append("%8d" % ((more - less) / (REQUESTS - REQUESTS // 6)))
        print(*figures, " ", work[0], flush=True)


if __name__ == "__main__":
    main()
