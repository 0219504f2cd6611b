#!/usr/bin/env python3
"""What the edge costs, in one run: CPU a forward-auth decision beside `POST /v1/check` and a bare axum route;
what nginx's `auth_request` adds to a request beside its `limit_req`; TLS beside nginx's.

Needs: cargo, nginx, h2load, openssl. Keep the machine idle otherwise. `bench/edge.py [decision|proxy|tls]…`
"""

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EARRRL = f"{ROOT}/target/dist/earrrl"
FLOOR = f"{ROOT}/bench/target/release/floor_http"
NGINX = "/usr/sbin/nginx"
TICKS = os.sysconf("SC_CLK_TCK")
FOLDER = tempfile.mkdtemp()
RULES = """
[server]
threads = 1
max_connections_per_address = 10000
{server}
[client_address]
trusted_proxies = ["127.0.0.1/32"]
[authz]
deny_status = 403
[[rule]]
name = "default"
limit = "recent-average 1000000000/s half-life=10s"
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def file(name, text):
    path = f"{FOLDER}/{name}"
    with open(path, "w") as out:
        out.write(text)
    return path


class Server:
    """A process that listens, and the CPU that it and its children have taken."""

    def __init__(self, command, port):
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=FOLDER)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                time.sleep(0.05)
        sys.exit(f"{command[0]} does not listen")

    def cpu(self):
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            pids = [pid, *map(int, children.read().split())]
        total = 0
        for one in pids:
            with open(f"/proc/{one}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def stop(self):
        self.process.terminate()
        self.process.wait()


def earrrl(more=""):
    http = free_port()
    config = file(f"limits-{http}.toml", RULES.format(server=more))
    listeners = ["--http", f"127.0.0.1:{http}", "--resp", f"127.0.0.1:{free_port()}", "--capacity", "100000"]
    return Server([EARRRL, "serve", "--config", config, *listeners], http)


def nginx(servers, port):
    config = file(f"nginx-{port}.conf", f"""
