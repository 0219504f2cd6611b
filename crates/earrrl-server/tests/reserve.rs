//! Tests reservations over HTTP and RESP: the shapes, exactly-once commits, expiry, and the bounds.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use serde_json::{Value, json};

use earrrl_server::protobuf::ratelimit::{Code, Entry, RateLimitDescriptor};
use earrrl_server::protobuf::ratelimit::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};

use crate::support::http::Response;
use crate::support::redis::Redis;
use crate::support::resp::Reply;
use crate::support::{TestServer, grpc, until};

const RULES: &str = r#"
[engine]
max_reservations = 3

[[rule]]
name = "tokens"
limit = "token-bucket 10000 refill=1/d"
key = ["user"]
cost = "attribute:tokens"
match = { path = "/v1/chat" }

[[rule]]
name = "requests"
limit = "fixed-window 5/1d"
key = ["user"]
on_expiry = "release"
match = { path = "/v1/chat" }
"#;

pub(crate) fn post(server: &TestServer, path: &str, body: &Value) -> Response {
    server.http().post(path, &body.to_string())
}

pub(crate) fn reserve(server: &TestServer, body: &Value) -> Value {
    let response = post(server, "/v1/reserve", body);
    assert_eq!(response.status, 200, "{:?}", response.json());
    response.json()
}

fn remaining(server: &TestServer, rule: &str) -> u64 {
    let peek = post(server, "/v1/peek", &json!({"rule": rule, "key": "alice"}));
    peek.json()["remaining"].as_u64().unwrap()
}

#[test]
fn an_estimate_is_corrected_exactly_once() {
    let (server, _) = TestServer::manual(RULES);
    let held = reserve(
        &server,
        &json!({"rule": "tokens", "key": "alice", "cost": 4096, "ttl": 60}),
    );
    assert_eq!(
        (&held["allowed"], &held["granted"]),
        (&json!(true), &json!(4096))
    );
    assert_eq!(held["remaining"], 5904);
    let id = held["reservation"].as_str().unwrap();
    assert_eq!(id.len(), 32);
    let actual = json!({"reservation": id, "cost": 731});
    for repeated in [false, true] {
        let response = post(&server, "/v1/commit", &actual);
        assert_eq!(response.status, 200);
        let figures = response.json();
        assert_eq!(
            (&figures["remaining"], &figures["rule"]),
            (&json!(9269), &json!("tokens"))
        );
        assert_eq!(figures["repeated"], repeated);
    }
    let above = reserve(
        &server,
        &json!({"rule": "tokens", "key": "alice", "cost": 9000}),
    );
    let above = json!({"reservation": above["reservation"], "cost": 20_000});
    assert_eq!(post(&server, "/v1/commit", &above).json()["remaining"], 0);
    let denied = post(
        &server,
        "/v1/check",
        &json!({"rule": "tokens", "key": "alice", "cost": 1}),
    );
    assert_eq!(denied.status, 429);
}

#[test]
fn matching_rules_reserve_all_or_nothing_and_commit_by_name() {
    let (server, _) = TestServer::manual(RULES);
    let chat = |tokens: u64| json!({"attributes": {"user": "alice", "path": "/v1/chat", "tokens": tokens}});
    let held = reserve(&server, &chat(6000));
    assert_eq!(held["granted"], json!([6000, 1]));
    let denied = post(&server, "/v1/reserve", &chat(6000));
    assert_eq!(
        (denied.status, &denied.json()["reservation"]),
        (429, &Value::Null)
    );
    assert_eq!(denied.json()["granted"], json!([0, 0]));
    assert_eq!(
        (remaining(&server, "tokens"), remaining(&server, "requests")),
        (4000, 4)
    );
    let costs = json!({"reservation": held["reservation"], "costs": {"tokens": 100}});
    assert_eq!(post(&server, "/v1/commit", &costs).status, 200);
    assert_eq!(
        (remaining(&server, "tokens"), remaining(&server, "requests")),
        (9900, 4)
    );
    let list = [
        json!({"rule": "tokens", "key": "alice", "cost": 20_000}),
        json!({"rule": "requests", "key": "alice", "cost": 1}),
    ];
    let most = reserve(&server, &json!({"rules": list, "at_most": true}));
    assert_eq!(most["granted"], json!([9900, 1]));
}

