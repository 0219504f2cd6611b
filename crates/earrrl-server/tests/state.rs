//! Servers that keep their states in files.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use crate::support::http::Client;
use crate::support::process::{BINARY, Process};
use crate::support::until;

const RULE: &str = "login=token-bucket 5 refill=1/d";

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("earrrl-served-{name}-{}", std::process::id()));
        Self(path)
    }

    fn server(&self, rule: &str) -> Process {
        Process::start(&[
            "--state",
            self.0.to_str().unwrap(),
            "--capacity",
            "1000",
            "--rule",
            rule,
        ])
    }

    fn command(&self, command: &str, arguments: &[&str]) -> (String, bool) {
        let mut earrrl = Command::new(BINARY);
        let earrrl = earrrl.args(["state", command]).arg(&self.0).args(arguments);
        let output = earrrl.output().unwrap();
        (
            String::from_utf8(output.stdout).unwrap(),
            output.status.success(),
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A configuration file with the rule `login`.
struct LoginRule {
    path: String,
    _folder: tempfile::TempDir,
}

impl LoginRule {
    fn new(limit: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder
            .path()
            .join("limits.toml")
            .into_os_string()
            .into_string()
            .unwrap();
        let rule = Self {
            path,
            _folder: folder,
        };
        rule.set(limit);
        rule
    }

    fn set(&self, limit: &str) {
        let text = format!("[[rule]]\nname = \"login\"\nlimit = \"{limit}\"\n");
        std::fs::write(&self.path, text).unwrap();
    }

    /// Returns the arguments of a server with this configuration and its states in `scratch`.
    fn arguments<'a>(&'a self, scratch: &'a Scratch) -> [&'a str; 6] {
        let state = scratch.0.to_str().unwrap();
        [
            "--capacity",
            "1000",
            "--config",
            &self.path,
            "--state",
            state,
        ]
    }
}

/// A reload with a limit that needs no other file writes the limit into the file.
#[test]
fn the_files_of_a_server_have_the_limit_of_its_last_reload() {
    let scratch = Scratch::new("reloaded");
    let [first, second] =
        [4, 6].map(|quota| format!("recent-average {quota}/30d period=30d leaky"));
    let rule = LoginRule::new(&first);
    let mut server = Process::start(&rule.arguments(&scratch));
    assert_eq!(admitted(&server, "alice"), 5);
    assert!(scratch.command("list", &[]).0.contains(&first));
    rule.set(&second);
    server.signal(Signal::HUP);
    server.until_logged("reloaded");
    let (list, _) = scratch.command("list", &[]);
    assert!(
        list.contains("login\t1\t1000\t") && list.contains(&second),
        "{list}"
    );
    let (show, _) = scratch.command("show", &[]);
    assert!(show.contains(&format!("limit: {second}\n")), "{show}");
    assert_eq!(admitted(&server, "alice"), 2);
}

/// A rule that a reload removes keeps its file and the clients in it, since other servers may use them.
#[test]
fn a_reload_removes_a_rule_and_another_brings_it_back_with_its_clients() {
    let scratch = Scratch::new("removed");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let write = |names: &[&str]| {
        let rule = |name: &&str| {
            format!("[[rule]]\nname = \"{name}\"\nlimit = \"token-bucket 5 refill=1/365d\"\n")
        };
        std::fs::write(&file, names.iter().map(rule).collect::<String>()).unwrap();
    };
    write(&["login", "other"]);
    let arguments = [
        "--capacity",
        "1000",
        "--config",
        file.to_str().unwrap(),
        "--state",
    ];
    let mut server = Process::start(&[&arguments[..], &[scratch.0.to_str().unwrap()]].concat());
    assert_eq!(admitted(&server, "alice"), 5);
    for names in [&["other"][..], &["login", "other"]] {
        write(names);
        server.signal(Signal::HUP);
        server.until_logged("reloaded");
    }
    assert_eq!(
        (admitted(&server, "alice"), admitted(&server, "bob")),
        (0, 5)
    );
}

/// Returns the number of admitted requests of nine.
fn admitted(server: &Process, key: &str) -> usize {
    let mut client = Client::connect(server.http);
    let request = format!(r#"{{"rule":"login","key":"{key}"}}"#);
    let mut check = || client.post("/v1/check", &request).json()["allowed"] == true;
    (0..9).filter(|_| check()).count()
}

#[test]
fn a_killed_server_keeps_its_bans_and_shares_them_with_others() {
    let scratch = Scratch::new("killed");
    let first = scratch.server(RULE);
    assert_eq!(admitted(&first, "alice"), 5);
    let second = scratch.server(RULE);
    assert_eq!(admitted(&second, "alice"), 0);
    assert_eq!(admitted(&second, "bob"), 5);
    first.signal(Signal::KILL);
    second.signal(Signal::KILL);
    drop((first, second));
    let third = scratch.server(RULE);
    assert_eq!((admitted(&third, "alice"), admitted(&third, "bob")), (0, 0));
    assert_eq!(admitted(&third, "carol"), 5);
}

#[test]
fn bans_outlive_a_restart_with_another_limit() {
    let scratch = Scratch::new("changed");
    let first = scratch.server("login=token-bucket 5 refill=1/365d");
    assert_eq!(admitted(&first, "alice"), 5);
    drop(first);
    let second = scratch.server("login=token-bucket 7 refill=2/365d");
    assert_eq!(
        (admitted(&second, "alice"), admitted(&second, "bob")),
        (0, 7)
    );
    let (list, _) = scratch.command("list", &[]);
    assert!(list.contains("login\t2\t1000\t"), "{list}");
}

/// Servers of one directory each apply their own limit to the shared states.
#[test]
fn a_reload_of_one_server_leaves_the_limit_of_others() {
    let scratch = Scratch::new("followed");
    let rule = LoginRule::new("token-bucket 5 refill=1/365d");
    let mut first = Process::start(&rule.arguments(&scratch));
    let second = scratch.server("login=token-bucket 5 refill=1/365d");
    assert_eq!(
        (admitted(&first, "alice"), admitted(&second, "bob")),
        (5, 5)
    );
    rule.set("token-bucket 7 refill=1/365d");
    first.signal(Signal::HUP);
    first.until_logged("reloaded");
    assert_eq!(
        (admitted(&second, "alice"), admitted(&first, "bob")),
        (0, 2)
    );
    assert_eq!(
        (admitted(&second, "carol"), admitted(&first, "carol")),
        (5, 2)
    );
    let (list, _) = scratch.command("list", &[]);
    assert!(
        list.contains("login\t3\t1000\t") && list.contains("\ttoken-bucket 7 refill=1/365d\n"),
        "{list}"
    );
}

/// Another algorithm is no reason to stop a server: its clients begin afresh, and the log says so.
#[test]
fn a_server_begins_afresh_under_another_algorithm() {
    let scratch = Scratch::new("algorithm");
    let rule = LoginRule::new("token-bucket 5 refill=1/365d");
    let mut first = Process::start(&rule.arguments(&scratch));
    let second = scratch.server("login=token-bucket 5 refill=1/365d");
    assert_eq!(
        (admitted(&first, "alice"), admitted(&second, "bob")),
        (5, 5)
    );
    rule.set("fixed-window 3/3650d");
    first.signal(Signal::HUP);
    let afresh = |before: &str| format!("login: begins afresh, since `{before}` had other states");
    first.until_logged(&afresh("token-bucket 5 refill=1/365d"));
    first.until_logged("reloaded");
    assert_eq!(
        (admitted(&first, "alice"), admitted(&second, "carol")),
        (3, 5)
    );
    assert_eq!(
        (admitted(&first, "alice"), admitted(&second, "bob")),
        (0, 0)
    );
    drop((first, second));
    // A bucket would find the file that the second server has left.
    rule.set("sliding-counter 4/365d");
    let any = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    let mut third = Command::new(BINARY);
    let mut third = Process::begin(third.arg("serve").args(rule.arguments(&scratch)).args(any));
    third.until_logged("login: begins afresh, since `");
    third.until_serving();
    rule.set("fixed-window 3/1d");
    let text = std::fs::read_to_string(&rule.path).unwrap();
    let check = || {
        let text = format!("{text}[engine]\nstate = {:?}\n", scratch.0);
        std::fs::write(&rule.path, text).unwrap();
        let output = Command::new(BINARY)
            .args(["config", "check"])
            .arg(&rule.path)
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let warned = check();
    assert!(
        warned.contains(
            "warning: login: begins afresh, since `sliding-counter 4/365d leaky` had other"
        ),
        "{warned}"
    );
    std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let warned = check();
    assert!(warned.contains("mode: 0777; expected 0700"), "{warned}");
    assert_eq!(admitted(&third, "alice"), 4);
}

#[test]
fn the_files_of_a_server_are_listed_and_checked() {
    let scratch = Scratch::new("listed");
    let server = scratch.server(RULE);
    assert_eq!(admitted(&server, "alice"), 5);
    let (list, _) = scratch.command("list", &[]);
    assert!(list.contains("login\t1\t1000\t"), "{list}");
    let (show, _) = scratch.command("show", &[]);
    assert!(
        show.contains(&format!("processes: {} (earrrl)", server.child.id())),
        "{show}"
    );
    assert!(scratch.command("check", &[]).1);
    let (pruned, is_good) = scratch.command("prune", &["--rule", "login"]);
    let used = format!("in use by {} (earrrl)", server.child.id());
    assert!(pruned.contains(&used) && !is_good, "{pruned}");
    assert!(
        !scratch.command("prune", &["--rule", "logni"]).1,
        "a misspelt rule"
    );
    drop(server);
    let files = std::fs::read_dir(&scratch.0).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let is_of_login = |file: &PathBuf| file.display().to_string().contains("/login.");
    let file = files.find(is_of_login).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(100)
        .unwrap();
    let (check, is_good) = scratch.command("check", &[]);
    assert!(
        check.contains("length: 100 bytes; expected at least 8192") && !is_good,
        "{check}"
    );
    let (pruned, _) = scratch.command("prune", &["--rule", "login"]);
    assert_eq!(pruned.trim(), file.to_str().unwrap());
}

#[test]
fn a_server_refuses_rules_that_no_file_can_keep() {
    let scratch = Scratch::new("refused");
    let mut serve = Command::new(BINARY);
    let serve = serve
        .args(["serve", "--rule", "login=sliding-log 5/1d", "--state"])
        .arg(&scratch.0);
    let output = serve
        .args(["--http", "127.0.0.1:0", "--resp", "off"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success()
            && text.contains("no state file can keep `sliding-log 5/1d`; expected"),
        "{text}"
    );
}

/// The charge and the reservation are both in files, so a commit after a kill corrects the one by the other.
#[test]
fn a_reservation_outlives_a_killed_server() {
    let scratch = Scratch::new("reserved");
    let rule = "login=token-bucket 1000 refill=1/365d";
    let post = |server: &Process, path: &str, body: &str| {
        let response = Client::connect(server.http).post(path, body);
        assert_eq!(response.status, 200, "{path} {body}");
        response.json()
    };
    let left = |server: &Process| {
        let figures = post(server, "/v1/peek", r#"{"rule":"login","key":"alice"}"#);
        figures["remaining"].as_u64().unwrap()
    };
    let ask = r#"{"rule":"login","key":"alice","cost":500}"#;
    let first = scratch.server(rule);
    let held = post(&first, "/v1/reserve", ask);
    let commit = format!(r#"{{"reservation":{},"cost":100}}"#, held["reservation"]);
    first.signal(Signal::KILL);
    drop(first);
    for repeated in [false, true] {
        let server = scratch.server(rule);
        assert_eq!(left(&server), if repeated { 900 } else { 500 });
        let committed = post(&server, "/v1/commit", &commit);
        assert_eq!(committed["repeated"], repeated);
        assert_eq!(left(&server), 900);
        server.signal(Signal::KILL);
    }
}

/// While one server has the reservations' file, another one can reserve, but gives nothing back. It takes the file
/// when the first one has ended, with the reservations in it.
#[test]
fn a_server_takes_over_the_reservations_of_one_that_has_ended() {
    let scratch = Scratch::new("taken-over");
    let rule = "login=token-bucket 1000 refill=1/365d";
    let post =
        |server: &Process, path: &str, body: &str| Client::connect(server.http).post(path, body);
    let reserve = |server: &Process| {
        let ask = r#"{"rule":"login","key":"alice","cost":100}"#;
        post(server, "/v1/reserve", ask).json()
    };
    let first = scratch.server(rule);
    let second = scratch.server(rule);
    let held = [reserve(&first), reserve(&second)];
    let commit = |nth: usize| format!(r#"{{"reservation":{},"cost":0}}"#, held[nth]["reservation"]);
    assert_eq!(post(&second, "/v1/commit", &commit(0)).status, 404);
    let kept = post(&second, "/v1/commit", &commit(1)).json();
    assert_eq!(kept["remaining"], 800);
    first.signal(Signal::KILL);
    drop(first);
    until("the file was taken", || {
        let _ = reserve(&second);
        post(&second, "/v1/commit", &commit(0)).status == 200
    });
}
