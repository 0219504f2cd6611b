//! Tests estimates that are learned from the commits of reservations.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use earrrl_server::protobuf::reservation::{CommitRequest, CommitResponse};
use serde_json::{Value, json};

use crate::reserve::COMMIT;
use crate::support::redis::Redis;
use crate::support::{TestServer, grpc, parse, until};

const RULE: &str = r#"
[[rule]]
name = "tokens"
limit = "fixed-window 1000000/1d"
key = ["user"]
cost = "attribute:tokens"
estimate = { by = "attribute:model", at_most = 8192, initial = 1024 }
"#;

fn post(server: &TestServer, path: &str, body: &Value) -> Value {
    let response = server.http().post(path, &body.to_string());
    assert_eq!(response.status, 200, "{:?}", response.json());
    response.json()
}

fn granted(held: &Value) -> u64 {
    held["granted"]
        .as_u64()
        .or_else(|| held["granted"][0].as_u64())
        .unwrap()
}

/// Reserves without an estimate for a model, in each of the ways that name it.
fn reserve(server: &TestServer, model: &str) -> Value {
    let named = post(
        server,
        "/v1/reserve",
        &json!({"rule": "tokens", "key": "bob", "label": model}),
    );
    let attributes = json!({"attributes": {"user": "alice", "model": model}});
    let matching = post(server, "/v1/reserve", &attributes);
    assert_eq!(granted(&named), granted(&matching));
    matching
}

fn commit(server: &TestServer, held: &Value, cost: u64) {
    post(
        server,
        "/v1/commit",
        &json!({"reservation": held["reservation"], "cost": cost}),
    );
}

