//! Tests of the stream of events.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use earrrl_server::config::Config;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

use crate::support::http::Client;
use crate::support::process::Process;
use crate::support::resp::encode;
use crate::support::tools::tool;
use crate::support::{TestServer, until};

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

/// A configuration that appends events to `events.jsonl` in a folder.
fn with_file(folder: &Path) -> (String, PathBuf) {
    let path = folder.join("events.jsonl");
    let field = format!("[server]\nevents_file = \"{}\"\n", path.display());
    (CONFIG.replacen("[server]\n", &field, 1), path)
}

/// Returns the events of a file, each as its name, its rule and its key. Every line must be a JSON object in visible ASCII.
fn written(path: &Path) -> Vec<(String, String, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    assert!(
        whole
            .bytes()
            .all(|byte| matches!(byte, b'\n' | b' '..=b'~')),
        "{whole}"
    );
    whole.lines().map(read).collect()
}

fn until_written(path: &Path, expected: (String, String, String)) {
    until("the event is written", || written(path).contains(&expected));
}

#[test]
fn events_are_appended_to_a_file_that_is_rotated() {
    let folder = tempfile::tempdir().unwrap();
    let (config, path) = with_file(folder.path());
    let server = TestServer::start(&config);
    until("the file is there", || path.exists());
    assert_eq!(
        path.metadata().unwrap().permissions().mode() & 0o7,
        0,
        "others may not read it"
    );
    limit(&server, "login", HOSTILE);
    until_written(&path, event("limited", "login", HOSTILE));
    // By rename, with a new file of the rotating program and without one.
    for nth in 0..2 {
        let old = folder.path().join(format!("events.jsonl.{nth}"));
        fs::rename(&path, &old).unwrap();
        if nth == 0 {
            fs::write(&path, "").unwrap();
        }
        let name = format!("renamed-{nth}");
        limit(&server, "login", &name);
        until_written(&path, event("limited", "login", &name));
        assert!(!written(&old).contains(&event("limited", "login", &name)));
    }
    fs::write(&path, "").unwrap();
    send(&server, "EARRRL.RESET", "login", "renamed-0");
    until_written(&path, event("reset", "login", "renamed-0"));
    assert_eq!(written(&path), [event("reset", "login", "renamed-0")]);
}

#[test]
fn without_names_there_is_no_file_of_events() {
    let folder = tempfile::tempdir().unwrap();
    let (config, _) = with_file(folder.path());
    let config = config.replacen("[server]\n", "[server]\nnames = { capacity = 0 }\n", 1);
    let error = Config::parse(&config, "test").unwrap_err().to_string();
    assert!(
        error.contains("events_file: events are about named clients"),
        "{error}"
    );
}

/// A limit on the size of files simulates a full disk.
#[test]
fn a_full_disk_delays_events_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (config, path) = with_file(folder.path());
    let file = folder.path().join("limits.toml");
    fs::write(&file, config).unwrap();
    let mut server = Process::start(&["--config", file.to_str().unwrap()]);
    let http = server.http;
    let send = |key: &str| {
        let mut client = Client::connect(http);
        client.token = Some(ADMIN.to_owned());
        let request = format!(r#"{{"rule":"login","key":"{key}"}}"#);
        [(), ()].map(|()| client.post("/v1/check", &request).status)
    };
    let pid = Pid::from_child(&server.child);
    let give_room = |current| {
        let limit = Rlimit {
            current,
            ..getrlimit(Resource::Fsize)
        };
        prlimit(Some(pid), Resource::Fsize, limit).unwrap();
    };
    assert_eq!(send("first"), [200, 429]);
    until_written(&path, event("limited", "login", "first"));
    // There is room for the first part of a line.
    let length = path.metadata().unwrap().len();
    give_room(Some(length + 30));
    assert_eq!(send("second"), [200, 429]);
    let error = server.until_logged("events cannot be written");
    assert!(
        error["fields"]["path"]
            .as_str()
            .unwrap()
            .ends_with("events.jsonl"),
        "{error}"
    );
    assert_eq!(path.metadata().unwrap().len(), length + 30);
    assert_eq!(send("third"), [200, 429]);
    give_room(None);
    server.until_logged("events are written again");
    until_written(&path, event("limited", "login", "third"));
    let expected = ["first", "second", "third"].map(|key| event("limited", "login", key));
    assert_eq!(written(&path), expected);
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
