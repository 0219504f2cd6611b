//! Tests of `earrrl top`, printed and in a real terminal.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::earrrl;
use crate::support::certificates::{Authority, shown};
use crate::support::http::Client;
use crate::support::process::BINARY;
use crate::support::resp::encode;
use crate::support::{TestServer, until};

const CONFIG: &str = r#"
[server]
admin_token = "admin-token-0123456789"
[[rule]]
name = "api"
limit = "gcra 1/1h burst=10"
key = "user"
[[rule]]
name = "login"
limit = "fixed-window 5/1h"
key = "user"
"#;
const RULE: &str = "[[rule]]\nname = \"api\"\nlimit = \"gcra 1/1h burst=10\"\nkey = \"user\"\n";
const ADMIN: &str = "admin-token-0123456789";
/// A name with control characters, an escape sequence and a mark that turns the direction of text.
const HOSTILE: &str = "eve\x1b[2J\x07\u{202e}";

fn server() -> TestServer {
    let server = TestServer::start(CONFIG);
    let mut resp = server.resp();
    resp.line(&format!("AUTH {ADMIN}"));
    let long = "x".repeat(4000);
    for (key, count) in [("alice", 14), (HOSTILE, 12), ("bob", 8), (&*long, 7)] {
        for _ in 0..count {
            resp.send(&encode(&[b"EARRRL.CHECK", b"api", key.as_bytes()]));
            resp.reply();
        }
    }
    server
}

