//! Tests TLS from the clients' side: protocols, client certificates, and replaced certificates.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::support;
use crate::support::certificates::{Authority, Tls, connect, shake, shown};
use crate::support::http::Client;
use crate::support::process::BINARY;
use crate::support::{TestServer, installed, make_pipe, pipe_that_is_read, resp, testdata, until};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

const RULE: &str = "[[rule]]\nname = \"api\"\nlimit = \"gcra 1/s burst=5\"\n";
const BOTH: [&rustls::SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

fn authority() -> Authority {
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    authority.issue("client", &["proxy.example"]);
    authority
}

fn serve(authority: &Authority, more: &str) -> TestServer {
    TestServer::start(&format!("{}{RULE}", authority.table(more)))
}

fn mutual(authority: &Authority) -> String {
    format!("client_ca = \"{}\"", shown(&authority.path("ca.pem")))
}

fn healthy(config: &Arc<ClientConfig>, http: SocketAddr) -> bool {
    Client::over(connect(config, http)).get("/healthz").status == 200
}

#[test]
fn curl_redis_py_and_grpcio_are_served() {
    let authority = authority();
    let server = serve(&authority, &mutual(&authority));
    for version in ["--http1.1", "--http2"] {
        let mut curl = Command::new("curl");
        curl.args([
            version,
            "-sS",
            "--cacert",
            &shown(&authority.path("ca.pem")),
        ]);
        curl.args(["--cert", &shown(&authority.path("client.pem"))]);
        curl.args(["--key", &shown(&authority.path("client.key"))]);
        curl.args([
            "-H",
            "Content-Type: application/json",
            "-w",
            " %{http_version}",
        ]);
        curl.args(["-d", r#"{"rule":"api","key":"k"}"#]);
        let output = curl.arg(format!("https://localhost:{}/v1/check", server.http.port()));
        let output = output.output().unwrap();
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let spoken = if version == "--http2" { "} 2" } else { "} 1.1" };
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            answer.starts_with("{\"allowed\":true") && answer.ends_with(spoken),
            "{answer} {error}"
        );
    }
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", installed("python"));
    python.arg(testdata("../crates/earrrl-server/tests/clients/tls.py"));
    python.args([
        server.resp.port().to_string(),
        server.grpc.port().to_string(),
    ]);
    let output = python.arg(authority.folder.path()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "good",
        "{error}"
    );
}

#[test]
fn both_versions_are_spoken_and_protocols_are_agreed_upon() {
    let authority = authority();
    let server = serve(&authority, "");
    let agreed = |address, versions: &[_], alpn: &[&str]| {
        let tls = shake(&authority.client(None, versions, alpn), address).ok()?;
        Some(
            tls.conn
                .alpn_protocol()
                .map(|name| String::from_utf8_lossy(name).into_owned()),
        )
    };
    for version in [&TLS12, &TLS13] {
        let of = |address, alpn: &[&str]| agreed(address, &[version], alpn);
        assert_eq!(
            of(server.http, &["http/1.1", "h2"]),
            Some(Some("h2".into()))
        );
        assert_eq!(
            of(server.http, &["http/1.1"]),
            Some(Some("http/1.1".into()))
        );
        assert_eq!(of(server.http, &[]), Some(None));
        assert_eq!(of(server.http, &["smtp"]), None);
        assert_eq!(of(server.grpc, &["h2"]), Some(Some("h2".into())));
        assert_eq!(of(server.grpc, &["http/1.1"]), None);
        assert_eq!(of(server.resp, &["redis"]), Some(None));
    }
    let client = authority.client(None, &BOTH, &[]);
    assert!(healthy(&client, server.http));
    let mut redis = resp::Client::over(connect(&client, server.resp));
    assert_eq!(redis.line("PING"), resp::Reply::Simple("PONG".into()));
}

#[test]
fn clients_without_the_right_certificate_are_refused() {
    let authority = authority();
    let other = Authority::new("another");
    for (name, names) in [
        ("stranger", "other.example"),
        ("workload", "spiffe://mesh/edge"),
    ] {
        authority.issue(name, &[names]);
    }
    let (certificate, key) = other.sign(&["proxy.example"]);
    fs::write(authority.path("forged.pem"), certificate).unwrap();
    fs::write(authority.path("forged.key"), key).unwrap();
    let names = "client_names = [\"Proxy.Example\", \"spiffe://mesh/edge\"]";
    let all = serve(&authority, &mutual(&authority));
    let named = serve(&authority, &format!("{}\n{names}", mutual(&authority)));
    for (own, by_authority, by_name) in [
        (None, false, false),
        (Some("forged"), false, false),
        (Some("stranger"), true, false),
        (Some("client"), true, true),
        (Some("workload"), true, true),
    ] {
        for version in BOTH {
            let client = authority.client(own, &[version], &[]);
            for (server, expected) in [(&all, by_authority), (&named, by_name)] {
                // Under TLS 1.3 a client learns that its certificate was rejected only when it
                // first reads.
                let asks = |address, request: &[u8]| {
                    let mut tls = connect(&client, address);
                    let _ = tls.write_all(request);
                    matches!(tls.read(&mut [0; 64]), Ok(1..))
                };
                let get = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
                assert_eq!(asks(server.http, get), expected, "{own:?} {version:?}");
                assert_eq!(
                    asks(server.resp, b"PING\r\n"),
                    expected,
                    "{own:?} {version:?}"
                );
                assert_eq!(
                    asks(
                        server.grpc,
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
                    ),
                    expected,
                    "{own:?} {version:?}"
                );
            }
        }
    }
}

/// Returns the certificate that the server shows on a new connection.
fn shown_certificate(client: &Arc<ClientConfig>, http: SocketAddr) -> Vec<u8> {
    let tls = shake(client, http).unwrap();
    tls.conn.peer_certificates().unwrap()[0].to_vec()
}

fn metric(server: &TestServer, line: &str) -> bool {
    let text = String::from_utf8(server.server.metrics()).unwrap();
    text.lines().any(|found| found == line)
}

#[test]
fn files_that_change_are_read_and_broken_ones_are_not_taken() {
    let authority = authority();
    let server = serve(&authority, "");
    let client = authority.client(None, &BOTH, &[]);
    let mut kept = Client::over(connect(&client, server.http));
    assert_eq!(kept.get("/healthz").status, 200);
    let first = shown_certificate(&client, server.http);

    // Swaps a symbolic link, as Kubernetes does.
    let folders = ["one", "two"].map(|name| authority.path(name));
    for folder in &folders {
        fs::create_dir(folder).unwrap();
        let (certificate, key) = authority.sign(&["localhost"]);
        fs::write(folder.join("server.pem"), certificate).unwrap();
        fs::write(folder.join("server.key"), key).unwrap();
    }
    let turn = |to: &std::path::Path| {
        let link = authority.path("next");
        let current = authority.path("current");
        symlink(to, &link).unwrap();
        fs::rename(link, current).unwrap();
    };
    turn(&folders[0]);
    for name in ["server.pem", "server.key"] {
        fs::remove_file(authority.path(name)).unwrap();
        symlink(authority.path("current").join(name), authority.path(name)).unwrap();
    }
    until("the first exchange", || {
        shown_certificate(&client, server.http) != first
    });
    let second = shown_certificate(&client, server.http);
    turn(&folders[1]);
    until("the second exchange", || {
        shown_certificate(&client, server.http) != second
    });
    let third = shown_certificate(&client, server.http);

    // The key of another certificate, and half of a certificate.
    for (file, text) in [
        ("server.key", authority.sign(&["localhost"]).1),
        ("server.pem", "-----BEGIN".into()),
    ] {
        let good = fs::read(folders[1].join(file)).unwrap();
        fs::write(folders[1].join(file), text).unwrap();
        until("it is refused", || {
            metric(&server, "earrrl_tls_reload_failed 1")
        });
        assert_eq!(shown_certificate(&client, server.http), third);
        fs::write(folders[1].join(file), good).unwrap();
        until("it is mended", || {
            metric(&server, "earrrl_tls_reload_failed 0")
        });
    }
    assert_eq!(kept.get("/healthz").status, 200, "a connection from before");
}

/// A read from a network mount that hangs does not return, and neither does one from a named pipe
/// that nobody writes to.
#[test]
fn a_certificate_that_cannot_be_read_holds_up_nothing() {
    let authority = authority();
    let server = serve(&authority, "");
    let client = authority.client(None, &BOTH, &[]);
    let first = shown_certificate(&client, server.http);
    let [file, pipe] = ["server.pem", "pipe"].map(|name| authority.path(name));
    make_pipe(&pipe);
    fs::rename(&pipe, &file).unwrap();
    let _pipe = pipe_that_is_read(&file);
    for _ in 0..3 {
        assert_eq!(shown_certificate(&client, server.http), first);
        assert!(healthy(&client, server.http));
    }
}

/// A certificate that is not valid now may be all that there is, so that the server warns and uses it.
#[test]
fn certificates_outside_their_time_are_warned_about() {
    for (years, what) in [
        ([2000, 2001], "expired on Mon, 01 Jan 2001 00:00:00 GMT"),
        (
            [4000, 4001],
            "is not valid before Sat, 01 Jan 4000 00:00:00 GMT",
        ),
    ] {
        let authority = authority();
        let file = authority.path("limits.toml");
        fs::write(&file, authority.table("") + RULE).unwrap();
        let check = || {
            Command::new(BINARY)
                .args(["config", "check"])
                .arg(&file)
                .output()
                .unwrap()
        };
        let fine = check();
        assert!(fine.status.success() && fine.stderr.is_empty(), "{fine:?}");
        authority.issue_for("server", &["localhost"], years);
        let warned = check();
        let text = authority.path("server.pem");
        assert!(warned.status.success());
        let wanted = format!(
            "warning: [server.tls] {}: the certificate {what}; clients will refuse it\n",
            text.display()
        );
        assert_eq!(String::from_utf8_lossy(&warned.stderr), wanted);
    }
}

#[test]
fn a_hundred_certificates_under_load_drop_nothing() {
    let authority = authority();
    let server = serve(&authority, "");
    let over = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let start = |keeps: bool, version| {
        let client = authority.client(None, &[version], &[]);
        let over = Arc::clone(&over);
        let served = Arc::clone(&served);
        let http = server.http;
        let resp = server.resp;
        thread::spawn(move || {
            let new = || {
                let http = Client::over(connect(&client, http));
                (http, resp::Client::<Tls>::over(connect(&client, resp)))
            };
            let mut kept = None;
            while !over.load(Relaxed) {
                let (mut web, mut redis) = kept.take().unwrap_or_else(new);
                let answer = web.post("/v1/check", r#"{"rule":"api","key":"k","cost":0}"#);
                assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                assert_eq!(redis.line("PING"), resp::Reply::Simple("PONG".into()));
                served.fetch_add(1, Relaxed);
                kept = keeps.then_some((web, redis));
            }
        })
    };
    let crowd = [
        start(true, &TLS13),
        start(true, &TLS12),
        start(false, &TLS13),
        start(false, &TLS12),
    ];
    for exchange in 1..=100 {
        authority.issue("server", &["localhost"]);
        server.server.tls.as_ref().unwrap().reload().unwrap();
        let goal = served.load(Relaxed) + 8;
        until("more are served", || {
            served.load(Relaxed) >= goal || crowd.iter().any(|one| one.is_finished())
        });
        assert!(
            !crowd.iter().any(|one| one.is_finished()),
            "one failed at exchange {exchange}"
        );
    }
    over.store(true, Relaxed);
    crowd.into_iter().for_each(|one| one.join().unwrap());
    let text = String::from_utf8(server.server.metrics()).unwrap();
    assert!(
        text.contains("earrrl_tls_handshakes_total{result=\"failed\"} 0"),
        "{text}"
    );
}

#[test]
fn handshakes_are_bounded_in_number_and_time() {
    let authority = authority();
    let limits = "[server]\nmax_connections = 4\nmax_connections_per_address = 4\n\
                  request_timeout = \"1s\"\n";
    let server = TestServer::start(&format!("{limits}{}{RULE}", authority.table("")));
    let client = authority.client(None, &BOTH, &[]);
    // Some clients send nothing, some half a TLS record, and some no TLS at all.
    let mut silent: Vec<_> = (0..4).map(|_| support::connect(server.resp)).collect();
    silent[1].write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
    until("all places are taken", || {
        server.server.connections.len() == 4
    });
    assert!(
        shake(&client, server.resp).is_err(),
        "no place, and nothing in clear text"
    );
    for mut stream in silent {
        assert!(matches!(stream.read(&mut [0; 64]), Ok(0)), "closed");
    }
    until("the places are free", || {
        server.server.connections.is_empty()
    });
    let mut stream = support::connect(server.http);
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
    assert!(healthy(&client, server.http));
}

#[test]
fn a_stop_waits_for_answers_and_not_for_idle_clients() {
    let authority = authority();
    let mut server = serve(&authority, "");
    let client = authority.client(None, &BOTH, &[]);
    let mut idle: Vec<_> = (0..5)
        .map(|_| Client::over(connect(&client, server.http)))
        .collect();
    idle.iter_mut()
        .for_each(|client| assert_eq!(client.get("/healthz").status, 200));
    let mut redis = resp::Client::over(connect(&client, server.resp));
    assert_eq!(redis.line("PING"), resp::Reply::Simple("PONG".into()));
    server.stop();
    server.join();
}

#[test]
fn tables_that_make_no_sense_are_refused() {
    let authority = authority();
    for (more, expected) in [
        (
            "client_names = [\"a\"]",
            "client_names: only with client_ca",
        ),
        (
            "listeners = [\"https\"]",
            "listeners: `https` is none of http, resp, admin, grpc",
        ),
        ("min_version = 1", "unknown field `min_version`"),
    ] {
        let text = format!("{}{RULE}", authority.table(more));
        let error = earrrl_server::config::Config::parse(&text, "test")
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    for file in ["server.pem", "server.key"] {
        let good = fs::read(authority.path(file)).unwrap();
        fs::write(authority.path(file), "nothing").unwrap();
        let config = support::parse(&format!("{}{RULE}", authority.table("")));
        let error = earrrl_server::tls::Tls::load(config.server.tls.as_ref().unwrap()).unwrap_err();
        assert!(error.contains(&shown(&authority.path(file))), "{error}");
        fs::write(authority.path(file), good).unwrap();
    }
}
