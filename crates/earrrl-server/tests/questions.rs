//! Tests that proxies get a verdict over HTTP/2 for questions of any size, also if the memory for
//! questions is used up.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use axum::http::{HeaderMap, Request, StatusCode};

use earrrl_server::protobuf::authorization::{CheckResponse, HttpResponse};
use earrrl_server::protobuf::ratelimit::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};

use crate::authz::{check, checked};
use crate::support::resp::encode;
use crate::support::{TestServer, connect, grpc, until};

/// The least memory in bytes that can be configured for incomplete requests.
const MEMORY: usize = 1024 * 1024;
const RULES: &str = "[[rule]]\nname = \"all\"\nlimit = \"gcra 0.001/s burst=3\"\n";

/// Returns the answer to a question over HTTP/2 with these headers.
async fn ask(server: SocketAddr, headers: &[(String, String)]) -> (StatusCode, HeaderMap) {
    let stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::get("http://a.example/v1/authz");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let (response, _) = client
        .send_request(request.body(()).unwrap(), true)
        .unwrap();
    let answer = response.await.unwrap();
    connection.abort();
    (answer.status(), answer.headers().clone())
}

fn headers(count: usize, length: usize) -> Vec<(String, String)> {
    (0..count)
        .map(|number| (format!("x-{number}"), "v".repeat(length)))
        .collect()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn large_heads_are_judged_over_http2() {
    for headers in [
        headers(256, 1),
        headers(256, 240),
        headers(8, 8_000),
        headers(1, 64_000),
    ] {
        let (server, _) = TestServer::manual(RULES);
        let statuses: Vec<u16> = runtime().block_on(async {
            let mut statuses = Vec::new();
            for _ in 0..4 {
                statuses.push(ask(server.http, &headers).await.0.as_u16());
            }
            statuses
        });
        assert_eq!(statuses, [200, 200, 200, 429], "{} headers", headers.len());
    }
}

/// Returns a server whose memory for incomplete requests is used up, and the connections that use
/// it.
fn full(more: &str) -> (TestServer, Vec<TcpStream>) {
    let (server, _) = TestServer::manual(&format!(
        "[server]\nmax_held_memory = {MEMORY}\nrequest_timeout = \"1h\"\n{more}"
    ));
    let half = || {
        let mut stream = connect(server.resp);
        let mut bytes = encode(&[&[b'x'; 4_000], b"y"]);
        bytes.truncate(bytes.len() - 2);
        // The server closes a connection that would exceed the bound.
        let _ = stream.write_all(&bytes);
        stream
    };
    let mut held = Vec::new();
    until("little more can be held", || {
        held.push(half());
        server.server.connections.held() > MEMORY - 25_000
    });
    (server, held)
}

#[test]
fn without_memory_a_small_question_is_judged_and_a_large_one_denied() {
    let (server, _held) = full(&format!("[authz]\ndeny_status = 403\n{RULES}"));
    let small = || {
        server
            .http()
            .request("GET", "/v1/authz", "X-Forwarded-Uri: /\r\n", b"")
    };
    assert_eq!([(); 4].map(|()| small().status), [200, 200, 200, 403]);
    let long = format!("X-Long: {}\r\n", "v".repeat(60_000));
    let answer = server.http().request("GET", "/v1/authz", &long, b"");
    assert_eq!(
        (answer.status, answer.header("x-ratelimit-action")),
        (403, Some("deny"))
    );
    assert!(answer.body.contains("no memory"), "{answer:?}");
    // A client that is no proxy gets the reason as an error.
    assert_eq!(
        server
            .http()
            .request("GET", "/v1/rules", &long[..15_000], b"\r\n")
            .status,
        503
    );

    let (status, headers) = runtime().block_on(ask(server.http, &headers(1, 60_000)));
    assert_eq!(
        (status, &headers["x-ratelimit-action"]),
        (StatusCode::FORBIDDEN, &"deny".parse().unwrap())
    );
}

#[test]
fn without_memory_large_calls_of_envoy_are_denied() {
    let (server, _held) = full(RULES);
    let long = format!("/{}", "p".repeat(400_000));
    let answers = checked(&server, vec![check("192.0.2.7", "GET", &long, &[])]);
    let answer: &CheckResponse = answers[0].as_ref().unwrap();
    assert_eq!(answer.status.as_ref().unwrap().code, 8);
    assert!(matches!(
        answer.http_response,
        Some(HttpResponse::Denied(_))
    ));

    let entry = Entry {
        key: "user".into(),
        value: long.as_str().into(),
    };
    let request = RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![entry],
            ..Default::default()
        }],
        hits_addend: 1,
    };
    let answer: RateLimitResponse = runtime().block_on(async {
        let channel = grpc::connect(server.grpc).await;
        let method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        grpc::call(&channel, method, request).await.unwrap()
    });
    assert_eq!(answer.overall_code, 2);
}