#[test]
fn once_prints_a_table_or_json() {
    let server = server();
    let address = server.http.to_string();
    let once = ["top", "--once", "--server", &address, "--token", ADMIN];
    let table = earrrl(&once);
    assert_eq!((table.code, &*table.err), (Some(0), ""));
    assert!(
        table
            .out
            .contains("api  gcra 1/1h burst=10  35 allowed, 6 denied"),
        "{}",
        table.out
    );
    let rows: Vec<_> = table
        .out
        .lines()
        .skip_while(|line| !line.contains("CLIENT"))
        .collect();
    assert_eq!(rows.len(), 5, "{}", table.out);
    assert!(
        rows[1].ends_with("alice") || rows[2].ends_with("alice"),
        "{}",
        table.out
    );
    assert!(
        rows[3].ends_with("bob") && rows[3].contains("80%"),
        "{}",
        table.out
    );
    let long = rows[4].matches('x').count();
    assert!((16..=256).contains(&long), "{}", table.out);
    assert!(table.out.contains(r"eve\x1b[2J\x07\x202e"), "{}", table.out);
    let json = earrrl(&[&once[..], &["--output", "json", "--limit", "1"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let client = &json["clients"][0];
    assert_eq!(
        (&json["names_are_keys"], &client["key_is_cut"]),
        (&true.into(), &false.into())
    );
    for field in ["first_seen", "first_denied", "last_denied"] {
        assert!(client[field].as_f64().unwrap() > 1.0e9, "{json}");
    }
    assert_eq!(
        (&json["rule"], json["clients"].as_array().unwrap().len()),
        (&"api".into(), 1)
    );
    let other = earrrl(&[&once[..], &["--rule", "login"]].concat());
    assert!(!other.out.contains("alice"), "{}", other.out);
}

const LEVELS: &str = r#"
[[rule]]
name = "tokens"
levels = [
    { name = "org", key = "attribute:org", limit = "gcra 1/1h burst=20" },
    { name = "team", key = "attribute:team", limit = "gcra 1/1h burst=10" },
    { name = "user", key = "user", limit = "gcra 1/1h burst=5" },
]
"#;

/// Requests of three organisations, each charged under all levels. Those of `ops` of `beta` name only their rule, which
/// is the one for users.
fn server_of_levels() -> TestServer {
    let server = TestServer::start(LEVELS);
    let mut http = Client::connect(server.http);
    for (org, team, user, count) in [
        ("acme", "core", "ann", 5),
        ("acme", "core", "bob", 3),
        ("acme", "ops", "ann", 5),
        ("acme", "ops", "zoe", 4),
        ("beta", "core", "max", 4),
        ("beta", "core", "eve", 5),
        ("gamma", "x", "lee", 5),
    ] {
        let body = format!(r#"{{"attributes":{{"org":"{org}","team":"{team}","user":"{user}"}}}}"#);
        for _ in 0..count {
            assert_eq!(http.post("/v1/check", &body).status, 200, "{body}");
        }
    }
    let body = r#"{"rule":"tokens-user","key":["beta","ops","kim"]}"#;
    for _ in 0..5 {
        assert_eq!(http.post("/v1/check", body).status, 200);
    }
    server
}

#[test]
fn levels_are_a_tree() {
    let server = server_of_levels();
    let address = server.http.to_string();
    let once = ["top", "--once", "--server", &address];
    let clients = |rule: &str| -> Vec<String> {
        let table = earrrl(&[&once[..], &["--rule", rule]].concat()).out;
        let (_, rows) = table.split_once("CLIENT\n").unwrap();
        let names = rows.lines().map(|row| row[47..].to_owned());
        names.filter(|name| !name.starts_with('#')).collect()
    };
    let tree = [
        "acme",
        "  ops",
        "    ann",
        "    zoe",
        "  core",
        "    ann",
        "    bob",
        "beta",
        "  ops kim",
        "  core",
        "    eve",
        "    max",
        "gamma",
        "  x",
        "    lee",
    ];
    assert_eq!(clients("tokens-org"), tree);
    let teams = clients("tokens-team");
    assert!(teams.contains(&"4:acme,3:ops,".to_owned()), "{teams:?}");
    assert!(teams.contains(&"  zoe".to_owned()), "{teams:?}");
    let users = clients("tokens-user");
    let indented = users.iter().filter(|name| name.starts_with(' ')).count();
    assert_eq!((users.len(), indented), (8, 0), "{users:?}");
    let json = earrrl(&[&once[..], &["--output", "json"]].concat()).out;
    assert!(json.contains("beta") && !json.contains("core"), "{json}");
}

/// A denied request is charged under no level, and counts once under each that denies it.
#[test]
fn a_request_counts_once_under_each_level() {
    let server = server_of_levels();
    let mut http = Client::connect(server.http);
    let mut counts = |rule: &str, key: &str| {
        let top = http.get(&format!("/v1/top?rule=tokens-{rule}")).json();
        let clients = top["clients"].as_array().unwrap();
        let client = clients.iter().find(|client| client["key"] == key).unwrap();
        ["allowed", "denied"].map(|count| client[count].as_u64().unwrap())
    };
    let keys = [
        ("org", "acme"),
        ("team", "4:acme,3:ops,"),
        ("user", "4:acme,3:ops,3:ann,"),
    ];
    let before = keys.map(|(rule, key)| counts(rule, key));
    let charge =
        |(rule, key)| serde_json::json!({"rule": format!("tokens-{rule}"), "key": key, "cost": 3});
    let body = serde_json::json!({"rules": keys.map(charge)}).to_string();
    let denied = Client::connect(server.http).post("/v1/check", &body);
    assert_eq!(
        denied.json()["over"].as_array().map(Vec::len),
        Some(2),
        "{denied:?}"
    );
    let after = keys.map(|(rule, key)| counts(rule, key));
    for (level, denials) in [0, 1, 1].into_iter().enumerate() {
        let [allowed, denied] = before[level];
        assert_eq!(
            after[level],
            [allowed, denied + denials],
            "{}",
            keys[level].0
        );
    }
}

/// With an admin listener, the address for HTTP serves no metrics, but the counts of the rules.
#[test]
fn counts_are_shown_at_every_address() {
    let server = TestServer::start(&format!("[server]\nadmin = \"127.0.0.1:0\"\n{RULE}"));
    server.resp().line("EARRRL.CHECK api alice");
    let http = server.http.to_string();
    let admin = server.admin.unwrap().to_string();
    for address in [&http, &admin] {
        let table = earrrl(&["top", "--once", "--server", address]).out;
        let counts = "api  gcra 1/1h burst=10  1 allowed, 0 denied\n";
        assert!(table.contains(counts), "{table}");
    }
    let json = earrrl(&["top", "--once", "--server", &http, "--output", "json"]).out;
    assert!(json.contains(r#""allowed":1,"denied":0"#), "{json}");
}

#[test]
fn a_server_is_asked_over_tls_with_an_authority_of_its_own() {
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    let server = TestServer::start(&format!("{}{RULE}", authority.table("")));
    let address = format!("https://localhost:{}", server.http.port());
    let once = ["top", "--once", "--server", &address];
    let ca = shown(&authority.path("ca.pem"));
    let table = earrrl(&[&once[..], &["--ca", &ca]].concat());
    assert_eq!((table.code, &*table.err), (Some(0), ""));
    assert!(
        table.out.contains("api  gcra 1/1h burst=10  0 allowed"),
        "{}",
        table.out
    );
    let check = ["check", "api", "alice", "--ca", &ca, "--server", &address];
    assert_eq!(earrrl(&check).code, Some(0), "{}", earrrl(&check).err);
    let untrusted = earrrl(&once);
    assert_eq!(
        (untrusted.code, untrusted.err.lines().count()),
        (Some(2), 1),
        "{}",
        untrusted.err
    );
}

#[test]
fn a_server_is_asked_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let [config, socket] = ["limits.toml", "http"].map(|name| folder.path().join(name));
    let address = format!("unix:{}", socket.display());
    let token = format!("admin_token = \"{ADMIN}\"");
    fs::write(
        &config,
        format!("[server]\n{token}\nhttp = \"{address}\"\n{RULE}"),
    )
    .unwrap();
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--config"])
        .arg(config)
        .stderr(Stdio::null());
    let mut server = command.spawn().unwrap();
    until("it serves", || UnixStream::connect(&socket).is_ok());
    let once = ["top", "--once", "--server", &address];
    let refused = earrrl(&once);
    let table = earrrl(&[&once[..], &["--token", ADMIN]].concat());
    let check = [
        "check", "api", "alice", "--token", ADMIN, "--server", &address,
    ];
    assert_eq!(earrrl(&check).code, Some(0), "{}", earrrl(&check).err);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert_eq!((table.code, &*table.err), (Some(0), ""));
    assert!(
        table.out.contains("api  gcra 1/1h burst=10  0 allowed"),
        "{}",
        table.out
    );
}

#[test]
fn mistakes_are_one_line() {
    let server = server();
    let address = server.http.to_string();
    let resp = server.resp.to_string();
    for (arguments, error) in [
        (
            vec!["--server", &address, "--token", "wrong-token-0123456789"],
            "token",
        ),
        (
            vec!["--server", &address, "--token", ADMIN, "--rule", "no"],
            "rule",
        ),
        (
            vec!["--server", "unix:/nowhere"],
            "unix:/nowhere: No such file",
        ),
        (
            vec!["--server", &resp],
            "this port is for Redis clients (RESP)",
        ),
        (vec!["--server", "host"], "expected HOST:PORT"),
        (vec!["access.log"], "unexpected argument"),
    ] {
        let outcome = earrrl(&[&["top", "--once"], &arguments[..]].concat());
        assert_eq!(outcome.code, Some(2), "{arguments:?}");
        assert_eq!(outcome.err.lines().count(), 1, "{}", outcome.err);
        assert!(
            outcome.err.contains(error),
            "{arguments:?}: {}",
            outcome.err
        );
    }
}

/// Runs the script that starts `earrrl top` in a terminal, with these arguments after its own.
fn in_a_terminal(part: &str, arguments: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/terminal.py");
    let output = Command::new("python3")
        .arg(script)
        .args([part, BINARY])
        .args(arguments)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(out.trim(), "good", "{err}");
}

#[test]
fn tables_take_each_others_place_in_a_terminal() {
    let server = server();
    in_a_terminal(
        "show",
        &["--server", &server.http.to_string(), "--token", ADMIN],
    );
}

#[test]
fn tables_follow_each_other_in_a_pipe() {
    let server = server();
    let address = server.http.to_string();
    let mut top = Command::new(BINARY)
        .args(["top", "--server", &address, "--token", ADMIN])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let rules = lines
        .map(Result::unwrap)
        .filter(|line| line.starts_with("api "));
    let shown: Vec<String> = rules.take(2).collect();
    top.kill().unwrap();
    top.wait().unwrap();
    let counts = "api  gcra 1/1h burst=10  35 allowed, 6 denied";
    assert_eq!(
        shown,
        [
            counts.to_owned(),
            format!("{counts}  0.000/s, 0.000/s denied")
        ]
    );
}

#[test]
fn the_command_ends_when_its_terminal_is_closed() {
    let server = server();
    in_a_terminal(
        "close",
        &["--server", &server.http.to_string(), "--token", ADMIN],
    );
}
