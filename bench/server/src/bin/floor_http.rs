//! Bare axum routes: one that parses the check's JSON and answers JSON of the decision's size, and one
//! that reads the headers of proxies and answers those that they get. On tokio's
//! usual runtime or, with any second argument, on one of its own for each core, as the server has them.

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderValue};
use axum::response::IntoResponse;
use axum::routing::{any, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

#[derive(Deserialize)]
struct Check {
    rule: String,
    key: String,
}

#[derive(Serialize)]
struct Decision {
    allowed: bool,
    action: &'static str,
    rule: String,
    rate: f64,
    limit: f64,
    remaining: u64,
    retry_after: f64,
    reset_after: f64,
    delay: f64,
}

async fn check(Json(check): Json<Check>) -> Json<Decision> {
    Json(Decision {
        allowed: check.key.len() < 1000,
        action: "allow",
        rule: check.rule,
        rate: 0.069_177_106_542_358_06,
        limit: 1.0,
        remaining: 13,
        retry_after: 0.0,
        reset_after: 27.931_617_22,
        delay: 0.0,
    })
}

/// What a proxy is answered, after its headers about the client's request were read.
async fn authz(headers: HeaderMap) -> impl IntoResponse {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let client = text("x-forwarded-for").and_then(|text| text.parse::<IpAddr>().ok());
    let path = text("x-forwarded-uri").and_then(|uri| uri.split('?').next());
    black_box((client, path, text("x-forwarded-method"), text("host")));
    [
        ("ratelimit-policy", "\"default\";q=60;w=60"),
        ("ratelimit", "\"default\";r=59;t=59"),
        ("x-ratelimit-action", "allow"),
    ]
}

fn main() {
    let address: SocketAddr = std::env::args()
        .nth(1)
        .expect("an address")
        .parse()
        .expect("an address");
    let listener = std::net::TcpListener::bind(address).expect("the address is free");
    listener.set_nonblocking(true).expect("non-blocking");
    if std::env::args().nth(2).is_none() {
        return run(&mut Builder::new_multi_thread(), listener);
    }
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let threads: Vec<_> = (0..threads)
        .map(|_| {
            let listener = listener.try_clone().expect("a descriptor");
            std::thread::spawn(move || run(&mut Builder::new_current_thread(), listener))
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
}

fn run(runtime: &mut Builder, listener: std::net::TcpListener) {
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        let router = Router::new()
            .route("/v1/check", post(check))
            .route("/v1/authz", any(authz));
        axum::serve(listener, router).await.expect("serves");
    });
}
