//! Tests that `earrrl replay --config` and a server with the same configuration make the same
//! decisions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::fs;

use crate::command;
use crate::command::earrrl;
use crate::support::TestServer;
use earrrl::Nanos;
use serde_json::{Value, json};

const CONFIG: &str = r#"
[client_address]
trusted_proxies = ["10.0.0.0/8"]

[[rule]]
name = "all"
limit = "recent-average 0.25/s half-life=10s strict"
key = ["client"]
exempt = { client = ["10.1.0.0/16"] }

[[rule]]
name = "login"
limit = "gcra 1/m burst=2"
key = ["client", "user"]
match = { path = "/login", method = ["POST"] }
[[rule.override]]
key = { user = "partner*" }
limit = "gcra 1/m burst=4"

[[rule]]
name = "heavy"
limit = "token-bucket 40 refill=0.5/s"
key = ["attribute:tenant"]
match = { path = "/api/*" }
cost = "attribute:tokens"
max_cost = 100
action = "observe"

[[rule]]
name = "slow"
limit = "fixed-window 6/1m"
key = ["path"]
match = { path = "/slow" }
cost = { "/slow" = 3 }
action = "quarantine"
"#;

/// Returns requests of a few clients with their times in milliseconds, fractions of a second apart.
/// Some come through a proxy.
fn requests() -> Vec<(u64, Value)> {
    let mut seed = 7u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let mut time = 1_800_000_000_000;
    let mut requests = Vec::new();
    for _ in 0..600 {
        time += [250, 500, 125, 2_000][random(4) as usize];
        let peer = [
            "192.0.2.7",
            "192.0.2.8",
            "10.0.0.1",
            "10.1.0.9",
            "2001:db8::7",
        ];
        let paths = ["/login", "/login?next=/", "/api/a", "/slow", "/"];
        let mut request = json!({
            "client": peer[random(5) as usize],
            "path": paths[random(5) as usize],
            "method": (["POST", "GET"][random(2) as usize]),
            "user": (["ann", "bob", "partner-7"][random(3) as usize]),
            "tokens": random(30).to_string(),
            "x_forwarded_for": format!("9.9.9.9, 198.51.100.{}", random(2)),
        });
        if random(3) > 0 {
            request["tenant"] = json!((["t1", "t2"][random(2) as usize]));
        }
        requests.push((time, request));
    }
    requests
}

/// Returns a request in the form that the server accepts.
fn attributes(request: &Value) -> Value {
    let mut attributes = serde_json::Map::new();
    for (name, value) in request.as_object().unwrap() {
        let name = match name.as_str() {
            "x_forwarded_for" => "header:x-forwarded-for",
            name => name,
        };
        attributes.insert(name.to_owned(), value.clone());
    }
    json!({"attributes": attributes})
}