worker_processes 1; pid nginx-{port}.pid; error_log stderr crit; daemon off;
events {{ worker_connections 4096; }}
http {{
    access_log off; keepalive_requests 100000000;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    {servers}
}}""")
    return Server([NGINX, "-p", FOLDER, "-c", config], port)


def h2load(url, requests, clients, *arguments):
    """Seconds taken, and the times of requests in microseconds."""
    log = f"{FOLDER}/log"
    if os.path.exists(log):
        os.remove(log)
    command = ["h2load", "--h1", "-n", str(requests), "-c", str(clients), "-t1", f"--log-file={log}", *arguments, url]
    started = time.monotonic()
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    took = time.monotonic() - started
    done = re.search(r"(\d+) succeeded, (\d+) failed", output)
    if not done or int(done[1]) != requests:
        sys.exit(f"{url}: {output}")
    with open(log) as lines:
        return took, sorted(int(line.split("\t")[2]) for line in lines)


def cpu_each(server, url, requests, clients, *arguments):
    """CPU microseconds a request."""
    before = server.cpu()
    took, _ = h2load(url, requests, clients, *arguments)
    return (server.cpu() - before) / requests * 1e6, requests / took


def decision(rounds=3, requests=60_000):
    ours, port = earrrl(), free_port()
    floor = Server([FLOOR, f"127.0.0.1:{port}", "threads"], port)
    headers = ["X-Forwarded-For: 192.0.2.7", "X-Forwarded-Method: POST", "X-Forwarded-Uri: /login?next=/", "X-Forwarded-Host: shop.example",
               "X-Forwarded-Proto: https", "Accept: */*", "Accept-Language: en", "Cookie: session=0123456789abcdef"]
    headers = [word for header in headers for word in ("-H", header)]
    body = ["-d", file("check.json", '{"rule":"default","key":"192.0.2.7"}'), "-H", "Content-Type: application/json"]
    ways = {
        "GET /v1/authz": (ours, "/v1/authz", headers),
        "POST /v1/check": (ours, "/v1/check", body),
        "bare axum route, headers only": (floor, "/v1/authz", headers),
        "bare axum route, JSON": (floor, "/v1/check", body),
    }
    seen = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, (server, path, arguments) in ways.items():
            micros, _ = cpu_each(server, f"http://127.0.0.1:{server.port}{path}", requests, 50, *arguments)
            if turn:
                seen[name].append(micros)
    print("| | CPU µs a request |\n|---|---:|")
    for name, micros in seen.items():
        print(f"| {name} | {statistics.median(micros):.2f} |")
    for server in (ours, floor):
        server.stop()


def proxy(rounds=3):
    ours = earrrl()
    app, port = free_port(), free_port()
    nothing = nginx(f"server {{ listen 127.0.0.1:{app}; location / {{ return 200 'ok'; }} }}", app)
    passing = "proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection '';"
    front = nginx(f"""
    limit_req_zone $binary_remote_addr zone=all:10m rate=1000000r/s;
    upstream app {{ server 127.0.0.1:{app}; keepalive 64; keepalive_requests 100000000; }}
    upstream earrrl {{ server 127.0.0.1:{ours.port}; keepalive 64; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port};
        location /plain {{ {passing} }}
        location /limit_req {{ limit_req zone=all burst=100000 nodelay; {passing} }}
        location = /_earrrl {{
            internal; proxy_pass http://earrrl/v1/authz; proxy_http_version 1.1; proxy_pass_request_body off;
            proxy_set_header Connection ''; proxy_set_header Content-Length ''; proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Method $request_method; proxy_set_header X-Forwarded-Uri $request_uri;
            proxy_set_header X-Original-Method ''; proxy_set_header X-Original-URI '';
        }}
        location /auth_request {{ auth_request /_earrrl; {passing} }}
    }}""", port)
    print("| | clients | p50 µs | p99 µs | p99.9 µs |\n|---|---:|---:|---:|---:|")
    for clients, requests in ((1, 10_000), (16, 40_000)):
        seen = {name: [] for name in ("plain", "limit_req", "auth_request")}
        for turn in range(rounds + 1):
            for name, times in seen.items():
                _, micros = h2load(f"http://127.0.0.1:{port}/{name}", requests, clients)
                if turn:
                    times.append([micros[int(len(micros) * share)] for share in (0.5, 0.99, 0.999)])
        for name, times in seen.items():
            shown = " | ".join(f"{statistics.median(column):.0f}" for column in zip(*times))
            print(f"| {name} | {clients} | {shown} |")
    for server in (ours, nothing, front):
        server.stop()


def tls(rounds=3):
    key, cert = f"{FOLDER}/key.pem", f"{FOLDER}/cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-keyout", key, "-out", cert], check=True, capture_output=True)
    ours = earrrl(f'tls = {{ cert = "{cert}", key = "{key}" }}')
    port = free_port()
    theirs = nginx(f"""server {{
        listen 127.0.0.1:{port} ssl; ssl_certificate {cert}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;
        location / {{ return 200 'ok'; }}
    }}""", port)
    print("| | CPU µs a new connection with one request | such a second | CPU µs a request more | such a second |\n|---|---:|---:|---:|---:|")
    loads = ((2_000, 2_000), (60_000, 50))
    seen = {(name, load): [] for name in ("earrrl", "nginx") for load in loads}
    for turn in range(rounds + 1):
        for (name, load), figures in seen.items():
            server = ours if name == "earrrl" else theirs
            figure = cpu_each(server, f"https://127.0.0.1:{server.port}/healthz", *load)
            if turn:
                figures.append(figure)
    for name in ("earrrl", "nginx"):
        columns = [column for load in loads for column in zip(*seen[name, load])]
        shown = " | ".join(f"{statistics.median(column):.1f}" for column in columns)
        print(f"| {name} | {shown} |")
    for server in (ours, theirs):
        server.stop()


if __name__ == "__main__":
    if "--built" not in sys.argv:
        subprocess.run(["cargo", "build", "--profile", "dist", "--manifest-path", f"{ROOT}/Cargo.toml", "-p", "earrrl-server"], check=True)
        subprocess.run(["cargo", "build", "--release", "--manifest-path", f"{ROOT}/bench/server/Cargo.toml"], check=True)
    parts = {"decision": decision, "proxy": proxy, "tls": tls}
    for part in [name for name in sys.argv[1:] if name in parts] or parts:
        print(f"\n{part}:\n")
        parts[part]()
