//! Tests full load with a million clients and continuous reloads: no request may fail, and memory
//! must not grow. It takes a few seconds; with `EARRRL_LONG=1` five minutes, with a reload every
//! ten seconds.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::support::http;
use crate::support::process::Process;
use crate::support::resp::{Client, Reply, encode};
use earrrl::random::Random;
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
        let (mut client, mut random, mut replies) =
            (Client::connect(address), Random::new(seed), 0);
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
        let (mut client, mut random, mut replies) =
            (http::Client::connect(address), Random::new(9), 0);
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
    let (reloads, pause) =
        if long { (30, Duration::from_secs(10)) } else { (6, Duration::from_millis(500)) };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    std::fs::write(&file, config(5)).unwrap();
    let mut process = Process::start(&["--config", file.to_str().unwrap()]);
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients: Vec<_> =
        (0..3).map(|seed| pipelines(process.resp, seed, Arc::clone(&stop))).collect();
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
    let replies: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert!(replies > 1000, "{replies}");
    // Tables touch their memory when they are created; in the first third, other memory settles.
    let settled = resident[resident.len() / 3];
    let last = *resident.last().unwrap();
    assert!(last <= settled + SLACK_KIB, "it grew from {settled} KiB: {resident:?}");
    println!("{replies} answers, {reloads} reloads, {last} KiB, from {settled}");
}