/// The work is done, so a commit above `max_cost` must not fail and let the estimate expire.
#[test]
fn a_commit_above_max_cost_is_charged_as_max_cost() {
    let (server, _) = TestServer::manual(&RULES.replace("on_expiry", "max_cost = 3\non_expiry"));
    let held = reserve(
        &server,
        &json!({"rule": "requests", "key": "alice", "cost": 1}),
    );
    let commit = json!({"reservation": held["reservation"], "cost": 4});
    assert_eq!(post(&server, "/v1/commit", &commit).status, 200);
    assert_eq!(remaining(&server, "requests"), 2);
}

#[test]
fn reservations_expire_and_are_bounded() {
    let (server, clock) = TestServer::manual(RULES);
    let ask = json!({"rule": "requests", "key": "alice", "cost": 1, "ttl": 10});
    let held: Vec<Value> = (0..3).map(|_| reserve(&server, &ask)).collect();
    let full = post(&server, "/v1/reserve", &ask);
    assert_eq!(full.status, 503);
    assert!(
        full.json()["detail"]
            .as_str()
            .unwrap()
            .contains("max_reservations")
    );
    assert_eq!(remaining(&server, "requests"), 2);
    let metrics = server.http().get("/metrics");
    assert!(
        metrics.body.contains("earrrl_reservations 3\n"),
        "{}",
        metrics.body
    );
    clock.advance(Duration::from_secs(10));
    let late = json!({"reservation": held[0]["reservation"], "cost": 0});
    assert_eq!(post(&server, "/v1/commit", &late).status, 404);
    reserve(&server, &ask);
    assert_eq!(remaining(&server, "requests"), 4);
}

