#!/usr/bin/env python3
"""The price of overrides: the time to start, memory, and instructions a request over RESP, HTTP and gRPC.

    bench/server/overrides.py BINARY [COUNT…]      0, 1, 10, 1000 and 100000 overrides by default

The same rule has more and more overrides, each for a user of its own. Requests come from users with an override,
and from users without one. Instructions are counted as by instructions.py.
"""

import pathlib
import subprocess
import sys
import tempfile
import time

import instructions
from instructions import field, frame, resp

COUNTS = [0, 1, 10, 1000, 100000]
REQUESTS = 12000
USERS = 100
STARTS = 3


def rule(overrides):
    text = ['[server]\nthreads = 1\n\n[[rule]]\nname = "r"\nlimit = "gcra 1000000/s burst=1000000"\nkey = "header:x-user"']
    for nth in range(overrides):
        condition = '{ "header:x-user" = "user-%06d" }' % nth
        text.append(f'[[rule.override]]\nkey = {condition}\nlimit = "gcra 1000000/s burst=100000{nth % 3}"')
    return "\n".join(text) + "\n"


def check_resp(user):
    return resp(b"EARRRL.CHECK", b"r", user)


def check_http(user):
    body = b'{"rule":"r","key":"%s"}' % user
    head = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def check_grpc(user, stream):
    """A call of Envoy's ext_authz: an address, a method, a path and one header."""
    path = b"/envoy.service.auth.v3.Authorization/Check"
    block = b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x01\x09localhost\x0f\x10\x10application/grpc"
    source = field(1, field(1, field(2, b"192.0.2.7") + b"\x18\x50"))
    header = field(3, field(1, b"x-user") + field(2, user))
    http = field(2, b"GET") + header + field(4, b"/items") + field(5, b"shop.example")
    message = field(1, field(1, source) + field(4, field(2, http)))
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return frame(1, 4, stream, block) + frame(0, 1, stream, data)


# The name, the protocol, a request of a user, and how an answer begins.
WORK = [
    ("RESP", "resp", lambda user, _: check_resp(user), rb"\*\d+\r\n"),
    ("HTTP", "http", lambda user, _: check_http(user), rb"HTTP/1.1 [24]"),
    ("gRPC", "grpc", lambda user, place: check_grpc(user, 2 * place + 1), rb"\0\0.\x01\x05\0"),
]


def serve(binary, config, ports):
    addresses = [word for name in ports for word in ("--" + name, "127.0.0.1:%d" % ports[name])]
    return [binary, "serve", "--config", config, *addresses]


def ports():
    return {name: instructions.free_port() for name in ("http", "resp", "grpc")}


def start(binary, config):
    """Returns the seconds until the server answers, and its resident memory in MB."""
    at = ports()
    begin = time.monotonic()
    with subprocess.Popen(serve(binary, config, at), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        while True:
            try:
                with instructions.socket.create_connection(("127.0.0.1", at["resp"])) as connection:
                    instructions.exchange(connection, resp(b"PING"), 1, rb"\+PONG")
                break
            except ConnectionRefusedError:
                time.sleep(0.002)
        seconds = time.monotonic() - begin
        status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
        server.terminate()
    return seconds, resident


def count(binary, config, work, users, requests):
    """Returns the instructions of a server that answers this many requests."""
    _, protocol, make, pattern = work
    at = ports()
    report = tempfile.NamedTemporaryFile("r")
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-file=" + report.name]
    command = valgrind + serve(binary, config, at)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        with instructions.connected(at[protocol]) as connection:
            if protocol == "grpc":
                connection.sendall(instructions.GREETING)
            for place in range(requests):
                request = make(b"user-%06d" % users[place % len(users)], place)
                instructions.exchange(connection, request, 1, pattern)
        server.terminate()
    return int(instructions.re.search(r"Collected : (\d+)", report.read())[1])


def per_request(binary, config, work, users):
    more, less = (count(binary, config, work, users, n) for n in (REQUESTS, REQUESTS // 6))
    return (more - less) / (REQUESTS - REQUESTS // 6)


def main():
    binary = sys.argv[1]
    counts = [int(word) for word in sys.argv[2:]] or COUNTS
    print("| overrides | start | memory |" + "".join(f" {work[0]}, with | without |" for work in WORK))
    print("|---:|---:|---:|" + "---:|" * 2 * len(WORK))
    for overrides in counts:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write(rule(overrides))
            config.flush()
            seconds, resident = (min(each) for each in zip(*(start(binary, config.name) for _ in range(STARTS))))
            cells = [f"{overrides:,}", f"{seconds:.2f} s", f"{resident:.1f} MB"]
            without = range(500000, 500000 + USERS)
            having = range(max(overrides - USERS, 0), overrides)
            for work in WORK:
                for users in (having, without):
                    figure = per_request(binary, config.name, work, users) if users else None
                    cells.append("" if figure is None else f"{figure:,.0f}")
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
