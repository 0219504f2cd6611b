//! Tests a flood of keys that occur once each, through RESP pipelines and over HTTP: honest clients are allowed,
//! offenders stay denied although the table is full many times over, and memory does not grow. It takes a few seconds;
//! with `EARRRL_LONG=1` it sends 100 million keys (some ten minutes of a release build), and prints how long answers
//! took meanwhile.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::support::http;
use crate::support::process::Process;
use crate::support::resp::{Client, Reply, encode};

/// The commands of a pipeline. One is of an offender, one of an honest client that returns, the others are of new keys.
const PIPELINE: u64 = 500;
/// The requests with which an offender gets far above its limit.
const OFFENCES: u64 = 50;
/// The requests of an honest client, fewer than its limit.
const VISITS: u64 = 3;
/// The memory in KiB that the allocator may keep; more counts as growth.
const SLACK_KIB: u64 = 16 * 1024;

/// The size of a flood.
struct Flood {
    pipelines: u64,
    capacity: u64,
    offenders: u64,
}

/// The answers that differ from those of an unbounded table, and the time that each pipeline took.
#[derive(Default)]
struct Outcome {
    honest_denied: u64,
    offenders_allowed: u64,
    times: Vec<Duration>,
}

/// Appends the command that asks about one request of `key`.
fn ask(pipeline: &mut Vec<u8>, key: &str) {
    pipeline.extend(encode(&[b"EARRRL.ALLOW", b"login", key.as_bytes()]));
}

fn is_allowed(client: &mut Client) -> bool {
    match client.reply() {
        Reply::Array(figures) => figures[0] == Reply::Integer(1),
        other => panic!("{other:?}"),
    }
}

/// Brings every offender above its limit.
fn offend(client: &mut Client, offenders: u64) {
    for offender in 0..offenders {
        let mut pipeline = Vec::new();
        (0..OFFENCES).for_each(|_| ask(&mut pipeline, &format!("offender-{offender}")));
        client.send(&pipeline);
        let last = (0..OFFENCES).map(|_| is_allowed(client)).last();
        assert_eq!(last, Some(false), "offender {offender}");
    }
}

fn run(client: &mut Client, flood: &Flood) -> Outcome {
    let mut outcome = Outcome::default();
    for nth in 0..flood.pipelines {
        let mut pipeline = Vec::new();
        ask(
            &mut pipeline,
            &format!("offender-{}", nth % flood.offenders),
        );
        ask(&mut pipeline, &format!("honest-{}", nth / VISITS));
        (2..PIPELINE).for_each(|key| ask(&mut pipeline, &format!("new-{nth}-{key}")));
        let began = Instant::now();
        client.send(&pipeline);
        outcome.offenders_allowed += u64::from(is_allowed(client));
        let denied = (1..PIPELINE).filter(|_| !is_allowed(client)).count();
        outcome.honest_denied += denied as u64;
        outcome.times.push(began.elapsed());
        if nth % 20_000 == 19_999 {
            println!("{} of {} pipelines", nth + 1, flood.pipelines);
        }
    }
    outcome
}

/// Sends one new key after the other over HTTP until `stop` is set. The thread returns the time of each.
fn over_http(address: SocketAddr, stop: Arc<AtomicBool>) -> JoinHandle<Vec<Duration>> {
    thread::spawn(move || {
        let mut client = http::Client::connect(address);
        let mut times = Vec::new();
        while !stop.load(Relaxed) {
            let body = format!(r#"{{"rule":"login","key":"http-{}"}}"#, times.len());
            let began = Instant::now();
            assert_eq!(client.post("/v1/check", &body).status, 200);
            times.push(began.elapsed());
        }
        times
    })
}

/// Returns the number of times, their median and their 99.9th percentile.
fn figures(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!(
        "{}, median {:?}, p99.9 {:?}",
        times.len(),
        at(0.5),
        at(0.999)
    )
}

#[test]
fn a_flood_denies_no_honest_client_and_frees_no_offender() {
    let flood = match std::env::var_os("EARRRL_LONG") {
        Some(_) => Flood {
            pipelines: 100_000_000 / PIPELINE,
            capacity: 1_000_000,
            offenders: 10_000,
        },
        None => Flood {
            pipelines: 200,
            capacity: 10_000,
            offenders: 100,
        },
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let config = format!(
        "[engine]\ncapacity = {}\n[[rule]]\nname = \"login\"\nlimit = \"recent-average 5/15m half-life=1h strict\"\n",
        flood.capacity
    );
    std::fs::write(&file, config).unwrap();
    let process = Process::start(&["--config", file.to_str().unwrap()]);
    let mut client = Client::connect(process.resp);
    offend(&mut client, flood.offenders);
    let before = process.resident_kib();
    let stop = Arc::new(AtomicBool::new(false));
    let http = over_http(process.http, Arc::clone(&stop));

    let outcome = run(&mut client, &flood);

    stop.store(true, Relaxed);
    println!("pipelines of {PIPELINE}: {}", figures(outcome.times));
    println!("answers over HTTP: {}", figures(http.join().unwrap()));
    let after = process.resident_kib();
    println!("memory: {before} KiB, {after} KiB after the flood");
    println!(
        "offenders allowed: {} of {}",
        outcome.offenders_allowed, flood.pipelines
    );
    assert_eq!(outcome.honest_denied, 0);
    assert!(outcome.offenders_allowed <= flood.pipelines / 10_000);
    assert!(
        after <= before + SLACK_KIB,
        "it grew from {before} to {after} KiB"
    );
}
