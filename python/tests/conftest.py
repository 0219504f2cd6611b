"""What the tests share: callers of ASGI and WSGI applications, and real servers with workers."""

import asyncio
import http.client
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote
from wsgiref.util import setup_testing_defaults

import pytest

HERE = pathlib.Path(__file__).resolve().parent


def asgi(app, path="/", headers=(), peer="192.0.2.7", method="GET", kind="http", extensions=(), pair=tuple):
    """Calls an ASGI application, and returns the status, the headers and the body."""
    scope = {"type": kind, "method": method, "path": path, "raw_path": quote(path, errors="replace").encode(), "query_string": b"", "state": {},
             "headers": [pair((name.encode(), value.encode("latin-1"))) for name, value in headers],
             "client": (peer, 4711) if peer else None, "extensions": dict.fromkeys(extensions, {}),
             "asgi": {"version": "3.0", "spec_version": "2.4"}}
    sent = []

    async def receive():
        return {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    if "status" not in sent[0]:
        return sent[0]["type"], {}, b""
    headers = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
    return sent[0]["status"], by_name(headers), b"".join(message.get("body", b"") for message in sent[1:])


def wsgi(app, path="/", headers=(), peer="192.0.2.7", method="GET"):
    """Calls a WSGI application, and returns the status, the headers and the body."""
    path, _, query = path.partition("?")
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "SCRIPT_NAME": "", "QUERY_STRING": query}
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers}
    if "HTTP_CONTENT_TYPE" in environ:
        environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
    if peer:
        environ["REMOTE_ADDR"] = peer
    setup_testing_defaults(environ)
    started = []
    body = b"".join(app(environ, lambda status, headers, error=None: started.append((status, headers))))
    status, sent = started[0]
    return int(status[:3]), by_name(sent), body


def by_name(headers):
    """Returns headers by their names in lower case; the values of one name stand beside each other."""
    found = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value)
    return {name: ", ".join(values) for name, values in found.items()}


class Server:
    """A web server with workers, in a process group of its own."""

    def __init__(self, command, environment):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [part.format(port=self.port) for part in command]
        environment = {**os.environ, "PYTHONPATH": str(HERE / "apps"), **environment}
        self.process = subprocess.Popen([sys.executable, "-m", *command], env=environment, start_new_session=True,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.log = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        self.log.extend(self.process.stderr)

    def wait(self, workers):
        """Waits until all workers have answered."""
        seen = set()
        deadline = time.monotonic() + 60
        while len(seen) < workers:
            assert self.process.poll() is None and time.monotonic() < deadline, b"".join(self.log).decode()
            try:
                seen.add(self.get("/pid")[1])
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
        return {int(pid) for pid in seen}

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def flood(self, path, requests, threads=20):
        """Sends requests from many threads at once, and returns how often each status came."""
        def status(_):
            try:
                return self.get(path)[0]
            except (OSError, http.client.HTTPException):
                return "failed"

        with ThreadPoolExecutor(threads) as pool:
            return Counter(pool.map(status, range(requests)))

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start():
    """Starts web servers, and stops them after the test."""
    servers = []

    def start_one(command, **environment):
        servers.append(Server(command, environment))
        return servers[-1]

    yield start_one
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Starts the server of this repository; yields the URIs of its storage, by TCP and by a Unix socket."""
    program = HERE.parents[1] / "target" / "debug" / "earrrl"
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = folder / "earrrl.sock"
    processes = []
    for address in (f"127.0.0.1:{port}", f"unix:{path}"):
        command = [program, "serve", "--http", "off", "--resp", address, "--rule", "gcra 1/s burst=1", "--allow-inline-rules"]
        processes.append(subprocess.Popen(command, stderr=open(folder / "log", "ab")))
    deadline = time.monotonic() + 60
    while not path.exists() or socket.socket().connect_ex(("127.0.0.1", port)):
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)
    yield [f"earrrl://127.0.0.1:{port}", f"earrrl+unix://{path}"]
    for process in processes:
        process.kill()
        process.wait()
