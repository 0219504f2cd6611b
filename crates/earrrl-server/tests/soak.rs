//! Tests full load with a million clients and continuous reloads, and a server that a dashboard and
//! `earrrl top` watch: no request may fail, and memory must not grow. It takes a few seconds; with
//! `EARRRL_LONG=1` the first takes five minutes, with a reload every ten seconds, and the second an hour, or the
//! number of minutes in `EARRRL_MINUTES`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::support::http;
use crate::support::process::{BINARY, Process, resident_kib};
use crate::support::resp::{Client, Reply, encode};
use crate::support::tools::{self, tool};
use earrrl_testing::Random;
use rustix::process::Signal;

const CLIENTS: u64 = 1_000_000;
/// The memory in KiB that the allocator may keep; more counts as growth.
const SLACK_KIB: u64 = 8 * 1024;

fn config(burst: u32) -> String {
    format!(
        "[engine]\ncapacity = 1_000_000\n\
         [[rule]]\nname = \"average\"\nlimit = \"recent-average {burst}/s half-life=10s strict\"\n\
         [[rule]]\nname = \"bucket\"\nlimit = \"gcra 1/s burst={burst}\"\n\
         [[rule]]\nname = \"window\"\nlimit = \"fixed-window {burst}/1m\"\ncapacity = 10_000\n"
    )
}

/// Sends pipelines of 64 commands until `stop` is set. The thread returns the number of replies.
fn pipelines(address: SocketAddr, seed: u64, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    thread::spawn(move || {
        let mut client = Client::connect(address);
        let mut random = Random::new(seed);
        let mut replies = 0;
        while !stop.load(Relaxed) {
            let mut requests = Vec::new();
            for nth in 0..64 {
                let key = format!("client-{}", random.below(CLIENTS)).into_bytes();
                requests.extend(match nth % 4 {
                    0 => encode(&[b"CL.THROTTLE", &key, b"15", b"30", b"60"]),
                    1 => encode(&[b"EARRRL.CHECK", b"bucket", &key]),
                    2 => encode(&[b"EARRRL.CHECK", b"window", &key]),
                    _ => encode(&[b"EARRRL.CHECK", b"average", &key, b"AND", b"bucket", &key]),
                });
            }
            client.send(&requests);
            for _ in 0..64 {
                assert!(matches!(client.reply(), Reply::Array(_)));
                replies += 1;
            }
        }
        replies
    })
}

fn checks(address: SocketAddr, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    thread::spawn(move || {
        let mut client = http::Client::connect(address);
        let mut random = Random::new(9);
        let mut replies = 0;
        while !stop.load(Relaxed) {
            let key = random.below(CLIENTS);
            let body = format!("{{\"rule\":\"average\",\"key\":\"client-{key}\"}}");
            let status = client.post("/v1/check", &body).status;
            assert!(matches!(status, 200 | 429), "{status}");
            replies += 1;
        }
        replies
    })
}

