//! Tests of the stream of events.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::TestServer;
use crate::support::http::Client;
use crate::support::resp::encode;
use crate::support::tools::tool;

const CONFIG: &str = r#"
[server]
admin = "127.0.0.1:0"
[[server.token]]
name = "all"
token = "admin-token-0123456789"
scopes = ["admin"]
[[server.token]]
name = "login-only"
token = "login-token-0123456789"
scopes = ["top"]
rules = ["login"]
[[rule]]
name = "api"
limit = "gcra 1/2s burst=1"
key = "user"
[[rule]]
name = "login"
limit = "gcra 1/1h burst=1"
key = "user"
"#;
const ADMIN: &str = "admin-token-0123456789";
const LOGIN: &str = "login-token-0123456789";
const HOSTILE: &str = "<b>\u{202e}\x1b[2J\x7f\u{1f600}\n\"";

/// A stream that curl reads.
struct Events {
    curl: Child,
    lines: BufReader<ChildStdout>,
}

impl Events {
    fn open(server: &TestServer, token: &str, query: &str) -> Self {
        let url = format!("http://{}/v1/events?{query}", server.admin.unwrap());
        let mut command = tool("curl");
        command.args(["-sN", "-H", &format!("Authorization: Bearer {token}"), &url]);
        let mut curl = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(curl.stdout.take().unwrap());
        Self { curl, lines }
    }

    /// Returns the next line that is not empty; the empty text at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 && line.trim().is_empty() {
            line.clear();
        }
        line.trim_end().to_owned()
    }

    /// Returns the next event as its name, its rule and its key.
    fn next(&mut self) -> (String, String, String) {
        read(&self.line())
    }
}

/// Reads an event as its name, its rule and its key.
fn read(line: &str) -> (String, String, String) {
    let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
    (text("event"), text("rule"), text("key"))
}

impl Drop for Events {
    fn drop(&mut self) {
        let _ = self.curl.kill();
        let _ = self.curl.wait();
    }
}

fn send(server: &TestServer, command: &str, rule: &str, key: &str) {
    let mut resp = server.resp();
    resp.line(&format!("AUTH {ADMIN}"));
    resp.send(&encode(&[
        command.as_bytes(),
        rule.as_bytes(),
        key.as_bytes(),
    ]));
    resp.reply();
}

fn limit(server: &TestServer, rule: &str, key: &str) {
    send(server, "EARRRL.CHECK", rule, key);
    send(server, "EARRRL.CHECK", rule, key);
}

fn event(name: &str, rule: &str, key: &str) -> (String, String, String) {
    (name.to_owned(), rule.to_owned(), key.to_owned())
}

/// Events have the figures of a request of cost 1, whatever the cost of the one that was denied, and whether or
/// not the rule stops anybody.
#[test]
fn events_say_when_a_request_of_cost_one_is_within_the_limit() {
    let dry = "[[rule]]\nname = \"dry\"\nlimit = \"gcra 1/1h burst=5\"\naction = \"observe\"\nkey = \"user\"\n";
    let server = TestServer::start(&format!("{CONFIG}{dry}"));
    let mut resp = server.resp();
    resp.line(&format!("AUTH {ADMIN}"));
    resp.line("EARRRL.CHARGE login debtor COST 9");
    let mut wait_of = |lines: &[&str]| {
        lines.iter().for_each(|line| drop(resp.line(line)));
        let mut events = Events::open(&server, ADMIN, "format=jsonl");
        let event: Value = serde_json::from_str(&events.line()).unwrap();
        send(&server, "EARRRL.RESET", "login", "debtor");
        (event["key"].clone(), event["retry_after"].as_f64().unwrap())
    };
    let (key, wait) = wait_of(&[]);
    assert!(
        key == "debtor" && (32_000.0..=32_400.0).contains(&wait),
        "{key}: {wait}"
    );
    let (key, wait) = wait_of(&["EARRRL.CHECK dry test"; 7]);
    assert!(
        key == "test" && (3_000.0..=3_600.0).contains(&wait),
        "{key}: {wait}"
    );
}

#[test]
fn clients_are_limited_forgiven_and_reset() {
    let server = TestServer::start(CONFIG);
    limit(&server, "login", "alice");
    let mut events = Events::open(&server, ADMIN, "format=jsonl");
    // A subscriber begins with the clients that are limited already.
    assert_eq!(events.next(), event("limited", "login", "alice"));
    limit(&server, "api", "bob");
    assert_eq!(events.next(), event("limited", "api", "bob"));
    assert_eq!(events.next(), event("forgiven", "api", "bob"));
    send(&server, "EARRRL.RESET", "login", "alice");
    assert_eq!(events.next(), event("reset", "login", "alice"));
    limit(&server, "login", "alice");
    assert_eq!(events.next(), event("limited", "login", "alice"));
}

