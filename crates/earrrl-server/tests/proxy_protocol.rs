//! Tests listeners that expect the PROXY protocol: over every protocol, with bytes of any kind, and
//! behind real load balancers. `debian.rs` tests nginx and HAProxy.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;

use crate::support::balancer::{Balancer, balanced_server, each_client_is_limited, heads};
use crate::support::certificates::{Authority, shown};
use crate::support::http::Client;
use crate::support::resp::Reply;
use crate::support::{TestServer, connect, installed, resp, until};

/// Connects, and names this client in a head of version 1.
fn named(address: SocketAddr, client: &str) -> TcpStream {
    let family = if client.contains(':') { "TCP6" } else { "TCP4" };
    let mut stream = connect(address);
    stream
        .write_all(format!("PROXY {family} {client} {client} 4711 80\r\n").as_bytes())
        .unwrap();
    stream
}

/// Returns the statuses of two authorization requests of a client.
fn asks(server: &TestServer, client: &str, headers: &str) -> [u16; 2] {
    [(); 2].map(|()| {
        let mut client = Client::over(named(server.http, client));
        client.request("GET", "/v1/authz", headers, b"").status
    })
}

/// Returns what curl, which sends a head of version 1, prints for a request.
fn curl(arguments: &[&str]) -> String {
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "--haproxy-protocol",
        "-w",
        "%{http_code} %{http_version}",
    ]);
    let output = curl
        .args(["-o", "/dev/null"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_head_names_the_client() {
    let server = balanced_server("");
    assert_eq!(asks(&server, "192.0.2.7", ""), [200, 429]);
    assert_eq!(asks(&server, "2001:db8::7", ""), [200, 429]);
    assert_eq!(asks(&server, "2001:db8::8", ""), [429, 429], "the same /64");
    // Only a client that is a trusted proxy itself may report another client.
    assert_eq!(
        asks(&server, "192.0.2.8", "X-Forwarded-For: 192.0.2.9\r\n"),
        [200, 429]
    );
    assert_eq!(asks(&server, "192.0.2.9", ""), [200, 429]);
    assert_eq!(
        asks(&server, "127.0.0.1", "X-Forwarded-For: 192.0.2.9\r\n"),
        [429, 429]
    );
    // A load balancer that names no client is the client itself.
    let mut own = connect(server.http);
    own.write_all(b"PROXY UNKNOWN\r\n").unwrap();
    assert_eq!(Client::over(own).get("/v1/authz").status, 200);
    assert_eq!(asks(&server, "127.0.0.1", ""), [429, 429]);
    assert_eq!((heads(&server, "client"), heads(&server, "local")), (14, 1));
}

#[test]
fn every_protocol_follows_a_head() {
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    let server = balanced_server("");
    let mut redis = resp::Client::over(named(server.resp, "192.0.2.7"));
    assert_eq!(redis.line("PING"), Reply::Simple("PONG".into()));
    let rules = format!("http://{}/v1/rules", server.http);
    assert_eq!(curl(&[&rules]), "200 1.1");
    assert_eq!(curl(&["--http2-prior-knowledge", &rules]), "200 2");
    let grpc = format!("http://{}/grpc.health.v1.Health/Check", server.grpc);
    let kind = "content-type: application/grpc";
    assert_eq!(
        curl(&["--http2-prior-knowledge", "-H", kind, "-d", "x", &grpc]),
        "200 2"
    );

    let server = balanced_server(&authority.table(""));
    let url = format!("https://localhost:{}/v1/rules", server.http.port());
    let ca = shown(&authority.path("ca.pem"));
    assert_eq!(curl(&["--cacert", &ca, &url]), "200 2");
    assert_eq!(curl(&["--cacert", &ca, "--http1.1", &url]), "200 1.1");
}

/// Returns the bytes that the server sends before it closes a connection that began with `bytes`.
fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // Unread bytes make the server reset the connection.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn a_connection_without_a_valid_head_is_closed_and_counted() {
    let server = balanced_server("");
    let long = [
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".as_slice(),
        &[0; 5000],
    ]
    .concat();
    let bad: [&[u8]; 7] = [
        b"GET /v1/authz HTTP/1.1\r\nHost: a\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PROXY TCP4 192.0.2.7 192.0.2.7 1 1\nGET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 127.0.0.1,192.0.2.7 192.0.2.7 1 1\r\nGET / HTTP/1.1\r\n\r\n",
        &long,
    ];
    for bytes in bad {
        for address in [server.http, server.resp, server.grpc] {
            assert_eq!(answer_to(address, bytes), b"", "{}", bytes.escape_ascii());
        }
    }
    assert_eq!(heads(&server, "invalid"), 3 * bad.len() as u64);
    let mut half = connect(server.http);
    half.write_all(b"PROXY TCP4 192.0.2.7").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    assert_eq!(half.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert_eq!(heads(&server, "closed"), 1);
}

#[test]
fn a_head_that_does_not_arrive_is_given_up() {
    let server = balanced_server("request_timeout = \"1s\"");
    for bytes in [
        &b""[..],
        b"PROXY TCP4 192.0.2.7 192.0.2.7 1 1",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11",
    ] {
        assert_eq!(
            answer_to(server.http, bytes),
            b"",
            "{}",
            bytes.escape_ascii()
        );
    }
    assert_eq!(heads(&server, "late"), 3);
}

#[test]
fn only_trusted_proxies_are_served() {
    let server = TestServer::start(
        "[server]\nproxy_protocol = [\"http\"]\nadmin = \"127.0.0.1:0\"\n\
         [client_address]\ntrusted_proxies = [\"192.0.2.1\"]\n",
    );
    let head = b"PROXY TCP4 192.0.2.1 192.0.2.1 1 1\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(answer_to(server.http, head), b"");
    assert_eq!(answer_to(server.http, &head[36..]), b"");
    assert_eq!(heads(&server, "untrusted"), 2);
    // Other listeners expect no head.
    assert_eq!(
        Client::connect(server.admin.unwrap())
            .get("/healthz")
            .status,
        200
    );
    assert_eq!(server.resp().line("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn connections_are_counted_by_the_client_that_is_named() {
    let server = balanced_server("max_connections_per_address = 2");
    let ping = |client: &str| {
        let mut redis = resp::Client::over(named(server.resp, client));
        let reply = redis.line("PING");
        (redis, reply)
    };
    let pong = Reply::Simple("PONG".into());
    let kept: Vec<_> = (0..6)
        .map(|number| ping(&format!("192.0.2.{}", number / 2)))
        .collect();
    assert!(kept.iter().all(|(_, reply)| *reply == pong));
    let mut refused = resp::Client::over(named(server.resp, "192.0.2.1"));
    let why = Reply::Error("ERR too many connections from this address".into());
    assert_eq!(refused.reply(), why);
    drop(kept);
    until("its places are free", || {
        server.server.connections.is_empty()
    });
    assert_eq!(ping("192.0.2.1").1, pong);
}

#[test]
fn envoys_clients_are_limited_one_by_one() {
    for version in ["V1", "V2"] {
        let server = balanced_server("");
        let mut command = Command::new(installed("bin/envoy"));
        command.args([
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "--log-level",
            "warn",
        ]);
        command.args(["-c", "balancer.yaml"]);
        let balancer = Balancer::start("envoy/balancer.yaml", &server, &mut command, |text| {
            text.replace("version: V2", &format!("version: {version}"))
        });
        each_client_is_limited(&balancer, &server);
    }
}
