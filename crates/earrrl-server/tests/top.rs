//! Tests of the clients with the highest rates, over HTTP and RESP.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

use crate::support::http::Response;
use crate::support::redis::Redis;
use crate::support::resp::Reply;
use crate::support::{TestServer, until};

const CONFIG: &str = r#"
[server]
check_token = "check-token-0123456789"
admin_token = "admin-token-0123456789"
[[rule]]
name = "api"
limit = "recent-average 1/s half-life=1m"
key = "user"
[[rule.override]]
key = { user = "partner" }
limit = "recent-average 100/s half-life=1m"
[[rule]]
name = "bucket"
limit = "gcra 1/s burst=10"
key = "user"
"#;
const ADMIN: &str = "admin-token-0123456789";
const CHECK: &str = "check-token-0123456789";
/// Names that could harm a page, a terminal or a log.
const HOSTILE: [&[u8]; 6] = [
    b"<script>alert(1)</script>\"'&",
    b"\x1b[2J\x1b]0;owned\x07",
    "\u{202e}txt.exe\u{2066}".as_bytes(),
    b"line\r\nSet-Cookie: a=b",
    b"\xff\xfe not UTF-8",
    &[b'x'; 4096],
];

/// Sends a number of requests of one client.
fn send(server: &TestServer, rule: &str, key: &str, count: usize) {
    let mut client = server.http();
    client.token = Some(CHECK.to_owned());
    for _ in 0..count {
        client.post(
            "/v1/check",
            &format!(r#"{{"rule":"{rule}","key":"{key}"}}"#),
        );
    }
}

fn get(server: &TestServer, path: &str, token: &str) -> Response {
    let mut client = server.http();
    client.token = Some(token.to_owned());
    client.get(path)
}

fn near(value: &serde_json::Value, expected: f64) -> bool {
    value
        .as_f64()
        .is_some_and(|value| (value - expected).abs() <= 1e-9 * expected.abs())
}

/// Sends a request with an administrator's token.
fn admin(server: &TestServer, method: &str, path: &str, body: &str) -> Response {
    let mut client = server.http();
    client.token = Some(ADMIN.to_owned());
    client.request(
        method,
        path,
        "Content-Type: application/json\r\n",
        body.as_bytes(),
    )
}

#[test]
fn the_top_clients_have_names_figures_and_counts() {
    let (server, clock) = TestServer::manual(CONFIG);
    send(&server, "api", "alice", 90);
    clock.advance(Duration::from_secs(1));
    send(&server, "api", "alice", 5);
    send(&server, "api", "bob", 60);
    send(&server, "api", "carol", 3);
    send(&server, "api", "partner", 1000);
    let top = get(&server, "/v1/top?rule=api&limit=3", ADMIN).json();
    assert_eq!(
        (&top["rule"], top["at"].as_f64()),
        (&"api".into(), Some(1_800_000_001.0))
    );
    let clients = top["clients"].as_array().unwrap();
    let keys: Vec<_> = clients
        .iter()
        .map(|client| client["key"].as_str())
        .collect();
    assert_eq!(keys, [Some("alice"), Some("bob"), None], "{top}");
    let alice = &clients[0];
    // Each of the last five requests, and those of the first 90 that came after the 87th, is over.
    assert_eq!(
        (alice["denied"].as_u64(), alice["remaining"].as_u64()),
        (Some(8), Some(0))
    );
    assert_eq!(alice["limit"], 1.0);
    assert_eq!(alice["first_denied"], 1_800_000_000.0);
    assert_eq!(alice["last_denied"], 1_800_000_001.0);
    let peek = get(&server, "/v1/clients/api/alice", ADMIN).json();
    for figure in ["rate", "remaining", "retry_after", "reset_after"] {
        assert!(
            near(&alice[figure], peek[figure].as_f64().unwrap()),
            "{figure}: {alice} {peek}"
        );
    }
    assert_eq!(
        clients[2]["limit"], 100.0,
        "the partner has an override: {top}"
    );
    // The partner is below the share from which clients are named.
    let counts = ["key_is_cut", "allowed", "denied"].map(|field| clients[2][field].clone());
    assert_eq!(counts, [json!(false), json!(0), json!(0)]);
    for field in ["first_seen", "first_denied", "last_denied"] {
        assert_eq!(
            clients[2].get(field),
            Some(&serde_json::Value::Null),
            "{field}"
        );
    }
}

/// Clients of overrides share a store, where each is judged under its own limit.
#[test]
fn clients_with_different_overrides_are_listed_once() {
    let rule = "[[rule]]\nname = \"r\"\nkey = \"user\"\nlimit = \"fixed-window 30/1d\"\n";
    let overridden = |user: &str, limit: &str| {
        format!("[[rule.override]]\nkey = {{ user = \"{user}\" }}\nlimit = \"{limit}\"\n")
    };
    let [sixty, ninety] = [("u60", "fixed-window 60/1d"), ("u90", "sliding-log 90/1d")]
        .map(|(user, limit)| overridden(user, limit));
    let (server, _) = TestServer::manual(&format!("{rule}{sixty}{ninety}"));
    for (user, count) in [("u60", 20), ("u90", 65), ("other", 3)] {
        send(&server, "r", user, count);
    }
    let mut client = server.http();
    let top = client.get("/v1/top?rule=r").json();
    let listed: Vec<_> = top["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["remaining"].as_u64())
        .collect();
    assert_eq!(listed, [Some(25), Some(40), Some(27)], "{top}");
    assert_eq!(client.get("/v1/rates?rule=r").json()["clients"], 3);
}

/// Limits in Envoy's format have one list, of the clients that were denied or close to their limit.
#[test]
fn clients_of_envoys_limits_are_listed_together() {
    let server = TestServer::with_descriptors(CONFIG);
    let ask = |user: &str, times: u32| {
        for _ in 0..times {
            let entry = json!({"key": "user", "value": user});
            let plan = json!({"key": "plan", "value": "free"});
            let asked = json!({"domain": "shop", "descriptors": [{"entries": [entry, plan]}]});
            assert!(
                [200, 429].contains(&admin(&server, "POST", "/json", &asked.to_string()).status)
            );
        }
    };
    ask("alice", 5);
    ask("bob\u{202e}", 2);
    let top = get(&server, "/v1/top?rule=ENVOY", ADMIN).json();
    let mut clients: Vec<_> = top["clients"].as_array().unwrap().iter().collect();
    // Both use their whole limit, so either may be first.
    clients.sort_by_key(|client| client["key"].as_str());
    let shown: Vec<_> = clients
        .iter()
        .map(|client| (client["key"].clone(), client["denied"].clone()))
        .collect();
    let alice = (json!("shop user=alice plan=free"), json!(3));
    assert_eq!(
        shown,
        [alice, (json!("shop user=bob\u{202e} plan=free"), json!(0))],
        "{top}"
    );
    assert!(clients[0]["retry_after"].as_f64().unwrap() > 0.0, "{top}");
    let rates = get(&server, "/v1/rates?rule=ENVOY", ADMIN).json();
    assert_eq!(
        (&rates["clients"], &rates["limit"]),
        (&json!(2), &json!(null)),
        "{rates}"
    );
    let without = TestServer::start(CONFIG);
    assert_eq!(get(&without, "/v1/top?rule=ENVOY", ADMIN).status, 404);
}

#[test]
fn a_reset_client_is_gone() {
    let (server, _) = TestServer::manual(CONFIG);
    send(&server, "bucket", "alice", 20);
    let mut client = server.http();
    client.token = Some(ADMIN.to_owned());
    let count = |client: &mut crate::support::http::Client| {
        client.get("/v1/top?rule=bucket").json()["clients"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(count(&mut client), 1);
    assert_eq!(
        client
            .request("DELETE", "/v1/clients/bucket/alice", "", b"")
            .status,
        204
    );
    assert_eq!(count(&mut client), 0);
}

#[test]
fn the_distribution_counts_clients_and_their_share() {
    let (server, _) = TestServer::manual(CONFIG);
    for nth in 0..27 {
        send(&server, "api", &format!("c{nth}"), 1);
    }
    send(&server, "api", "alice", 53);
    send(&server, "api", "bob", 20);
    let rates = get(&server, "/v1/rates?rule=api&above=0.2", ADMIN).json();
    assert_eq!(
        (&rates["clients"], rates["limit"].as_f64()),
        (&29.into(), Some(1.0))
    );
    assert_eq!(rates["above"]["clients"], 2);
    assert!(near(&rates["above"]["share"], 0.73), "{rates}");
    let buckets = rates["buckets"].as_array().unwrap();
    let from = rates["above"]["rate"].as_f64().unwrap();
    let above = buckets
        .iter()
        .filter(|bucket| bucket["from"].as_f64().unwrap() >= from);
    assert_eq!(
        above
            .map(|bucket| bucket["clients"].as_u64().unwrap())
            .sum::<u64>(),
        2
    );
}

#[test]
fn only_the_admin_token_shows_clients_and_mistakes_are_named() {
    let server = TestServer::start(CONFIG);
    for (path, token, status) in [
        ("/v1/top?rule=api", CHECK, 403),
        ("/v1/rates?rule=api", CHECK, 403),
        ("/v1/top?rule=api", "wrong-token-0123456789", 401),
        ("/v1/rates?rule=api", "wrong-token-0123456789", 401),
        ("/v1/top?rule=unknown", ADMIN, 404),
        ("/v1/rates?rule=%ff", ADMIN, 404),
        ("/v1/top", ADMIN, 422),
        ("/v1/top?rule=api&limit=0", ADMIN, 422),
        ("/v1/top?rule=api&limit=1001", ADMIN, 422),
        ("/v1/top?rule=api&limit=1.5", ADMIN, 422),
        ("/v1/top?rule=api&limit=x", ADMIN, 422),
        ("/v1/top?rule=api&limt=3", ADMIN, 422),
        ("/v1/rates?rule=api&limit=3", ADMIN, 422),
        ("/v1/rates?rule=api&above=-1", ADMIN, 422),
        ("/v1/rates?rule=api&above=nan", ADMIN, 422),
        ("/v1/top?rule=api&limit=1000", ADMIN, 200),
        ("/v1/top?rule=api&&limit=1000&", ADMIN, 200),
    ] {
        assert_eq!(get(&server, path, token).status, status, "{path} {token}");
    }
}

#[test]
fn resp_answers_the_same() {
    let (server, _) = TestServer::manual(CONFIG);
    send(&server, "bucket", "alice", 12);
    let mut resp = server.resp();
    resp.line(&format!("AUTH {CHECK}"));
    assert!(
        matches!(resp.line("EARRRL.TOP bucket 10"), Reply::Error(_)),
        "the check token"
    );
    resp.line(&format!("AUTH {ADMIN}"));
    let Reply::Array(clients) = resp.line("earrrl.top bucket 10") else {
        panic!("no array")
    };
    let [client] = &clients[..] else {
        panic!("{clients:?}")
    };
    let alice: HashMap<_, _> = client.clone().pairs().into_iter().collect();
    assert_eq!(alice.len(), 13);
    for (field, value) in [
        ("key", "alice"),
        ("denied", "2"),
        ("remaining", "0"),
        ("limit", "1"),
    ] {
        assert_eq!(alice[field], Reply::bulk(value), "{field}");
    }
    assert_eq!(alice["rate"], Reply::Nil, "a bucket measures no rate");
    for wrong in [
        "EARRRL.TOP bucket",
        "EARRRL.TOP bucket 0",
        "EARRRL.TOP no 1",
    ] {
        assert!(matches!(resp.line(wrong), Reply::Error(_)), "{wrong}");
    }
}

#[test]
fn names_can_be_replaced_cut_and_switched_off() {
    for (names, expected) in [
        (
            "names = { hmac_key = \"0123456789abcdef\" }",
            Some("a digest"),
        ),
        ("names = { max_bytes = 16 }", Some("a-rather-long-na")),
        ("names = { capacity = 0 }", None),
    ] {
        let config = CONFIG.replace("[server]", &format!("[server]\n{names}"));
        let (server, _) = TestServer::manual(&config);
        send(&server, "bucket", "a-rather-long-name", 12);
        let top = get(&server, "/v1/top?rule=bucket", ADMIN).json();
        let client = &top["clients"][0];
        assert_eq!(top["names_are_keys"], expected != Some("a digest"));
        assert_eq!(client["key_is_cut"], expected == Some("a-rather-long-na"));
        if expected == Some("a digest") {
            let key = client["key"].as_str().unwrap();
            assert!(
                key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit()),
                "{top}"
            );
        } else {
            assert_eq!(client["key"].as_str(), expected, "{top}");
        }
        assert_eq!(client["remaining"], 0);
    }
}

#[test]
fn hostile_names_are_data() {
    let (server, _) = TestServer::manual(CONFIG);
    let mut resp = server.resp();
    resp.line(&format!("AUTH {ADMIN}"));
    for name in HOSTILE {
        for _ in 0..12 {
            resp.call(&[b"EARRRL.CHECK", b"bucket", name]);
        }
    }
    let response = get(&server, "/v1/top?rule=bucket", ADMIN);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert!(
        response.body.bytes().all(|byte| byte >= b' '),
        "no control character is sent"
    );
    let top = response.json();
    let clients = top["clients"].as_array().unwrap();
    assert_eq!(clients.len(), HOSTILE.len());
    assert!(clients.iter().all(|client| client["denied"] == 2));
    // A key of 4 KB is stored as its digest.
    for name in HOSTILE[..4]
        .iter()
        .filter_map(|name| std::str::from_utf8(name).ok())
    {
        assert!(
            clients.iter().any(|client| client["key"] == name),
            "{name:?}"
        );
    }
    assert!(
        clients
            .iter()
            .any(|client| client["key_b64"] == "//4gbm90IFVURi04")
    );
    // Metrics name rules only.
    let metrics = server.http().get("/metrics").body;
    assert!(
        metrics
            .bytes()
            .all(|byte| matches!(byte, b'\n' | b' '..=b'~')),
        "{metrics}"
    );
    assert!(
        !metrics.contains("alert(1)") && !metrics.contains("txt.exe"),
        "{metrics}"
    );
}

/// Over Redis each node knows the clients that it has denied, or seen close to their limit.
#[test]
fn over_redis_a_node_shows_the_clients_that_it_has_seen() {
    let redis = Redis::start();
    let config = CONFIG.replace(
        "[[rule]]\nname = \"api\"",
        &format!(
            "[engine]\nredis = \"{}\"\n[[rule]]\nname = \"api\"",
            redis.url()
        ),
    );
    let server = TestServer::start(&config);
    until("Redis decides", || {
        server.http().get("/readyz").json()["engine"]["mode"] == "redis"
    });
    send(&server, "bucket", "alice", 14);
    send(&server, "bucket", "bob", 1);
    let top = get(&server, "/v1/top?rule=bucket", ADMIN).json();
    let clients = top["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 1, "{top}");
    assert_eq!(clients[0]["key"], "alice");
    assert!(clients[0]["denied"].as_u64().unwrap() >= 3);
}
