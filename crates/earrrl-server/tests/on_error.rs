//! Tests a rule's `on_error` policy over every protocol while Redis is unavailable, and descriptors
//! that fail or are too many.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tonic::IntoRequest as _;

use crate::authz::{check, checked, codes};
use crate::support::redis::Redis;
use crate::support::resp::Reply;
use crate::support::{TestServer, parse, testdata, until};

/// Returns a pair of rules for each `on_error` policy: one for paths and one for descriptors.
fn rules() -> String {
    let on_error = [
        ("plain", ""),
        ("open", "on_error = \"allow\""),
        ("closed", "on_error = \"deny\""),
    ];
    let rule = |(name, more): (&str, &str)| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlimit = \"gcra 1/h burst=1000\"\n{more}\n\
             match = {{ path = \"/{name}\" }}\n\
             [[rule]]\nname = \"d-{name}\"\nlimit = \"gcra 1/h burst=1000\"\n{more}\n\
             key = \"descriptor:user\"\n\
             match = {{ domain = \"shop\", \"descriptor:for\" = \"{name}\" }}\n"
        )
    };
    on_error.map(rule).concat()
}

/// Returns a server whose Redis has stopped after the server started.
fn without_redis(policy: &str) -> (TestServer, Redis) {
    let mut redis = Redis::start();
    let mut config = parse(&format!(
        "[engine]\nredis = \"{}\"\npolicy = \"{policy}\"\ncapacity = 1000\n\
         [client_address]\ntrusted_proxies = [\"127.0.0.1/32\"]\n{}",
        redis.url(),
        rules()
    ));
    config.envoy.files = vec![testdata("envoy/shop.yaml")];
    config.envoy.load().unwrap();
    let clock = std::sync::Arc::new(earrrl::SystemClock::new());
    let server = TestServer::with_clock(config, clock);
    let mode = || server.http().get("/readyz").json()["engine"]["mode"].clone();
    until("Redis decides", || mode() == "redis");
    redis.kill();
    // A call that was sent before Redis was killed may still count as a success.
    until("the loss is noticed", || mode() == policy);
    (server, redis)
}

/// Returns each protocol, and whether it allows a request under the rule of this name.
fn verdicts(server: &TestServer, name: &str) -> Vec<(&'static str, bool)> {
    let allowed = |status| match status {
        200 => true,
        429 => false,
        other => panic!("{name}: {other}"),
    };
    let named = format!("{{\"rule\":\"{name}\",\"key\":\"alice\"}}");
    let matching = format!("{{\"attributes\":{{\"client\":\"1.2.3.4\",\"path\":\"/{name}\"}}}}");
    let post = |body: &str| allowed(server.http().post("/v1/check", body).status);
    let uri = format!("X-Forwarded-Uri: /{name}\r\n");
    let authz = server.http().request("GET", "/v1/authz", &uri, b"").status;
    let envoys = checked(
        server,
        vec![check("192.0.2.7", "GET", &format!("/{name}"), &[])],
    );
    let mut resp = server.resp();
    let pairs = |reply: Reply| {
        reply
            .pairs()
            .into_iter()
            .find(|(key, _)| key == "allowed")
            .unwrap()
            .1
    };
    let is_one = |reply: Reply| match reply {
        Reply::Integer(number) => number == 1,
        other => panic!("{name}: {other:?}"),
    };
    let brief = match resp.line(&format!("EARRRL.ALLOW {name} alice")) {
        Reply::Array(items) => items[0].clone(),
        other => panic!("{name}: {other:?}"),
    };
    vec![
        ("check", post(&named)),
        ("check by attributes", post(&matching)),
        ("authz", allowed(authz)),
        ("ext_authz", codes(&envoys) == [0]),
        (
            "CHECK",
            is_one(pairs(resp.line(&format!("EARRRL.CHECK {name} alice")))),
        ),
        ("ALLOW", is_one(brief)),
        (
            "CHECKATTR",
            is_one(pairs(resp.line(&format!("EARRRL.CHECKATTR path /{name}")))),
        ),
    ]
}

