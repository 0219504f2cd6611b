//! Tests the layer of `earrrl-tower` with a real server, through which machines share their limits.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::convert::Infallible;
use std::future::pending;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Server};
use bytes::Bytes;
use earrrl::{Charge, Cost, Engine, Mode};
use earrrl_redis::{Options, RedisEngine};
use earrrl_tower::{ClientAddress, PeerAddress, RateLimitLayer, RequestHold, RequestRule, key};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};

async fn machine(server: &Server, rule: RequestRule) -> RateLimitLayer<RedisEngine> {
    // The deadline is long, so that a busy machine does not decide without Redis.
    let mut options = Options::new(&server.url());
    options.deadline = Duration::from_secs(30);
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    RateLimitLayer::builder(engine).rule(rule).build().unwrap()
}

fn per_address(rule: &str) -> RequestRule {
    RequestRule::new(
        "per-address",
        rule.parse().unwrap(),
        ClientAddress::default(),
    )
}

async fn ask(layer: &RateLimitLayer<RedisEngine>, peer: &str) -> (StatusCode, HeaderMap) {
    let inner = service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let mut request = Request::new(());
    request
        .extensions_mut()
        .insert(PeerAddress(peer.parse().unwrap()));
    let response = layer.layer(inner).oneshot(request).await.unwrap();
    (response.status(), response.headers().clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_share_a_limit_and_tell_of_it() {
    let server = Server::start(&[]).await;
    let rule = || per_address("token-bucket 5 refill=1/1d");
    let machines = [
        machine(&server, rule()).await,
        machine(&server, rule()).await,
    ];
    for nth in 0..8 {
        let (status, headers) = ask(&machines[nth % 2], "192.0.2.7").await;
        let text = |name: &str| {
            headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let limit = text("ratelimit").unwrap();
        assert_eq!(
            text("ratelimit-policy").unwrap(),
            "\"per-address\";q=5;w=432000"
        );
        if nth < 5 {
            assert_eq!(status, 200);
            // The last answer has no remaining requests; its wait for the next one is found by a
            // peek.
            assert!(
                limit.starts_with(&format!("\"per-address\";r={};t=", 4 - nth)),
                "{limit}"
            );
            assert_eq!(text("retry-after"), None);
        } else {
            assert_eq!(status, 429);
            assert!(limit.starts_with("\"per-address\";r=0;t="), "{limit}");
            let wait: u64 = text("retry-after").unwrap().parse().unwrap();
            assert!((1..=86_400).contains(&wait), "{wait}");
        }
    }
    assert_eq!(
        ask(&machines[0], "192.0.2.8").await.0,
        200,
        "another client"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_keeps_its_count_under_another_limit_on_every_machine() {
    let server = Server::start(&[]).await;
    let mut machines = Vec::new();
    for limit in ["", "fixed-window 5/30d", "fixed-window 5/29d"] {
        let rule = per_address("fixed-window 3/30d").limit_by(|_| limit.parse().ok());
        machines.push(machine(&server, rule).await);
    }
    let mut served = Vec::new();
    for nth in [0, 0, 0, 0, 1, 1, 1, 2, 0] {
        served.push(ask(&machines[nth], "192.0.2.7").await.0 == 200);
    }
    let expected = [true, true, true, false, true, true, false, true, false];
    assert_eq!(served, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_response_costs_stands_on_every_machine() {
    let server = Server::start(&[]).await;
    let rule = || {
        let free = per_address("token-bucket 10 refill=1/1d").cost(Cost::ZERO);
        free.cost_after(|_| Cost::from_units(6))
    };
    let machines = [
        machine(&server, rule()).await,
        machine(&server, rule()).await,
    ];
    let mut statuses = Vec::new();
    for nth in 0..4 {
        statuses.push(ask(&machines[nth % 2], "192.0.2.7").await.0.as_u16());
    }
    // The cost is known only afterwards: 6 of 10 are used, then 12, since the charge is kept
    // although it exceeds the limit.
    assert_eq!(statuses, [200, 200, 429, 429]);
}

const TOKENS: &str = "fixed-window 1000/3650d";

/// Waits until this many tokens are left, by the engine of a layer.
async fn left(layer: &RateLimitLayer<RedisEngine>, expected: u64) {
    let rule = layer
        .engine()
        .prepare("tokens", &TOKENS.parse().unwrap())
        .unwrap();
    let charge = Charge {
        rule,
        key: b"",
        cost: Cost::ONE,
    };
    let since = Instant::now();
    loop {
        let decision = layer
            .engine()
            .decide(&[charge], Mode::Peek, None)
            .await
            .unwrap();
        if decision.remaining == expected {
            return;
        }
        assert!(
            since.elapsed() < PATIENCE,
            "{} of {expected}",
            decision.remaining
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Each request reserves 400 tokens at one machine; the other one sees the estimate, then the cost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_is_committed_however_its_request_ends() {
    static HANDLED: Notify = Notify::const_new();
    let server = Server::start(&[]).await;
    let rule = || RequestRule::new("tokens", TOKENS.parse().unwrap(), key::Everyone);
    let rule = || rule().cost(Cost::from_units(400)).reserved();
    let machines = [
        machine(&server, rule()).await,
        machine(&server, rule()).await,
    ];
    let inner = service_fn(|request: Request<u64>| async move {
        let hold = request.extensions().get::<RequestHold>().unwrap();
        hold.report(Cost::from_units(*request.body()));
        if *request.body() == 7 {
            HANDLED.notify_one();
            pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(Full::from("tokens")))
    });
    let respond = |tokens| {
        machines[0]
            .clone()
            .layer(inner)
            .oneshot(Request::new(tokens))
    };

    let response = respond(50).await.unwrap();
    left(&machines[1], 600).await;
    response.into_body().collect().await.unwrap();
    left(&machines[1], 950).await;

    let unread = respond(30).await.unwrap();
    left(&machines[1], 550).await;
    drop(unread);
    left(&machines[1], 920).await;

    // A client that leaves before it has an answer, as servers drop the future then.
    let unanswered = tokio::spawn(respond(7));
    left(&machines[1], 520).await;
    // Redis has counted the estimate, but its answer may still be on the way.
    HANDLED.notified().await;
    unanswered.abort();
    left(&machines[1], 913).await;
}
