//! Tests reservations with charges of several clients and rules: which charges a commit corrects.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::{Value, json};

use earrrl_server::protobuf::ratelimit::Code;
use earrrl_server::protobuf::ratelimit::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};

use crate::reserve::{COMMIT, RESERVE, login, post, reserve};
use crate::support::redis::Redis;
use crate::support::resp::Reply;
use crate::support::{TestServer, grpc, until};

const RULES: &str = r#"
[[rule]]
name = "tokens"
limit = "fixed-window 1000/1d"
key = ["user"]
exempt = { user = ["vip"] }
override = [{ key = { user = "partner" }, limit = "fixed-window 5000/1d" }]

[[rule]]
name = "streams"
limit = "concurrent 1 timeout=60s"
key = ["user"]
"#;

fn remaining(server: &TestServer, rule: &str, key: &str) -> Value {
    post(server, "/v1/peek", &json!({"rule": rule, "key": key})).json()["remaining"].clone()
}

fn charge(rule: &str, key: &str, cost: u64) -> Value {
    json!({"rule": rule, "key": key, "cost": cost})
}

#[test]
fn a_named_cost_is_that_of_every_client_of_the_rule() {
    let (server, _) = TestServer::manual(RULES);
    let clients = ["alice", "partner", "bob"];
    let held = reserve(
        &server,
        &json!({"rules": clients.map(|key| charge("tokens", key, 100))}),
    );
    let commit = json!({"reservation": held["reservation"], "costs": {"tokens": 10}});
    assert_eq!(post(&server, "/v1/commit", &commit).status, 200);
    assert_eq!(
        clients.map(|key| remaining(&server, "tokens", key)),
        [990, 4990, 990]
    );
}

/// A gateway names the same rules for every client. One that a rule exempts must get its place back.
#[test]
fn a_cost_of_a_rule_that_exempts_the_client_is_ignored() {
    let (server, _) = TestServer::manual(RULES);
    let list = [charge("tokens", "vip", 700), charge("streams", "vip", 1)];
    let held = reserve(&server, &json!({"rules": list}));
    assert_eq!(held["granted"], json!([700, 1]));
    assert_eq!(remaining(&server, "streams", "vip"), 0);
    let denied = post(&server, "/v1/reserve", &json!({"rules": list}));
    assert_eq!(
        (denied.status, &denied.json()["granted"]),
        (429, &json!([0, 0]))
    );
    let costs = json!({"tokens": 7, "streams": 1});
    let commit = json!({"reservation": held["reservation"], "costs": costs});
    assert_eq!(post(&server, "/v1/commit", &commit).status, 200);
    assert_eq!(remaining(&server, "streams", "vip"), 1);
}

#[test]
fn granted_costs_are_numbers_in_both_versions_of_the_protocol() {
    let (server, _) = TestServer::manual(RULES);
    let granted = |client: &mut crate::support::resp::Client| {
        let ask = "EARRRL.RESERVE tokens alice COST 1 AND tokens bob COST 1.5";
        let pairs = client.line(ask).pairs();
        let found = pairs.into_iter().find(|(name, _)| name == "granted");
        found.unwrap().1
    };
    let mut client = server.resp();
    let texts = ["1", "1.5"].map(|text| Reply::Bulk(text.into()));
    assert_eq!(granted(&mut client), Reply::Array(texts.to_vec()));
    client.line("HELLO 3");
    let doubles = ["1", "1.5"].map(|text| Reply::Double(text.to_owned()));
    assert_eq!(granted(&mut client), Reply::Array(doubles.to_vec()));
}

/// A commit that is repeated after Redis has deleted its reservation must not be charged as a report. The
/// server recognizes the reservation by its id alone.
#[test]
fn a_commit_that_redis_has_forgotten_is_not_charged_over_grpc() {
    let redis = [Redis::start(), Redis::start()];
    let servers = redis.each_ref().map(|redis| {
        let engine = format!(
            "[engine]\nredis = \"{}\"\ndeadline = \"10s\"\n",
            redis.url()
        );
        let server = TestServer::with_descriptors(&engine);
        until("Redis decides", || {
            server.http().get("/readyz").json()["engine"]["mode"] == "redis"
        });
        server
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let descriptors = vec![login()];
        let domain = "shop".to_owned();
        let reserve = async |server: &TestServer, amount| {
            let domain = domain.clone();
            let descriptors = descriptors.clone();
            let channel = grpc::connect(server.grpc).await;
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
        let commit = async |server: &TestServer, reservation_id: String, actual_amount| {
            let domain = domain.clone();
            let descriptors = descriptors.clone();
            let channel = grpc::connect(server.grpc).await;
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
        let id = reserve(&servers[0], 1).await.reservation_id;
        for _ in 0..2 {
            commit(&servers[1], id.clone(), 3).await;
        }
        assert_eq!(reserve(&servers[1], 5).await.code(), Code::Ok);
        commit(&servers[0], "unknown".to_owned(), 3).await;
        assert_eq!(reserve(&servers[0], 2).await.code(), Code::OverLimit);
    });
}