/// Returns the answer for several descriptors of a request, each under the rule of one of the
/// names: the overall code and that of each descriptor.
fn described(server: &TestServer, names: &[&str]) -> Value {
    let descriptor = |name: &&str| json!({"entries": [{"key": "for", "value": name}, {"key": "user", "value": "alice"}]});
    let descriptors: Vec<Value> = names.iter().map(descriptor).collect();
    let body = json!({"domain": "shop", "descriptors": descriptors}).to_string();
    let answer = server.http().post("/json", &body).json();
    let statuses = answer["statuses"].as_array().unwrap().iter();
    let codes: Vec<&Value> = statuses.map(|status| &status["code"]).collect();
    json!([answer["overallCode"], codes])
}

#[test]
fn without_redis_a_rule_has_its_own_verdict_before_the_policys() {
    for (policy, plain) in [("allow", true), ("deny", false)] {
        let (server, _redis) = without_redis(policy);
        for (name, expected) in [("plain", plain), ("open", true), ("closed", false)] {
            for (protocol, allowed) in verdicts(&server, name) {
                assert_eq!(
                    allowed, expected,
                    "policy {policy}, rule {name}, over {protocol}"
                );
            }
        }
        let ok = "OK";
        let over = "OVER_LIMIT";
        let code = if plain { ok } else { over };
        assert_eq!(described(&server, &["plain"]), json!([code, [code]]));
        assert_eq!(described(&server, &["open", "open"]), json!([ok, [ok, ok]]));
        assert_eq!(
            described(&server, &["open", "closed"]),
            json!([over, [ok, over]])
        );
        let passed = server.http().get("/readyz").json()["passed_without_verdict"].clone();
        assert!(passed["rule_failed"].as_u64() >= Some(8), "{passed}");
        let metrics = server.http().get("/metrics").body;
        assert!(
            metrics.contains("earrrl_unjudged_total{reason=\"rule_failed\"}"),
            "{metrics}"
        );
    }
}

/// Redis does not answer, and Envoy's deadline passes before that of the engine.
#[test]
fn late_answers_follow_on_error_and_then_the_policy() {
    for (policy, plain) in [("local", true), ("deny", false)] {
        let redis = Redis::start();
        let server = TestServer::start(&format!(
            "[engine]\nredis = \"{}\"\npolicy = \"{policy}\"\ndeadline = \"10s\"\ncapacity = 1000\n{}",
            redis.url(),
            rules()
        ));
        let mode = || server.http().get("/readyz").json()["engine"]["mode"].clone();
        until("Redis decides", || mode() == "redis");
        redis.signal(Signal::STOP);
        let late = |name: &str| {
            let mut request = check("192.0.2.7", "GET", &format!("/{name}"), &[]).into_request();
            request.set_timeout(Duration::from_secs(2));
            codes(&checked(&server, vec![request])) == [0]
        };
        for (name, expected) in [("plain", plain), ("open", true), ("closed", false)] {
            assert_eq!(late(name), expected, "policy {policy}, rule {name}");
        }
        let passed = server.http().get("/readyz").json()["passed_without_verdict"].clone();
        let expected = if plain { 2 } else { 1 };
        assert_eq!(
            passed,
            json!({"rule_failed": 0, "late": expected, "refused": 0})
        );
    }
}

/// If a server counts by itself during the outage, its counts decide under every policy.
#[test]
fn own_counts_are_a_verdict() {
    let (server, _redis) = without_redis("local");
    for name in ["plain", "open", "closed"] {
        assert!(
            verdicts(&server, name).iter().all(|(_, allowed)| *allowed),
            "{name}"
        );
    }
    let passed = server.http().get("/readyz").json()["passed_without_verdict"].clone();
    assert_eq!(passed, json!({"rule_failed": 0, "late": 0, "refused": 0}));
}

/// A refund that needs Redis fails, and the other descriptors of the request are still judged.
#[test]
fn a_refund_that_fails_skips_no_other_descriptor() {
    let (server, _redis) = without_redis("local");
    let login = json!({"entries": [{"key": "path", "value": "/login"}]});
    let refund = json!({"entries": [{"key": "for", "value": "plain"}, {"key": "user", "value": "bob"}],
                        "is_negative_hits": true, "hits_addend": 1});
    let body = json!({"domain": "shop", "descriptors": [refund, login]}).to_string();
    let statuses: Vec<u16> = (0..7)
        .map(|_| server.http().post("/json", &body).status)
        .collect();
    assert_eq!(statuses.last(), Some(&429), "{statuses:?}");
    assert!(!statuses.contains(&200), "the refund failed: {statuses:?}");
}
