"""Instructions a request that the server executes, counted by valgrind's callgrind.

    bench/server/instructions.py BINARY [BINARY…]      a column a binary, such as one from before a change

Each number of requests is sent twice, by one connection that waits for every answer: once and a sixth as often.
The difference leaves out what starting costs. The system's own instructions are not counted.
"""

import json
import re
import socket
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
limit = "recent-average 1/s half-life=10s strict"
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


def check_resp(place):
    return resp(b"EARRRL.CHECK", b"default", b"client-%d" % (place % 100))


# The name, the protocol, what is sent, how many requests at once, and how often their answers have this in them.
WORK = [
    ("CL.THROTTLE", "resp", throttle, 1, rb"\*5\r\n"),
    ("CL.THROTTLE, pipelines of 16", "resp", throttle, 16, rb"\*5\r\n"),
    ("EARRRL.CHECK", "resp", check_resp, 1, rb"\*\d+\r\n"),
    ("EARRRL.CHECK, pipelines of 16", "resp", check_resp, 16, rb"\*\d+\r\n"),
    ("POST /v1/check", "http", check_http, 1, rb"HTTP/1.1 [24]"),
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


def count(binary, work, requests):
    _, protocol, make, together, pattern = work
    ports = {"http": free_port(), "resp": free_port()}
    config = tempfile.NamedTemporaryFile("w", suffix=".toml")
    config.write(CONFIG)
    config.flush()
    addresses = [word for name in ports for word in ("--" + name, "127.0.0.1:%d" % ports[name])]
    report = tempfile.NamedTemporaryFile("r")
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-file=" + report.name, binary]
    with subprocess.Popen(command + ["serve", "--config", config.name, *addresses], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        with connected(ports[protocol]) as connection:
            for start in range(0, requests, together):
                places = range(start, start + together)
                exchange(connection, b"".join(map(make, places)), together, pattern)
        server.terminate()
    return int(re.search(r"Collected : (\d+)", report.read())[1])


def main():
    for work in WORK:
        figures = []
        for binary in sys.argv[1:]:
            more, less = count(binary, work, REQUESTS), count(binary, work, REQUESTS // 6)
            figures.append("%8d" % ((more - less) / (REQUESTS - REQUESTS // 6)))
        print(*figures, " ", work[0], flush=True)


if __name__ == "__main__":
    main()