#[test]
fn hostile_names_are_ascii_and_server_sent_events_have_names() {
    let server = TestServer::start(CONFIG);
    limit(&server, "login", HOSTILE);
    let mut events = Events::open(&server, ADMIN, "rule=login");
    assert_eq!(events.line(), "event: limited");
    let line = events.line();
    let data = line.strip_prefix("data: ").unwrap();
    assert!(
        data.bytes().all(|byte| matches!(byte, b' '..=b'~')),
        "{data}"
    );
    let event: Value = serde_json::from_str(data).unwrap();
    assert_eq!(event["key"], HOSTILE);
    assert!(event["retry_after"].as_f64().unwrap() > 3000.0, "{event}");
}

#[test]
fn long_names_are_cut_in_events() {
    let server = TestServer::start(CONFIG);
    limit(&server, "login", &"x".repeat(4000));
    let mut events = Events::open(&server, ADMIN, "format=jsonl&rule=login");
    let event: Value = serde_json::from_str(&events.line()).unwrap();
    assert_eq!(event["key"], "x".repeat(256));
    assert_eq!(event["key_is_cut"], true);
}

#[test]
fn a_token_shows_the_events_of_its_rules_only() {
    let server = TestServer::start(CONFIG);
    limit(&server, "api", "bob");
    limit(&server, "login", "alice");
    let mut events = Events::open(&server, LOGIN, "format=jsonl");
    assert_eq!(events.next(), event("limited", "login", "alice"));
    send(&server, "EARRRL.RESET", "api", "bob");
    send(&server, "EARRRL.RESET", "login", "alice");
    assert_eq!(events.next(), event("reset", "login", "alice"));
    for (token, query, status) in [
        (LOGIN, "rule=api", 403),
        ("wrong-token-0123456789", "", 401),
        (ADMIN, "rule=no", 404),
        (ADMIN, "format=xml", 422),
    ] {
        let mut client = Client::connect(server.admin.unwrap());
        client.token = Some(token.to_owned());
        assert_eq!(
            client.get(&format!("/v1/events?{query}")).status,
            status,
            "{query}"
        );
    }
}

#[test]
fn a_stream_ends_when_its_token_is_revoked() {
    let server = TestServer::start(CONFIG);
    limit(&server, "login", "alice");
    let mut events = Events::open(&server, LOGIN, "format=jsonl");
    assert_eq!(events.next(), event("limited", "login", "alice"));
    let revoked = CONFIG.replace(LOGIN, "other-token-0123456789");
    server
        .server
        .reload(Ok(crate::support::parse(&revoked)))
        .unwrap();
    assert_eq!(events.line(), "");
}

/// The recipe of `docs/quotas.md`: an observing rule with a part of the quota.
#[test]
fn a_client_that_has_used_a_part_of_its_quota_is_one_event_a_period() {
    let quota = |name: &str, quota: u32, action: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlimit = \"fixed-window {quota}/month\"\nkey = \"user\"\n\
             action = \"{action}\"\n"
        )
    };
    let rules = quota("month", 10, "deny") + &quota("month-80-percent", 8, "observe");
    let admin = "[server]\nadmin = \"127.0.0.1:0\"\n";
    let (server, clock) = TestServer::manual(&format!("{admin}{rules}"));
    let mut http = server.http();
    let body = r#"{"attributes":{"user":"ann"}}"#;
    let mut events = Events::open(&server, ADMIN, "format=jsonl");
    for period in 0..2 {
        let statuses: Vec<u16> = (0..11)
            .map(|_| http.post("/v1/check", body).status)
            .collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10);
        let mut limited = [events.next(), events.next()];
        limited.sort();
        let expected = ["month", "month-80-percent"].map(|rule| event("limited", rule, "ann"));
        assert_eq!(limited, expected, "period {period}");
        clock.advance(Duration::from_secs(32 * 86_400));
        let mut forgiven = [events.next(), events.next()];
        forgiven.sort();
        let expected = ["month", "month-80-percent"].map(|rule| event("forgiven", rule, "ann"));
        assert_eq!(forgiven, expected, "period {period}");
    }
}