#[test]
fn invalid_reservations_are_refused() {
    let (server, _) = TestServer::manual(RULES);
    let id = "00000000000000000000000000000000";
    for (path, body, status) in [
        (
            "/v1/reserve",
            json!({"rule": "tokens", "key": "alice", "ttl": 0}),
            422,
        ),
        (
            "/v1/reserve",
            json!({"rule": "tokens", "key": "alice", "ttl": 86_401}),
            422,
        ),
        ("/v1/reserve", json!({"rule": "tokens"}), 422),
        ("/v1/reserve", json!({"rule": "token", "key": "alice"}), 404),
        (
            "/v1/reserve",
            json!({"rule": "gcra 1/s burst=5", "key": "alice"}),
            404,
        ),
        (
            "/v1/reserve",
            json!({"rule": "tokens", "key": "alice", "time": 1}),
            400,
        ),
        ("/v1/commit", json!({"reservation": id, "cost": 1}), 404),
        ("/v1/commit", json!({"reservation": "nope", "cost": 1}), 404),
        ("/v1/commit", json!({"reservation": id, "cost": -1}), 422),
        (
            "/v1/commit",
            json!({"reservation": id, "cost": 1, "costs": {}}),
            422,
        ),
        (
            "/v1/commit",
            json!({"reservation": id, "costs": {"tokens": "1"}}),
            400,
        ),
        ("/v1/commit", json!({"cost": 1}), 400),
    ] {
        let response = post(&server, path, &body);
        assert_eq!(response.status, status, "{body}: {:?}", response.json());
    }
    let held = reserve(
        &server,
        &json!({"rule": "tokens", "key": "alice", "cost": 10}),
    );
    let commit = |costs: &str| {
        let id = &held["reservation"];
        server.http().post(
            "/v1/commit",
            &format!(r#"{{"reservation": {id}, "costs": {costs}}}"#),
        )
    };
    assert_eq!(commit(r#"{"none": 1}"#).status, 422);
    assert_eq!(commit(r#"{"tokens": 1, "tokens": 2}"#).status, 422);
    assert_eq!(remaining(&server, "tokens"), 9990);
    // The reservation has no charge under `requests`, so the cost under this rule is ignored.
    assert_eq!(commit(r#"{"requests": 1, "tokens": 1}"#).status, 200);
    assert_eq!(remaining(&server, "tokens"), 9999);
}

const STREAMS: &str = r#"
[[rule]]
name = "tokens"
limit = "fixed-window 1000/1d"
key = ["user"]
cost = "attribute:tokens"

[[rule]]
name = "streams"
limit = "concurrent 2 timeout=60s"
key = ["user"]
override = [{ key = { user = "bob" }, limit = "concurrent 1 timeout=10s" }]
"#;

#[test]
fn a_client_has_at_most_so_many_reservations_at_a_time() {
    let (server, clock) = TestServer::manual(STREAMS);
    let attributes = |user| json!({"attributes": {"user": user, "tokens": 100}});
    let first = reserve(&server, &attributes("alice"));
    assert_eq!(first["granted"], json!([100, 1]));
    reserve(&server, &attributes("alice"));
    let denied = post(&server, "/v1/reserve", &attributes("alice"));
    assert_eq!(
        (denied.status, &denied.json()["rule"]),
        (429, &json!("streams"))
    );
    assert_eq!(denied.header("retry-after"), Some("60"));
    let policy = denied.header("ratelimit-policy").unwrap();
    assert!(
        policy.contains("\"streams\";q=2;qu=\"concurrent-requests\""),
        "{policy}"
    );
    assert_eq!(
        (remaining(&server, "tokens"), remaining(&server, "streams")),
        (800, 0)
    );
    let costs = json!({"reservation": first["reservation"], "costs": {"tokens": 7}});
    for _ in 0..2 {
        assert_eq!(post(&server, "/v1/commit", &costs).status, 200);
        assert_eq!(
            (remaining(&server, "tokens"), remaining(&server, "streams")),
            (893, 1)
        );
    }
    let one = post(
        &server,
        "/v1/reserve",
        &json!({"rule": "streams", "key": "alice"}),
    );
    let limits = one.header("ratelimit").unwrap();
    assert!(limits.starts_with("\"streams\";r=0;t="), "{limits}");
    reserve(&server, &attributes("bob"));
    assert_eq!(post(&server, "/v1/reserve", &attributes("bob")).status, 429);
    clock.advance(Duration::from_secs(10));
    reserve(&server, &attributes("bob"));
    clock.advance(Duration::from_secs(50));
    assert_eq!(remaining(&server, "streams"), 2);
    let late = json!({"reservation": one.json()["reservation"], "cost": 0});
    assert_eq!(post(&server, "/v1/commit", &late).status, 404);
}

#[test]
fn a_check_of_a_concurrent_rule_is_refused_and_a_matching_one_passes_it_by() {
    let (server, _) = TestServer::manual(STREAMS);
    let named = json!({"rule": "streams", "key": "alice"});
    let both = json!({"rules": [json!({"rule": "tokens", "key": "alice"}), &named]});
    for (path, body) in [
        ("check", &named),
        ("check", &both),
        ("charge", &named),
        ("refund", &named),
    ] {
        let refused = post(&server, &format!("/v1/{path}"), body);
        assert_eq!(refused.status, 422, "{path}");
        let detail = refused.json()["detail"].to_string();
        assert!(
            detail.contains("rule streams: `concurrent 2 timeout=60s` counts"),
            "{detail}"
        );
    }
    for line in ["EARRRL.CHECK streams alice", "EARRRL.CHARGE streams alice"] {
        let Reply::Error(error) = server.resp().line(line) else {
            panic!("{line}")
        };
        assert!(error.contains("reserve, instead of checking"), "{error}");
    }
    for _ in 0..5 {
        let passed = post(
            &server,
            "/v1/check",
            &json!({"attributes": {"user": "alice"}}),
        );
        assert_eq!(passed.status, 200);
    }
    assert_eq!(
        (remaining(&server, "tokens"), remaining(&server, "streams")),
        (995, 2)
    );
}

#[test]
fn the_commands_reserve_places() {
    let (server, _) = TestServer::manual(STREAMS);
    let mut client = server.resp();
    let held = client.line("EARRRL.RESERVE streams alice").pairs();
    let both = client
        .line("EARRRL.RESERVE streams alice AND tokens alice COST 10")
        .pairs();
    assert_eq!(
        (text(&both, "remaining"), remaining(&server, "tokens")),
        ("0".to_owned(), 990)
    );
    let denied = client.line("EARRRL.RESERVE streams alice").pairs();
    assert_eq!(
        (text(&denied, "granted"), remaining(&server, "streams")),
        ("0".to_owned(), 0)
    );
    client
        .line(&format!(
            "EARRRL.COMMIT {} COST 731",
            text(&held, "reservation")
        ))
        .pairs();
    assert_eq!(remaining(&server, "streams"), 1);
}

/// One server reserves, the other commits.
#[test]
fn servers_share_places_in_redis() {
    let redis = Redis::start();
    let engine = format!(
        "[engine]\nredis = \"{}\"\ndeadline = \"10s\"\n",
        redis.url()
    );
    let servers = [(), ()].map(|()| {
        let server = TestServer::start(&(engine.clone() + STREAMS));
        until("Redis decides", || {
            server.http().get("/readyz").json()["engine"]["mode"] == "redis"
        });
        server
    });
    let attributes = json!({"attributes": {"user": "alice", "tokens": 100}});
    let first = reserve(&servers[0], &attributes);
    reserve(&servers[1], &attributes);
    let denied = post(&servers[0], "/v1/reserve", &attributes);
    assert_eq!(
        (denied.status, &denied.json()["rule"]),
        (429, &json!("streams"))
    );
    let costs = json!({"reservation": first["reservation"], "costs": {"tokens": 7}});
    for repeated in [false, true] {
        let response = post(&servers[1], "/v1/commit", &costs);
        assert_eq!(
            (response.status, &response.json()["repeated"]),
            (200, &json!(repeated))
        );
    }
    assert_eq!(
        (
            remaining(&servers[0], "tokens"),
            remaining(&servers[0], "streams")
        ),
        (893, 1)
    );
    let named = json!({"rule": "streams", "key": "alice"});
    assert_eq!(post(&servers[0], "/v1/check", &named).status, 422);
}

#[test]
fn a_configuration_that_concurrent_cannot_keep_names_the_field() {
    let one = "override = [{ key = { user = \"bob\" }, limit = \"concurrent 1 timeout=10s\" }]";
    for (instead, expected) in [
        (
            one.replace("concurrent 1 timeout=10s", "gcra 1/s burst=1"),
            "limit: expected concurrent for",
        ),
        (
            "on_expiry = \"keep\"".to_owned(),
            "on_expiry: concurrent always releases",
        ),
        (
            "consistency = \"near\"".to_owned(),
            "consistency: concurrent is always exact",
        ),
        (
            "action = \"delay\"\nmax_delay = \"1s\"".to_owned(),
            "can't delay",
        ),
    ] {
        let config = STREAMS.replace(one, &instead);
        let error = earrrl_server::config::Config::parse(&config, "test")
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let config = earrrl_server::config::Config::parse(STREAMS, "test").unwrap();
    assert_eq!(config.cautions().len(), 1);
    assert!(
        config.cautions()[0].starts_with("streams: concurrent 2"),
        "{:?}",
        config.cautions()
    );
}

/// The actual cost of each stream is at most its estimate, so the sum never exceeds the limit.
#[test]
fn a_hundred_concurrent_streams_stay_within_the_limit() {
    let (server, _) = TestServer::manual(&RULES.replace("max_reservations = 3", ""));
    let spend = |stream: u64| {
        let mut client = server.http();
        let mut spent = 0;
        let mut post = |path: &str, body: Value| client.post(path, &body.to_string());
        for round in 0..5 {
            let estimate = 50 + (stream * 7 + round) % 50;
            let ask = json!({"rule": "tokens", "key": "alice", "cost": estimate});
            let held = post("/v1/reserve", ask);
            if held.status == 200 {
                let actual = estimate * (stream % 11) / 10;
                let actual = actual.min(estimate);
                let reservation = &held.json()["reservation"];
                let commit = json!({"reservation": reservation, "cost": actual});
                assert_eq!(post("/v1/commit", commit).status, 200);
                spent += actual;
            }
        }
        spent
    };
    let spent: u64 = std::thread::scope(|scope| {
        let spend = &spend;
        let streams: Vec<_> = (0..100)
            .map(|nth| scope.spawn(move || spend(nth)))
            .collect();
        streams
            .into_iter()
            .map(|stream| stream.join().unwrap())
            .sum()
    });
    assert!((5_000..=10_000).contains(&spent), "{spent}");
    assert_eq!(remaining(&server, "tokens"), 10_000 - spent);
}

/// Runs the client that the documentation names: a whole stream, one that its reader leaves, one
/// that is granted less than its estimate, and one that is denied.
#[test]
fn the_documented_client_commits_what_was_streamed() {
    let (server, _) = TestServer::manual(RULES);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/llm/stream.py");
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new("python3");
        command
            .arg(script)
            .args(words)
            .env("EARRRL", format!("http://{}", server.http));
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(run(&["alice", "tell me a story", "4000"]), "4000");
    assert_eq!(remaining(&server, "tokens"), 6000);
    assert_eq!(run(&["alice", "tell me a story", "4000", "10"]), "10");
    assert_eq!(remaining(&server, "tokens"), 5990);
    let granted: u64 = run(&["alice", "tell me a story", "9000"]).parse().unwrap();
    assert!((5980..5990).contains(&granted), "{granted}");
    let used = json!({"rule": "tokens", "key": "alice", "cost": 20});
    post(&server, "/v1/charge", &used);
    assert!(run(&["alice", "tell me a story", "9000"]).starts_with("denied"));
}

#[test]
fn the_commands_reserve_and_commit() {
    let (server, _) = TestServer::manual(RULES);
    let mut client = server.resp();
    let mut ask = |line: &str| client.line(line);
    let held = ask("EARRRL.RESERVE tokens alice COST 4096 TTL 60").pairs();
    let id = text(&held, "reservation");
    assert_eq!((text(&held, "granted"), id.len()), ("4096".to_owned(), 32));
    assert_eq!(remaining(&server, "tokens"), 5904);
    let committed = ask(&format!("EARRRL.COMMIT {id} COST 96")).pairs();
    assert_eq!(text(&committed, "remaining"), "9904");
    let both = ask("EARRRL.RESERVE tokens alice COST 20000 ATMOST AND requests alice").pairs();
    let granted = [Reply::bulk("9904"), Reply::bulk("1")];
    assert_eq!(value(&both, "granted"), &Reply::Array(granted.into()));
    ask(&format!(
        "EARRRL.COMMIT {} COST 0",
        text(&both, "reservation")
    ))
    .pairs();
    assert_eq!(
        (remaining(&server, "tokens"), remaining(&server, "requests")),
        (9904, 5)
    );
    let both = ask("EARRRL.RESERVE tokens alice COST 904 AND requests alice COST 5").pairs();
    let id = text(&both, "reservation");
    ask(&format!(
        "EARRRL.COMMIT {id} RULE tokens COST 4 RULE requests COST 2"
    ))
    .pairs();
    assert_eq!(
        (remaining(&server, "tokens"), remaining(&server, "requests")),
        (9900, 3)
    );
    let denied = ask("EARRRL.RESERVE requests alice COST 4").pairs();
    assert_eq!(text(&denied, "granted"), "0");
    let Reply::Error(error) = ask("EARRRL.COMMIT nope COST 1") else {
        panic!("an id")
    };
    assert!(error.contains("expected 32 hexadecimal digits"), "{error}");
    for wrong in [
        &*format!("EARRRL.COMMIT {id} COST 1 RULE tokens COST 1"),
        &*format!("EARRRL.COMMIT {id} RULE tokens 1"),
        &*format!("EARRRL.COMMIT {id} RULE tokens COST"),
        &*format!("EARRRL.COMMIT {id} RULE none COST 1"),
        "EARRRL.RESERVE tokens",
        "EARRRL.RESERVE tokens alice TTL 0",
        "EARRRL.RESERVE tokens alice COST 1 COST 2",
        "EARRRL.RESERVE tokens alice ATMOST ATMOST",
        "EARRRL.RESERVE tokens alice LABEL a",
        "EARRRL.RESERVE none alice",
        "EARRRL.COMMIT 1",
        "EARRRL.COMMIT 00000000000000000000000000000000",
    ] {
        assert!(matches!(ask(wrong), Reply::Error(_)), "{wrong}");
    }
}

fn value<'a>(pairs: &'a [(String, Reply)], name: &str) -> &'a Reply {
    &pairs.iter().find(|(known, _)| known == name).unwrap().1
}

fn text(pairs: &[(String, Reply)], name: &str) -> String {
    match value(pairs, name) {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

pub(crate) const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
pub(crate) const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";

/// Five hits a minute are allowed on the path `/login`.
#[test]
fn kuadrants_service_reserves_and_commits() {
    let server = TestServer::with_descriptors("");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let channel = grpc::connect(server.grpc).await;
        let entries = vec![Entry {
            key: "path".to_owned(),
            value: b"/login".to_vec(),
        }];
        let descriptor = RateLimitDescriptor {
            entries,
            ..RateLimitDescriptor::default()
        };
        let domain = "shop".to_owned();
        let descriptors = vec![descriptor];
        let reserve = async |amount| {
            let domain = domain.clone();
            let descriptors = descriptors.clone();
            let request = ReserveRequest {
                domain,
                descriptors,
                amount,
                ttl: None,
            };
            grpc::call::<_, ReserveResponse>(&channel, RESERVE, request)
                .await
                .unwrap()
        };
        let commit = async |reservation_id: &str, actual_amount| {
            let domain = domain.clone();
            let descriptors = descriptors.clone();
            let reservation_id = reservation_id.to_owned();
            let request = CommitRequest {
                domain,
                descriptors,
                reservation_id,
                actual_amount,
            };
            grpc::call::<_, CommitResponse>(&channel, COMMIT, request)
                .await
                .unwrap()
        };
        let held = reserve(4).await;
        assert_eq!((held.code(), held.reservation_id.len()), (Code::Ok, 32));
        let denied = reserve(2).await;
        assert_eq!(
            (denied.code(), &*denied.reservation_id),
            (Code::OverLimit, "")
        );
        commit(&held.reservation_id, 1).await;
        // The same commit again changes nothing.
        commit(&held.reservation_id, 5).await;
        let rest = reserve(4).await;
        assert_eq!(rest.code(), Code::Ok);
        commit(&rest.reservation_id, 0).await;
        // An unknown reservation is charged as a report is.
        commit("unknown", 3).await;
        assert_eq!(reserve(2).await.code(), Code::OverLimit);
        assert_eq!(reserve(1).await.code(), Code::Ok);
    });
}

/// Returns the descriptor of logins.
pub(crate) fn login() -> RateLimitDescriptor {
    let entry = Entry {
        key: "path".to_owned(),
        value: b"/login".to_vec(),
    };
    RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    }
}

/// A late retry of a commit, which the server has forgotten, is not taken for a report.
#[test]
fn a_forgotten_commit_is_not_charged_again_over_grpc() {
    let server = TestServer::with_descriptors("[engine]\nmax_reservations = 1\n");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let channel = grpc::connect(server.grpc).await;
        let descriptors = vec![login()];
        let domain = "shop".to_owned();
        let reserve = async |amount| {
            let domain = domain.clone();
            let descriptors = descriptors.clone();
            let request = ReserveRequest {
                domain,
                descriptors,
                amount,
                ttl: None,
            };
            grpc::call::<_, ReserveResponse>(&channel, RESERVE, request)
                .await
                .unwrap()
        };
        let commit = async |id: &str, actual_amount| {
            let domain = domain.clone();
            let descriptors = descriptors.clone();
            let reservation_id = id.to_owned();
            let request = CommitRequest {
                domain,
                descriptors,
                reservation_id,
                actual_amount,
            };
            grpc::call::<_, CommitResponse>(&channel, COMMIT, request)
                .await
                .unwrap()
        };
        let first = reserve(2).await.reservation_id;
        commit(&first, 2).await;
        // With this bound, each shard of the reservations remembers only one that was committed.
        for _ in 0..64 {
            commit(&reserve(1).await.reservation_id, 0).await;
        }
        commit(&first, 2).await;
        assert_eq!(reserve(3).await.code(), Code::Ok);
    });
}

#[test]
fn a_renewed_reservation_expires_later() {
    let (server, clock) = TestServer::manual(RULES);
    let held = reserve(
        &server,
        &json!({"rule": "requests", "key": "alice", "cost": 1, "ttl": 10}),
    );
    let id = held["reservation"].as_str().unwrap();
    let renew = |ttl: &Value| {
        post(
            &server,
            "/v1/renew",
            &json!({"reservation": id, "ttl": ttl}),
        )
        .status
    };
    clock.advance(Duration::from_secs(9));
    assert_eq!(renew(&json!(20)), 204);
    clock.advance(Duration::from_secs(19));
    assert_eq!(
        remaining(&server, "requests"),
        4,
        "the reservation lives on"
    );
    let resp = |words: &str| server.resp().line(&format!("EARRRL.RENEW {words}"));
    assert_eq!(
        resp(&format!("{id} TTL 20")),
        Reply::Simple("OK".to_owned())
    );
    assert_eq!(renew(&json!(0)), 422);
    for wrong in [
        "",
        "nope",
        &format!("{id} TTL"),
        &format!("{id} TTL 0"),
        &format!("{id} COST 1"),
    ] {
        assert!(matches!(resp(wrong), Reply::Error(_)), "{wrong}");
    }
    clock.advance(Duration::from_secs(20));
    assert_eq!(renew(&json!(20)), 404, "the reservation has expired");
    reserve(
        &server,
        &json!({"rule": "requests", "key": "bob", "cost": 1}),
    );
    assert_eq!(remaining(&server, "requests"), 5);
    let unknown = post(&server, "/v1/renew", &json!({"reservation": "nope"}));
    assert_eq!(unknown.status, 404);
}

/// A place under a rule of concurrent is kept beyond its timeout if it is renewed in time.
#[test]
fn a_renewed_place_is_kept() {
    let (server, clock) = TestServer::manual(STREAMS);
    let held = reserve(&server, &json!({"rule": "streams", "key": "alice"}));
    clock.advance(Duration::from_secs(59));
    let renew = json!({"reservation": held["reservation"]});
    assert_eq!(post(&server, "/v1/renew", &renew).status, 204);
    clock.advance(Duration::from_secs(59));
    assert_eq!(remaining(&server, "streams"), 1);
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        (
            remaining(&server, "streams"),
            post(&server, "/v1/renew", &renew).status
        ),
        (2, 404)
    );
}

/// One server reserves, the other commits; both use the same Redis.
#[test]
fn servers_share_reservations_in_redis() {
    let redis = Redis::start();
    let engine = format!("redis = \"{}\"\ndeadline = \"10s\"", redis.url());
    let config = RULES.replace("max_reservations = 3", &engine);
    let servers = [(), ()].map(|()| {
        let server = TestServer::start(&config.replace("on_expiry = \"release\"\n", ""));
        until("Redis decides", || {
            server.http().get("/readyz").json()["engine"]["mode"] == "redis"
        });
        server
    });
    let chat = json!({"attributes": {"user": "alice", "path": "/v1/chat", "tokens": 6000}});
    let held = reserve(&servers[0], &chat);
    assert_eq!(held["granted"], json!([6000, 1]));
    assert_eq!(remaining(&servers[1], "tokens"), 4000);
    let costs = json!({"reservation": held["reservation"], "costs": {"tokens": 100}});
    for repeated in [false, true] {
        let response = post(&servers[1], "/v1/commit", &costs);
        assert_eq!(
            (response.status, &response.json()["repeated"]),
            (200, &json!(repeated))
        );
        assert_eq!(remaining(&servers[0], "tokens"), 9900);
    }
    let pairs = servers[0]
        .resp()
        .line("EARRRL.RESERVE tokens alice COST 900")
        .pairs();
    let id = text(&pairs, "reservation");
    servers[1]
        .resp()
        .line(&format!("EARRRL.COMMIT {id} COST 400"))
        .pairs();
    assert_eq!(remaining(&servers[0], "tokens"), 9500);
    let unknown = json!({"reservation": "00000000000000000000000000000000", "cost": 1});
    assert_eq!(post(&servers[0], "/v1/commit", &unknown).status, 404);
    let live = reserve(
        &servers[0],
        &json!({"rule": "tokens", "key": "alice", "ttl": 10}),
    );
    for (id, status) in [(&live["reservation"], 204), (&json!(id), 404)] {
        assert_eq!(
            post(&servers[1], "/v1/renew", &json!({"reservation": id})).status,
            status
        );
    }
}

#[test]
fn redis_releases_no_expired_reservations() {
    let config = RULES.replace("max_reservations = 3", "redis = \"redis://localhost\"");
    let error = earrrl_server::config::Config::parse(&config, "test").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("on_expiry: only with the engine in memory"),
        "{error}"
    );
}

/// A client whose answer was lost sends its request again, at any door.
#[test]
fn a_repeated_reservation_is_charged_once() {
    let (server, _) = TestServer::manual(RULES);
    let id = |nth: u32| format!("5b0ece9a00112233445566778899aa{nth:02x}");
    let body =
        |cost: u64| json!({"rule": "tokens", "key": "alice", "cost": cost, "reservation": id(1)});
    let held = reserve(&server, &body(4000));
    let again = reserve(&server, &body(4000));
    assert_eq!(
        (&again["reservation"], &again["granted"]),
        (&held["reservation"], &json!(4000))
    );
    assert_eq!(remaining(&server, "tokens"), 6000);
    assert_eq!(post(&server, "/v1/reserve", &body(10)).status, 409);
    let no_id = json!({"rule": "tokens", "key": "alice", "reservation": "mine"});
    assert_eq!(post(&server, "/v1/reserve", &no_id).status, 422);

    let mut client = server.resp();
    let mut ask = || {
        client
            .line(&format!(
                "EARRRL.RESERVE tokens alice COST 1000 ID {}",
                id(2)
            ))
            .pairs()
    };
    assert_eq!(text(&ask(), "reservation"), text(&ask(), "reservation"));
    assert_eq!(remaining(&server, "tokens"), 5000);
    let commit = json!({"reservation": held["reservation"], "cost": 0});
    assert_eq!(post(&server, "/v1/commit", &commit).status, 200);
    assert_eq!(remaining(&server, "tokens"), 9000);
    let twice = format!("EARRRL.RESERVE tokens alice ID {} ID {}", id(3), id(4));
    assert!(matches!(client.line(&twice), Reply::Error(_)));
}

#[test]
fn a_repeated_reservation_is_charged_once_over_grpc() {
    let server = TestServer::with_descriptors("");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let channel = grpc::connect(server.grpc).await;
        let descriptors = vec![login()];
        let reserve = async |id: &'static str, amount| {
            let mut request = tonic::Request::new(ReserveRequest {
                domain: "shop".to_owned(),
                descriptors: descriptors.clone(),
                amount,
                ttl: None,
            });
            let metadata = request.metadata_mut();
            metadata.insert("reservation-id", id.parse().unwrap());
            grpc::call::<ReserveRequest, ReserveResponse>(&channel, RESERVE, request).await
        };
        let id = "00112233445566778899aabbccddeeff";
        let first = reserve(id, 4).await.unwrap();
        let again = reserve(id, 4).await.unwrap();
        assert_eq!(
            (again.code(), &again.reservation_id),
            (Code::Ok, &first.reservation_id)
        );
        let other = reserve(id, 1).await.unwrap_err();
        assert_eq!(other.code(), tonic::Code::AlreadyExists);
        let wrong = reserve("mine", 1).await.unwrap_err();
        assert_eq!(wrong.code(), tonic::Code::InvalidArgument);
        let next = "00112233445566778899aabbccddee00";
        assert_eq!(reserve(next, 2).await.unwrap().code(), Code::OverLimit);
        assert_eq!(reserve(next, 1).await.unwrap().code(), Code::Ok);
    });
}