#[test]
fn memory_stays_and_nothing_fails() {
    let long = std::env::var_os("EARRRL_LONG").is_some();
    let (reloads, pause) = if long {
        (30, Duration::from_secs(10))
    } else {
        (6, Duration::from_millis(500))
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    std::fs::write(&file, config(5)).unwrap();
    let mut process = Process::start(&["--config", file.to_str().unwrap()]);
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients: Vec<_> = (0..3)
        .map(|seed| pipelines(process.resp, seed, Arc::clone(&stop)))
        .collect();
    clients.push(checks(process.http, Arc::clone(&stop)));

    let mut resident = Vec::new();
    for reload in 0..reloads {
        thread::sleep(pause);
        std::fs::write(&file, config(5 + reload % 2)).unwrap();
        process.signal(Signal::HUP);
        process.until_logged("reloaded");
        resident.push(process.resident_kib());
    }
    stop.store(true, Relaxed);
    let replies: u64 = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .sum();
    assert!(replies > 1000, "{replies}");
    // Tables touch their memory when they are created; in the first third, other memory settles.
    let settled = resident[resident.len() / 3];
    let last = *resident.last().unwrap();
    assert!(
        last <= settled + SLACK_KIB,
        "it grew from {settled} KiB: {resident:?}"
    );
    println!("{replies} answers, {reloads} reloads, {last} KiB, from {settled}");
}

const ADMIN: &str = "admin-token-0123456789";
const WATCHED: &str = r#"
[server]
admin = "127.0.0.1:0"
check_token = "check-token-0123456789"
admin_token = "admin-token-0123456789"
[[rule]]
name = "api"
limit = "recent-average 1/s half-life=10s"
key = "user"
"#;
/// The requests of a step, and the time that it takes: 10,000 requests a second.
const STEP: (u64, Duration) = (100, Duration::from_millis(10));

/// Sends requests of 100,000 clients, some of which are far more active than others, at a steady pace.
fn paced(address: SocketAddr, stop: Arc<AtomicBool>) -> JoinHandle<u64> {
    thread::spawn(move || {
        let mut client = Client::connect(address);
        let mut random = Random::new(3);
        client.line("AUTH check-token-0123456789");
        let began = Instant::now();
        let mut steps = 0_u32;
        while !stop.load(Relaxed) {
            let mut requests = Vec::new();
            for _ in 0..STEP.0 {
                let key = (0..3).fold(100_000, |below, _| 1 + random.below(below));
                requests.extend(encode(&[
                    b"EARRRL.CHECK",
                    b"api",
                    format!("c{key}").as_bytes(),
                ]));
            }
            client.send(&requests);
            for _ in 0..STEP.0 {
                assert!(matches!(client.reply(), Reply::Array(_)));
            }
            steps += 1;
            thread::sleep((STEP.1 * steps).saturating_sub(began.elapsed()));
        }
        u64::from(steps) * STEP.0
    })
}

/// A program that prints a line of numbers for each line that it is sent.
struct Watcher {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Watcher {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let questions = child.stdin.take().unwrap();
        let answers = child.stdout.take().unwrap();
        Self {
            child,
            questions,
            answers: BufReader::new(answers),
        }
    }

    fn ask(&mut self) -> Vec<u64> {
        writeln!(self.questions).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts that a figure in KiB does not grow after the first third of its readings.
fn assert_flat(what: &str, readings: &[u64], slack: u64) {
    let settled = readings[readings.len() / 3];
    let last = readings[readings.len() - 1];
    println!("{what}: {settled} KiB after a third, {last} KiB at the end");
    assert!(last <= settled + slack, "{what} grew: {readings:?}");
}

#[test]
fn memory_stays_while_a_page_and_a_table_watch() {
    let long = std::env::var_os("EARRRL_LONG").is_some();
    let minutes = std::env::var("EARRRL_MINUTES").map_or(60, |minutes| minutes.parse().unwrap());
    let (readings, pause) = if long {
        (6 * minutes, Duration::from_secs(10))
    } else {
        (9, Duration::from_secs(1))
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    std::fs::write(&file, WATCHED).unwrap();
    let process = Process::start(&["--config", file.to_str().unwrap()]);
    let stop = Arc::new(AtomicBool::new(false));
    let load = paced(process.resp, Arc::clone(&stop));

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let http = format!("http://{}", process.http);
    let admin = format!("http://{}", process.admin.unwrap());
    let mut node = tool("node");
    node.env("NODE_PATH", tools::folder().join("node_modules"));
    node.arg(root.join("tests/clients/dashboard-watched.cjs"))
        .args([&admin, &http, ADMIN]);
    let mut page = Watcher::start(&mut node);
    let mut top = Command::new(BINARY)
        .args(["top", "--server", &admin, "--token", ADMIN])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();

    let mut server_kib = Vec::new();
    let mut page_kib = Vec::new();
    let mut top_kib = Vec::new();
    let mut shown = Vec::new();
    for _ in 0..readings {
        thread::sleep(pause);
        let of_page = page.ask();
        shown.push(of_page[1]);
        page_kib.push(of_page[0] / 1024);
        top_kib.push(resident_kib(&top));
        server_kib.push(process.resident_kib());
    }
    top.kill().unwrap();
    top.wait().unwrap();
    stop.store(true, Relaxed);
    let sent = load.join().unwrap();
    let first = shown[0];
    let last = shown[shown.len() - 1];
    println!("{sent} requests, of which the page showed {first} first and {last} last");
    assert!(first < last && last <= sent, "{shown:?}");
    assert_flat("the server", &server_kib, SLACK_KIB);
    assert_flat("the page", &page_kib, 2 * 1024);
    assert_flat("earrrl top", &top_kib, 2 * 1024);
}