#[test]
fn commits_teach_the_estimate_of_their_label() {
    let (server, _) = TestServer::manual(RULE);
    for _ in 0..30 {
        let held = reserve(&server, "small");
        commit(&server, &held, 100);
        // Repeated commits and released requests teach nothing.
        commit(&server, &held, 5000);
        commit(&server, &reserve(&server, "small"), 0);
    }
    assert_eq!(granted(&reserve(&server, "small")), 100);
    assert_eq!(granted(&reserve(&server, "large")), 1024);
    let given = json!({"attributes": {"user": "alice", "model": "small", "tokens": 7}});
    assert_eq!(granted(&post(&server, "/v1/reserve", &given)), 7);
    let command = server
        .resp()
        .line("EARRRL.RESERVE tokens carol LABEL small")
        .pairs();
    let granted = command
        .iter()
        .find(|(name, _)| name == "granted")
        .map(|(_, value)| value);
    assert_eq!(granted, Some(&crate::support::resp::Reply::bulk("100")));
    let metrics = server.http().get("/metrics").body;
    for line in [
        "earrrl_estimate{rule=\"tokens\"} 100\n",
        "earrrl_estimate_labels{rule=\"tokens\"} 1\n",
        "earrrl_estimate_commits_total{rule=\"tokens\",result=\"within\"} 30\n",
        "earrrl_estimate_ratio_count{rule=\"tokens\"} 30\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
}

/// The ids of reservations are the same in all protocols, and so are their commits.
#[test]
fn a_commit_over_grpc_teaches_the_estimate_of_a_reservation_over_http() {
    let (server, _) = TestServer::manual(RULE);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let channel = runtime.block_on(grpc::connect(server.grpc));
    let commit = |held: &Value, actual_amount| {
        let reservation_id = held["reservation"].as_str().unwrap().to_owned();
        let request = CommitRequest {
            reservation_id,
            actual_amount,
            ..CommitRequest::default()
        };
        let call = grpc::call::<_, CommitResponse>(&channel, COMMIT, request);
        runtime.block_on(call).unwrap();
    };
    for _ in 0..30 {
        let held = reserve(&server, "small");
        commit(&held, 100);
        // A repeated commit and a release teach nothing.
        commit(&held, 5000);
        commit(&reserve(&server, "small"), 0);
    }
    assert_eq!(granted(&reserve(&server, "small")), 100);
    let metrics = server.http().get("/metrics").body;
    let commits = "earrrl_estimate_commits_total{rule=\"tokens\",result=\"within\"} 30\n";
    assert!(metrics.contains(commits), "{metrics}");
}

#[test]
fn a_refused_reload_adds_no_estimate() {
    let (server, _) = TestServer::manual(RULE);
    let other = RULE.replace("name = \"tokens\"", "name = \"other\"");
    let engine = "[engine]\nredis = \"redis://127.0.0.1:1\"\n";
    let refused = server
        .server
        .reload(Ok(parse(&format!("{engine}{RULE}{other}"))));
    assert!(refused.is_err());
    let metrics = server.http().get("/metrics").body;
    assert!(
        metrics.contains("earrrl_estimate{rule=\"tokens\"}"),
        "{metrics}"
    );
    assert!(!metrics.contains("rule=\"other\""), "{metrics}");
}

fn teach(server: &TestServer, model: &str) {
    for _ in 0..30 {
        commit(server, &reserve(server, model), 100);
    }
}

#[test]
fn a_reload_keeps_what_was_learned() {
    let (server, _) = TestServer::manual(RULE);
    teach(&server, "small");
    server
        .server
        .reload(Ok(parse(
            &RULE.replace("0.95", "0.9").replace("8192", "4096"),
        )))
        .unwrap();
    assert_eq!(granted(&reserve(&server, "small")), 100);
}

/// Labels come from clients: a long one is neither kept nor shown.
#[test]
fn labels_are_not_in_the_metrics_and_may_be_long() {
    let (server, _) = TestServer::manual(RULE);
    let long = "m".repeat(40_000);
    teach(&server, &long);
    assert_eq!(granted(&reserve(&server, &long)), 100);
    assert_eq!(granted(&reserve(&server, &long[1..])), 1024);
    assert!(!server.http().get("/metrics").body.contains("mmmm"));
    let both = json!({"attributes": {"user": "alice"}, "label": "small"});
    assert_eq!(
        server.http().post("/v1/reserve", &both.to_string()).status,
        422
    );
}

#[test]
fn estimates_are_learned_over_redis() {
    let redis = Redis::start();
    let engine = format!(
        "[engine]\nredis = \"{}\"\ndeadline = \"10s\"\n",
        redis.url()
    );
    let server = TestServer::start(&(engine + RULE));
    until("Redis decides", || {
        server.http().get("/readyz").json()["engine"]["mode"] == "redis"
    });
    teach(&server, "small");
    assert_eq!(granted(&reserve(&server, "small")), 100);
}

/// A prolonged reservation teaches at its commit, however many others there were meanwhile.
#[test]
fn a_renewed_reservation_teaches() {
    let (server, clock) = TestServer::manual(RULE);
    let held: Vec<Value> = (0..30).map(|_| reserve(&server, "small")).collect();
    clock.advance(Duration::from_secs(200));
    for held in &held {
        let renewal = json!({"reservation": held["reservation"]}).to_string();
        assert_eq!(server.http().post("/v1/renew", &renewal).status, 204);
    }
    clock.advance(Duration::from_secs(200));
    (0..600).for_each(|_| drop(reserve(&server, "large")));
    held.iter().for_each(|held| commit(&server, held, 100));
    assert_eq!(granted(&reserve(&server, "small")), 100);
}

#[test]
fn a_configuration_that_cannot_learn_names_the_field() {
    let streams = RULE.replace("fixed-window 1000000/1d", "concurrent 10000 timeout=60s");
    let near = format!("[engine]\nredis = \"redis://127.0.0.1\"\n{RULE}consistency = \"near\"\n");
    for (config, expected) in [
        (streams, "estimate: concurrent counts requests"),
        (near, "estimate: near rules have no reservations"),
        (
            RULE.replace("8192", "1000001"),
            "estimate: at_most: 1000001 can never pass",
        ),
        (
            RULE.replace("1024", "9000"),
            "estimate: initial: 9000 is not from 1 to at_most",
        ),
        (RULE.replace("1024", "0"), "estimate: initial"),
        (
            RULE.replace("1024", "1, quantile = 1.0"),
            "estimate: quantile: 1 is not from 0.5",
        ),
        (
            RULE.replace("1024", "1, quantile = nan"),
            "estimate: quantile: NaN is not from 0.5",
        ),
        (
            RULE.replace("1024", "1, half_life = \"0s\""),
            "estimate: half_life",
        ),
        (
            RULE.replace("attribute:model", "attribute:"),
            "estimate: by",
        ),
    ] {
        let error = earrrl_server::config::Config::parse(&config, "test")
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
