//! The examples, started as servers and called by real clients: curl and a tonic client.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use earrrl::MemoryEngine;
use earrrl_tower::{RateLimitLayer, RequestRule, key};
use http::Request;
use tokio::net::TcpListener;
use tokio::process::Command;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceExt;

#[path = "../examples/axum.rs"]
#[allow(dead_code, reason = "its main")]
mod axum_example;
#[path = "../examples/hyper.rs"]
#[allow(dead_code, reason = "its main")]
mod hyper_example;
#[path = "../examples/manual_clock.rs"]
#[allow(dead_code, reason = "its main")]
mod manual_clock;
#[path = "../examples/tonic.rs"]
#[allow(dead_code, reason = "its main")]
mod tonic_example;

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Serves a router and returns its address.
async fn serve(app: Router) -> SocketAddr {
    let (listener, address) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Returns the output of a program that `scripts/setup` installs.
async fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().await;
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run scripts/setup"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn curl(arguments: &[&str]) -> String {
    said(
        "curl",
        &[&["-sS", "-i", "--max-time", "60"], arguments].concat(),
    )
    .await
}

fn status(answer: &str) -> u16 {
    answer
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .expect(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axum_by_address_and_key_with_costs() {
    let address = serve(axum_example::app().unwrap()).await;
    let home = format!("http://{address}/");
    let export = format!("http://{address}/export/7");
    let anonymous = curl(&[&home]).await;
    assert!(
        anonymous.contains("ratelimit: \"address\";r="),
        "{anonymous}"
    );
    let mut statuses = Vec::new();
    for _ in 0..6 {
        let answer = curl(&["-H", "x-api-key: k1", &export]).await;
        statuses.push(status(&answer));
        assert!(answer.contains("\"key\";q=100;w=10"), "{answer}");
    }
    // A hundred units are five exports. The refill during the test allows one more at most.
    assert_eq!(statuses[..5], [200; 5]);
    let other = curl(&["-H", "x-api-key: k2", &export]).await;
    assert!(other.contains("\"key\";r=80;t=8"), "{other}");
    assert_eq!(status(&other), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hyper_over_http_1_and_2() {
    let (listener, address) = listen().await;
    tokio::spawn(hyper_example::serve(listener));
    let url = format!("http://{address}/");
    assert_eq!(status(&curl(&["--http1.1", &url]).await), 200);
    assert_eq!(status(&curl(&["--http2-prior-knowledge", &url]).await), 200);
    let mut denied = curl(&[&url]).await;
    for _ in 0..60 {
        if status(&denied) == 429 {
            break;
        }
        denied = curl(&[&url]).await;
    }
    assert_eq!(status(&denied), 429, "{denied}");
    assert!(denied.contains("application/problem+json"), "{denied}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonic_unary_and_streaming() {
    let (listener, address) = listen().await;
    tokio::spawn(tonic_example::serve(listener));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    let ask = || HealthCheckRequest {
        service: String::new(),
    };
    client.check(ask()).await.unwrap();
    let mut stream = client.watch(ask()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let answer = client.check(ask()).await.unwrap();
    assert_eq!(
        answer.metadata().get("ratelimit").unwrap(),
        "\"address\";r=0;t=10"
    );
    let unary = client.check(ask()).await.unwrap_err();
    let streaming = client.watch(ask()).await.unwrap_err();
    for status in [unary, streaming] {
        assert_eq!(
            (status.code(), status.message()),
            (Code::ResourceExhausted, "over the rate limit")
        );
        assert!(
            status.metadata().contains_key("grpc-retry-pushback-ms"),
            "{status:?}"
        );
    }
}

#[tokio::test]
async fn one_tests_ones_own_limits_by_a_manual_clock() {
    let expected = [[200; 10].as_slice(), &[429, 200]].concat();
    assert_eq!(manual_clock::statuses().await.unwrap(), expected);
}

/// Each route of axum is a client, whatever its parameters are. Requests for paths without a route share
/// one.
#[tokio::test]
async fn matched_paths_are_keys() {
    let rule = RequestRule::new(
        "per-route",
        "gcra 1/1d burst=1".parse().unwrap(),
        key::MatchedPath,
    );
    let engine = MemoryEngine::new(100).unwrap();
    let layer = RateLimitLayer::builder(engine).rule(rule).build().unwrap();
    let app = Router::new()
        .route("/users/{id}", get("a user"))
        .route("/groups/{id}", get("a group"))
        .layer(layer);
    for (path, status) in [
        ("/users/1", 200),
        ("/users/2", 429),
        ("/groups/1", 200),
        ("/users/%2e", 429),
        ("/nowhere", 404),
        ("/nor-here", 429),
        ("/groups/2", 429),
    ] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
}
