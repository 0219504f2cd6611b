//! The binary as a process: its memory, its descriptors, its signals, its command line.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use earrrl_server::serve::descriptors;
use rustix::process::Signal;
use support::process::{BINARY, Process};
use support::resp::{Client, Reply, encode};
use support::{connect, http};

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn idle_connections_take_four_kilobytes_at_most() {
    let room = descriptors::raise().unwrap().unwrap_or(u64::MAX);
    let count = room.saturating_sub(200).min(10_000);
    let process = Process::start(&["--capacity", "1000"]);
    let mut warm: Vec<Client> = (0..100).map(|_| Client::connect(process.resp)).collect();
    warm.iter_mut().for_each(|client| drop(client.line("CL.THROTTLE k 1 1 1")));
    let before = process.resident_kib();
    let idle: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = connect(process.resp);
            stream.write_all(&encode(&[b"CL.THROTTLE", b"k", b"1", b"1", b"1"])).unwrap();
            stream
        })
        .collect();
    // Each has been served and waits now.
    for mut stream in &idle {
        stream.read_exact(&mut [0; 20]).unwrap();
    }
    let each = (process.resident_kib() - before) * 1024 / count;
    assert!(each <= 4096, "{each} bytes a connection");
    assert_eq!(Client::connect(process.resp).line("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn out_of_descriptors_is_survived() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 40; exec \"$@\"", "sh", BINARY, "serve"]);
    let mut process = Process::spawn(&mut shell);
    let mut crowd: Vec<Client> = (0..100).map(|_| Client::connect(process.resp)).collect();
    process.until_logged("can't accept now");
    // Those that are in are served.
    assert_eq!(crowd[0].line("PING"), Reply::Simple("PONG".into()));
    // As they leave, those that wait get in, down to the last.
    while let Some(mut client) = (!crowd.is_empty()).then(|| crowd.remove(0)) {
        assert_eq!(client.line("PING"), Reply::Simple("PONG".into()));
    }
    assert_eq!(http::Client::connect(process.http).get("/healthz").status, 200);
}

/// Clients that ask, each waiting for its answer, until they are told that the server is going.
/// Answers how many were answered.
fn hammer(address: SocketAddr, stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<u64>> {
    let client = |number: u64| {
        let stop = Arc::clone(stop);
        let request = encode(&[b"EARRRL.CHECK", b"default", format!("c{number}").as_bytes()]);
        move || {
            let (mut stream, mut answered) = (connect(address), 0);
            let mut answer = [0; 512];
            while !stop.load(Relaxed) {
                if stream.write_all(&request).is_err() {
                    break;
                }
                match stream.read(&mut answer) {
                    Ok(1..) => answered += 1,
                    // A clean end, never a reset: what was answered has arrived.
                    Ok(0) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            answered
        }
    };
    (0..8).map(|number| std::thread::spawn(client(number))).collect()
}

#[test]
fn sigterm_under_load_loses_no_answer() {
    let mut process = Process::start(&[]);
    let never = Arc::new(AtomicBool::new(false));
    let clients = hammer(process.resp, &never);
    // A client of HTTP takes the last count: its connection is told to close behind an answer.
    let mut observer = http::Client::connect(process.http);
    let counted = |observer: &mut http::Client| -> u64 {
        let metrics = observer.get("/metrics").body;
        let of = |line: &&str| line.starts_with("earrrl_decisions_total");
        metrics
            .lines()
            .filter(of)
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    while counted(&mut observer) < 1000 {}
    process.signal(Signal::TERM);
    let answered: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert!(answered >= 1000);
    assert!(process.child.wait().unwrap().success());
    let stopped = process.until_logged("stopped");
    assert_eq!(stopped["fields"]["decisions"].as_u64(), Some(answered), "{stopped}");
}

#[test]
fn garbage_under_load_leaves_the_rules_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    let rule =
        |burst: u32| format!("[[rule]]\nname = \"default\"\nlimit = \"gcra 1/s burst={burst}\"\n");
    write(&rule(5));
    let mut process = Process::start(&["--config", file.to_str().unwrap()]);
    let stop = Arc::new(AtomicBool::new(false));
    let clients = hammer(process.resp, &stop);
    let mut observer = http::Client::connect(process.http);

    write("[[rule]]\nname = \"default\"\nlimt = \"");
    process.signal(Signal::HUP);
    process.until_logged("not reloaded");
    let ready = observer.get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(ready.json()["reload_error"].as_str().unwrap().contains("limits.toml:3:"));
    assert_eq!(observer.get("/v1/rules").json()["rules"][0]["quota"], 5);

    // A change of the file is noticed without a signal.
    write(&rule(77));
    process.until_logged("reloaded");
    assert_eq!(observer.get("/v1/rules").json()["rules"][0]["quota"], 77);
    assert_eq!(observer.get("/readyz").json()["reload_error"], serde_json::Value::Null);
    stop.store(true, Relaxed);
    let answered: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert!(answered > 0);
}

#[test]
fn other_machines_are_not_served_unasked() {
    let output = run(&["serve", "--http", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("--allow-remote") && error.lines().count() == 1, "{error}");
}

#[test]
fn a_second_server_on_the_same_port_is_an_error() {
    let first = Process::start(&[]);
    let address = first.resp.to_string();
    let output = run(&["serve", "--http", "127.0.0.1:0", "--resp", &address]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(&format!("can't listen on {address}")));
}

#[test]
fn check_asks_a_running_server() {
    let process = Process::start(&[]);
    let server = process.http.to_string();
    let check = |more: &[&str]| run(&[&["check", "--server", &server], more].concat());
    let allowed = check(&["default", "alice"]);
    assert_eq!(allowed.status.code(), Some(0), "{}", text(&allowed.stderr));
    assert!(text(&allowed.stdout).starts_with("{\"allowed\":true,"));
    assert_eq!(check(&["default", "alice", "--cost", "100", "-q"]).status.code(), Some(0));
    assert_eq!(check(&["default", "alice"]).status.code(), Some(1));
    assert_eq!(check(&["default", "alice", "--peek"]).status.code(), Some(1));
    let unknown = check(&["nothing", "alice"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert_eq!(text(&unknown.stderr).lines().count(), 1);
}

#[test]
fn config_check_tells_every_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        run(&["config", "check", file.to_str().unwrap()])
    };
    let good = check("[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=5\"\n");
    assert_eq!(good.status.code(), Some(0));
    let bad = check("[[rule]]\nname = \"A\"\nlimit = \"gcra\"\naction = \"dney\"\n");
    assert_eq!(bad.status.code(), Some(2));
    let error = text(&bad.stderr);
    assert_eq!(error.lines().count(), 3, "{error}");
    assert!(
        error.contains("limits.toml:4:10:") && error.contains("did you mean `deny`?"),
        "{error}"
    );
    assert_eq!(run(&["config", "check", "/nonexistent"]).status.code(), Some(2));
}

#[test]
fn the_example_configuration_is_valid() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/limits.toml");
    let output = run(&["config", "check", example.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run(&["man", folder.path().to_str().unwrap()]).status.code(), Some(0));
    for page in ["earrrl", "earrrl-serve", "earrrl-replay", "earrrl-config-check"] {
        let text = std::fs::read_to_string(folder.path().join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
}

#[test]
fn completions_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("earrrl"), "{shell}");
    }
}
