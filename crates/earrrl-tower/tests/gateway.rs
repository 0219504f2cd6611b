//! The example gateway, asked by a client in Python: complete streams, clients that leave, cached
//! prompts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use earrrl::{Charge, Cost, Engine as _, MemoryEngine, Mode};
use http::Request;
use tokio::process::Command;
use tower::ServiceExt;

#[path = "../examples/llm_gateway.rs"]
#[allow(dead_code, reason = "its main")]
mod llm_gateway;

const LIMIT: &str = "fixed-window 1000/3650d";

async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Returns the quota that a user has left.
fn left(engine: &MemoryEngine, user: &str) -> u64 {
    let rule = engine.prepare("tokens", &LIMIT.parse().unwrap()).unwrap();
    let charge = Charge {
        rule,
        key: user.as_bytes(),
        cost: Cost::ONE,
    };
    engine
        .decide(&[charge], Mode::Peek, None)
        .into_inner()
        .unwrap()
        .remaining
}

/// Returns the output of the client: the number of tokens that arrived, or the denial.
async fn chat(gateway: SocketAddr, arguments: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/llm/chat.py");
    let mut python = Command::new("python3");
    let output = python
        .arg(script)
        .arg(format!("http://{gateway}"))
        .args(arguments)
        .output()
        .await;
    let output = output.unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_reserved_streamed_and_committed() {
    let engine = Arc::new(MemoryEngine::new(1000).unwrap());
    let model = serve(llm_gateway::model()).await;
    let gateway = serve(llm_gateway::gateway(engine.clone(), LIMIT, model).unwrap()).await;

    assert_eq!(
        chat(gateway, &["alice", "Tell me a story", "100"]).await,
        "100"
    );
    let prompt = 900 - left(&engine, "alice");
    assert!(
        (5..30).contains(&prompt),
        "the answer, and {prompt} tokens of the prompt"
    );

    assert_eq!(chat(gateway, &["bob", "Again a story", "100"]).await, "100");
    assert_eq!(left(&engine, "bob"), 900, "a cached prompt is free");

    assert_eq!(
        chat(gateway, &["carol", "Tell me a story", "800", "20"]).await,
        "20"
    );
    let mut remaining = left(&engine, "carol");
    for _ in 0..1000 {
        if remaining > 700 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        remaining = left(&engine, "carol");
    }
    assert!(
        (700..980).contains(&remaining),
        "{remaining}: what had been sent when she left"
    );

    let before = left(&engine, "alice");
    let tokens: u64 = chat(gateway, &["alice", "And again", "5000"])
        .await
        .parse()
        .unwrap();
    assert!(
        (before - 30..before).contains(&tokens),
        "{tokens} of {before}: a shorter answer"
    );
    assert_eq!(left(&engine, "alice"), 0);
    let denied = chat(gateway, &["alice", "More", "10"]).await;
    assert!(denied.starts_with("429; retry after "), "{denied}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_have_the_headers_of_the_large_providers() {
    let engine = Arc::new(MemoryEngine::new(1000).unwrap());
    let model = serve(llm_gateway::model()).await;
    let gateway = llm_gateway::gateway(engine, "token-bucket 1000 refill=1/d", model).unwrap();
    let ask = async |max_tokens: u64| {
        let body = serde_json::json!({ "messages": [], "max_tokens": max_tokens }).to_string();
        let request = Request::post("/v1/chat/completions").header("x-user", "alice");
        gateway
            .clone()
            .oneshot(request.body(Body::from(body)).unwrap())
            .await
            .unwrap()
    };
    let header = |response: &Response, name: &str| {
        let value = response
            .headers()
            .get(format!("x-ratelimit-{name}-tokens"))
            .unwrap();
        value.to_str().unwrap().to_owned()
    };
    // The streams stay open, so their estimates stay charged.
    let streams = [ask(100).await, ask(5000).await, ask(10).await];
    let statuses = streams
        .each_ref()
        .map(|response| response.status().as_u16());
    assert_eq!(statuses, [200, 200, 429]);
    for (response, left) in streams.iter().zip([900, 0, 0]) {
        assert_eq!(header(response, "limit"), "1000");
        assert_eq!(header(response, "remaining"), left.to_string());
        let hours = (1000 - left) * 24;
        let reset = header(response, "reset");
        let expected = [format!("{hours}h0m0s"), format!("{}h59m", hours - 1)];
        assert!(
            expected.iter().any(|prefix| reset.starts_with(prefix)),
            "{reset}: {expected:?}"
        );
    }
}

#[test]
fn durations_are_those_that_clients_parse() {
    let millis = [
        0, 20, 999, 1000, 1001, 59_001, 360_000, 3_600_000, 90_061_000,
    ];
    let texts = millis.map(|millis| llm_gateway::duration(Duration::from_millis(millis)));
    let expected = [
        "0ms", "20ms", "999ms", "1s", "2s", "1m0s", "6m0s", "1h0m0s", "25h1m1s",
    ];
    assert_eq!(texts, expected);
    assert_eq!(llm_gateway::duration(Duration::from_nanos(1)), "1ms");
}
