//! Tests listeners other than plain TCP: Unix sockets, inherited sockets, and HTTP/2 without TLS.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::http::Client;
use crate::support::process::BINARY;
use crate::support::{PATIENCE, TestServer, resp, until};
use rustix::process::{Pid, Signal, kill_process};

struct Server(Child);

impl Server {
    fn start(folder: &Path) -> Self {
        let config = folder.join("limits.toml");
        let address = |name: &str| format!("{name} = \"unix:{}\"\n", folder.join(name).display());
        let listeners: String = ["http", "resp", "grpc", "admin"].map(address).concat();
        let text = format!(
            "[server]\nsocket_mode = \"600\"\n{listeners}\
             [client_address]\ntrusted_proxies = [\"127.0.0.1\"]\n\
             [[rule]]\nname = \"login\"\nlimit = \"gcra 0.001/s burst=1\"\nkey = \"client\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(BINARY);
        command
            .args(["serve", "--config"])
            .arg(config)
            .stderr(Stdio::null());
        let server = Self(command.spawn().unwrap());
        until("it serves", || {
            UnixStream::connect(folder.join("grpc")).is_ok()
        });
        server
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn over(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn every_protocol_is_served_over_unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| folder.path().join(name);
    let mut server = Server::start(folder.path());
    for name in ["http", "resp", "grpc", "admin"] {
        assert_eq!(
            std::fs::metadata(of(name)).unwrap().mode() & 0o777,
            0o600,
            "{name}"
        );
    }
    // A killed server leaves its socket files; the next server replaces them.
    server.signal(Signal::KILL);
    server.0.wait().unwrap();
    assert!(of("http").exists());
    let mut server = Server::start(folder.path());

    assert_eq!(Client::over(over(&of("admin"))).get("/metrics").status, 200);
    let mut redis = resp::Client::over(over(&of("resp")));
    assert_eq!(redis.line("PING"), resp::Reply::Simple("PONG".into()));
    // A trusted proxy names its clients; without a proxy, the client is 127.0.0.1.
    let mut http = Client::over(over(&of("http")));
    let mut ask = |headers: &str| http.request("GET", "/v1/authz", headers, b"").status;
    let client = |name: &str| format!("X-Forwarded-For: {name}\r\n");
    assert_eq!(
        [ask(&client("192.0.2.7")), ask(&client("192.0.2.7"))],
        [200, 429]
    );
    assert_eq!([ask(&client("192.0.2.8")), ask("")], [200, 200]);
    assert_eq!([ask(""), ask(&client("127.0.0.1"))], [429, 429]);

    let mut curl = Command::new("curl");
    curl.args([
        "--http2-prior-knowledge",
        "-sS",
        "-w",
        "%{http_version}",
        "-o",
        "/dev/null",
    ]);
    curl.arg("--unix-socket")
        .arg(of("http"))
        .arg("http://localhost/v1/rules");
    assert_eq!(String::from_utf8_lossy(&curl.output().unwrap().stdout), "2");

    // A second server must not take a socket that is in use.
    let mut second = Command::new(BINARY);
    second.args(["serve", "--config"]).arg(of("limits.toml"));
    let output = second.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("can't listen on unix:"), "{error}");

    server.signal(Signal::TERM);
    assert!(server.0.wait().unwrap().success());
    for name in ["http", "resp", "grpc", "admin"] {
        assert!(!of(name).exists(), "{name}");
    }
}

#[test]
fn a_listener_for_grpc_and_a_file_are_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let held = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let grpc = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut shell = Command::new("sh");
    let script = "exec 3<&0 4<&1 1>&2; \
                  export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=http:grpc; exec \"$@\"";
    shell.args([
        "-c",
        script,
        "sh",
        BINARY,
        "serve",
        "--resp",
        "127.0.0.1:0",
        "--log-json",
    ]);
    shell.stdin(std::os::fd::OwnedFd::from(held.try_clone().unwrap()));
    shell.stdout(std::os::fd::OwnedFd::from(grpc.try_clone().unwrap()));
    let mut server = Server(shell.spawn().unwrap());
    // These connections wait in the backlog until the server accepts them.
    assert_eq!(Client::over(over(&path)).get("/healthz").status, 200);
    let mut curl = Command::new("curl");
    curl.args([
        "--http2-prior-knowledge",
        "-sS",
        "-D",
        "-",
        "-H",
        "content-type: application/grpc",
    ]);
    curl.args(["--data-binary", "x"]);
    curl.arg(format!(
        "http://{}/grpc.health.v1.Health/Check",
        grpc.local_addr().unwrap()
    ));
    let output = curl.output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(
        answer.contains("content-type: application/grpc"),
        "{answer}"
    );
    server.signal(Signal::TERM);
    assert!(server.0.wait().unwrap().success());
    assert!(path.exists(), "it is not this server's to remove");
}

/// Returns what curl reports of a request over HTTP/2 without TLS: body, status and version.
fn h2c(server: &TestServer, arguments: &[&str], path: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args([
        "--http2-prior-knowledge",
        "-sS",
        "-w",
        " %{http_code} %{http_version}",
    ]);
    let url = format!("http://{}{path}", server.http);
    let output = curl.args(arguments).arg(url).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn http2_is_spoken_in_clear_text() {
    let server = TestServer::start("[[rule]]\nname = \"api\"\nlimit = \"gcra 1/s burst=5\"\n");
    let json = ["-H", "Content-Type: application/json", "-d"];
    let check = [&json[..], &[r#"{"rule":"api","key":"k"}"#]].concat();
    let answer = h2c(&server, &check, "/v1/check");
    assert!(
        answer.starts_with("{\"allowed\":true") && answer.ends_with(" 200 2"),
        "{answer}"
    );
    for headers in [&["-X", "POST"][..], &["-I"], &["-X", "PROPFIND"]] {
        let answer = h2c(&server, headers, "/v1/authz/login");
        assert!(answer.ends_with(" 200 2"), "{answer}");
    }
    // A browser sends the host name of the page, here one that DNS rebinding points at the server.
    let rebound = ["-H", "Host: evil.example"];
    assert!(h2c(&server, &rebound, "/v1/rules").ends_with(" 421 2"));
    // Prefixes of the HTTP/2 preface are also prefixes of an HTTP/1.1 request line.
    for request in ["P", "PR", "PRI", "PRI *", "POST / HTTP/1.1\r\n"] {
        let mut client = server.http();
        client.send(request.as_bytes());
        let rest = "OPFIND /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        client.send(rest.as_bytes());
        let answer = String::from_utf8(client.rest()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 4"), "{request}: {answer}");
    }
}
