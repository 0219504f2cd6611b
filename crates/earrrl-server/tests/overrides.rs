//! Tests of overrides: their memory, and their clients' states across reloads.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use crate::support::process::{BINARY, Process};
use crate::support::resp::{Client, Reply};
use crate::support::{self, TestServer};

const MANY: usize = 50_000;
/// The most bytes that an override takes with its key, free memory of the allocator included.
const MOST: usize = 100;

/// Returns a rule by user with `count` overrides of three different limits.
fn overridden(count: usize) -> String {
    let mut text =
        "[[rule]]\nname = \"r\"\nlimit = \"gcra 1/h burst=5\"\nkey = \"user\"\n".to_owned();
    for nth in 0..count {
        let burst = 10 + nth % 3;
        let limit = format!("limit = \"gcra 1/h burst={burst}\"");
        writeln!(
            text,
            "[[rule.override]]\nkey = {{ user = \"{}\" }}\n{limit}",
            user(nth)
        )
        .unwrap();
    }
    text
}

fn user(nth: usize) -> String {
    format!("user-{nth:06}")
}

fn start(count: usize) -> Process {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(overridden(count).as_bytes()).unwrap();
    Process::spawn(
        Command::new(BINARY)
            .args(["serve", "--config"])
            .arg(file.path()),
    )
}

#[test]
fn the_memory_of_many_overrides_is_bounded() {
    let none = start(0);
    let many = start(MANY);
    let mut client = Client::connect(many.resp);
    for nth in [0, 1, MANY / 2, MANY - 1] {
        let answer = client.line(&format!("EARRRL.CHECK r {}", user(nth)));
        let Reply::Array(figures) = &answer else {
            panic!("{answer:?}")
        };
        let left = (9 + nth % 3).to_string();
        assert!(
            figures.contains(&Reply::bulk(&left)),
            "{left} of {answer:?}"
        );
    }
    let taken = many.resident_kib().saturating_sub(none.resident_kib()) as usize * 1024;
    assert!(taken <= MANY * MOST, "{} bytes each", taken / MANY);
}

/// Returns a rule by user of whose users `alice` and the ones of a plan have other limits.
fn rule(alice: &str, plan: &str) -> String {
    format!(
        r#"
        [[rule]]
        name = "r"
        limit = "gcra 1/h burst=5"
        key = "user"
        [[rule.override]]
        key = {{ user = "alice" }}
        limit = "{alice}"
        [[rule.override]]
        key = {{ "attribute:plan" = "pro" }}
        limit = "{plan}"
        [[rule.override]]
        key = {{ "attribute:plan" = "free" }}
        limit = "{plan}"
        "#
    )
}

#[test]
fn an_override_keeps_its_clients_when_its_limit_changes() {
    let (server, _clock) = TestServer::manual(&rule("gcra 1/h burst=20", "gcra 2/h burst=30"));
    let ask = |user: &str, plan: &str| {
        let body = format!(r#"{{"attributes":{{"user":"{user}","plan":"{plan}"}}}}"#);
        server.http().post("/v1/check", &body).json()["remaining"].clone()
    };
    assert_eq!(
        [ask("alice", ""), ask("alice", ""), ask("bob", "")],
        [19, 18, 4]
    );
    // A user of two plans has a state under each of them.
    assert_eq!(
        [
            ask("carol", "pro"),
            ask("carol", "pro"),
            ask("carol", "free")
        ],
        [29, 28, 29]
    );
    assert_eq!(ask("carol", ""), 4);
    let reload = |config: &str| server.server.reload(Ok(support::parse(config))).unwrap();
    // The time at which a bucket is full stays the same when the refill changes: two hours, an hour, and half of it.
    reload(&rule("gcra 7/h burst=40", "gcra 3/h burst=50"));
    assert_eq!([ask("alice", ""), ask("bob", "")], [25, 3]);
    assert_eq!(
        [ask("carol", "pro"), ask("carol", "free"), ask("carol", "")],
        [46, 47, 3]
    );
    // A client starts afresh under another algorithm.
    reload(&rule("sliding-log 40/1h", "gcra 3/h burst=50"));
    assert_eq!([ask("alice", ""), ask("carol", "pro")], [39, 45]);
    // The clients of a rule that comes back have their history.
    reload("rules = \"none\"");
    reload(&rule("sliding-log 40/1h", "gcra 3/h burst=50"));
    assert_eq!([ask("alice", ""), ask("carol", "pro")], [38, 44]);
}

/// A rule that is removed and comes back finds all of its clients, whatever their states are like.
#[test]
fn a_rule_that_comes_back_has_its_clients() {
    for limit in [
        "sliding-log 1/1h",
        "sliding-window 1/1h sub-windows=4",
        "exponential 1/1h",
        "gcra 1/h burst=1",
    ] {
        let rule = format!(
            "[engine]\ncapacity = 1000\n[[rule]]\nname = \"r\"\nkey = \"user\"\nlimit = \"{limit}\""
        );
        let (server, _clock) = TestServer::manual(&rule);
        let mut http = server.http();
        let mut admitted = || {
            let allows = |user: &u32| {
                let body = format!(r#"{{"attributes":{{"user":"u{user}"}}}}"#);
                http.post("/v1/check", &body).json()["allowed"] == true
            };
            (0..100).filter(allows).count()
        };
        assert_eq!(admitted(), 100);
        let reload = |config: &str| server.server.reload(Ok(support::parse(config))).unwrap();
        reload(&rule.replace("\"r\"", "\"another\""));
        reload(&rule);
        assert_eq!(admitted(), 0, "{limit}");
    }
}