#[test]
fn decision_by_decision() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("limits.toml"), CONFIG).unwrap();
    let (server, clock) = TestServer::manual(CONFIG);
    let mut http = server.http();
    let mut log = String::new();
    let mut answers = Vec::new();
    for (time, request) in requests() {
        let mut line = request.clone();
        line["time"] = json!(format!("{}.{:03}", time / 1_000, time % 1_000));
        log += &(line.to_string() + "\n");
        clock.set(Nanos::new(time * 1_000_000));
        answers.push(
            http.post("/v1/check", &attributes(&request).to_string())
                .json(),
        );
    }
    fs::write(path("log"), log).unwrap();
    let arguments = ["replay", "--config", &path("limits.toml"), &path("log")];
    let replayed = earrrl(&[&arguments[..], &["--output", "jsonl"]].concat());
    let lines: Vec<Value> = replayed
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), answers.len(), "{}", replayed.err);
    for (line, answer) in lines.iter().zip(&answers) {
        for field in [
            "allowed",
            "action",
            "rule",
            "rate",
            "remaining",
            "retry_after",
            "reset_after",
        ] {
            let same = match (line[field].as_f64(), answer[field].as_f64()) {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * b.abs(),
                _ => line[field] == answer[field],
            };
            assert!(same, "{field}: {line} and {answer}");
        }
    }
    let denied = answers
        .iter()
        .filter(|answer| answer["allowed"] == false)
        .count();
    assert!((50..550).contains(&denied), "{denied}");
    for action in ["deny", "quarantine"] {
        assert!(
            answers.iter().any(|answer| answer["action"] == action),
            "{action}"
        );
    }
    // A rule in dry run beside an enforcing one is visible only in this field.
    let over = |answer: &Value| {
        answer["over"]
            .as_array()
            .is_some_and(|over| over.contains(&json!("heavy")))
    };
    assert!(answers.iter().any(over));
    let summary = earrrl(&[&arguments[..], &["--output", "json"]].concat()).out;
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(
        (&summary["denied"], &summary["events"]),
        (&json!(denied), &json!(600))
    );
    let table = earrrl(&arguments).out;
    assert!(
        table.contains(&format!("all together: {denied} of 600 not allowed")),
        "{table}"
    );
    assert!(
        table.contains("quarantine  slow: fixed-window 6/1m"),
        "{table}"
    );
    let plot = tempfile::NamedTempFile::with_suffix(".svg").unwrap();
    earrrl(&[&arguments[..], &["--plot", plot.path().to_str().unwrap()]].concat());
    assert!(
        fs::read_to_string(plot.path())
            .unwrap()
            .contains("permitted by all rules together")
    );
    let streamed = earrrl(&[&arguments[..], &["--output", "jsonl", "--assume-sorted"]].concat());
    assert_eq!(streamed.out, replayed.out);
}

#[test]
fn what_a_log_does_not_have_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits.toml");
    fs::write(&path, CONFIG).unwrap();
    let path = path.to_str().unwrap();
    let log = command::logs().join("access.log");
    let log = log.to_str().unwrap();
    let outcome = earrrl(&["replay", "--config", path, log]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.err.contains("the log does not have tenant, tokens"),
        "{}",
        outcome.err
    );
    let hidden = earrrl(&[
        "replay",
        "--config",
        path,
        log,
        "--anonymize",
        "--output",
        "jsonl",
    ]);
    assert!(!hidden.out.contains("203.0.113.99") && hidden.out.contains("client-"));
    for (arguments, told) in [
        (["--rule", "gcra 1/s burst=2"], "cannot be used with"),
        (["--key", "user"], "cannot be used with"),
    ] {
        let outcome = earrrl(&[&["replay", "--config", path, log], &arguments[..]].concat());
        assert_eq!(
            (outcome.code, outcome.err.lines().count()),
            (Some(2), 1),
            "{outcome:?}"
        );
        assert!(outcome.err.contains(told), "{}", outcome.err);
    }
}

#[test]
fn secrets_of_the_server_need_not_be_here() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("limits.toml");
    let log = directory.path().join("log");
    let elsewhere = r#"
[server]
check_token_file = "/nowhere/token"
[server.tls]
cert = "/nowhere/cert.pem"
key = "/nowhere/key.pem"
[engine]
redis_file = "/nowhere/redis"
hmac_key_file = "/nowhere/hmac"
ca_file = "/nowhere/ca.pem"
[[rule]]
name = "all"
limit = "gcra 1/m burst=1"
"#;
    fs::write(&config, elsewhere).unwrap();
    let line = r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
    fs::write(&log, format!("{line}\n{line}\n")).unwrap();
    let config = config.to_str().unwrap();
    let log = log.to_str().unwrap();
    let tried = earrrl(&["replay", log, "--config", config]);
    assert!(tried.out.contains("1 of 2 not allowed"), "{tried:?}");
    assert_eq!(earrrl(&["config", "check", config]).code, Some(2));
    fs::write(config, elsewhere.replace("burst=1", "burst=none")).unwrap();
    assert!(
        earrrl(&["replay", log, "--config", config])
            .err
            .contains("limits.toml:13:")
    );
}
