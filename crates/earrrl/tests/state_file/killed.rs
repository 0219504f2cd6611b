//! Several processes on one file, some of them killed or stopped at random moments. Every
//! acknowledged request is charged once, and no client is admitted more often than its limit permits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use earrrl::Cost;
use rustix::process::Signal;

use super::process::{Process, Work, wait_until};
use super::{CAPACITY, FIVE, Scratch, open};
use crate::starts::start;

/// A rule of every algorithm whose charges can be counted: units that are left when all requests of
/// the tests, which take seconds, are charged.
const COUNTED: [(&str, u64); 4] = [
    ("token-bucket 10000 refill=1/d", 10_000),
    ("recent-average 1000000/365d period=365d leaky", 1_000_001),
    ("fixed-window 1000000/3650d", 1_000_000),
    ("sliding-counter 1000000/3650d strict", 1_000_000),
];

fn times(short: usize, long: usize) -> usize {
    if std::env::var_os("EARRRL_LONG").is_some() { long } else { short }
}

/// Adds up the acknowledged requests of several processes.
fn sum(processes: impl IntoIterator<Item = Process>, clients: u64) -> Vec<u64> {
    let mut sum = vec![0; clients as usize];
    for process in processes {
        let admitted = process.admitted(clients);
        sum.iter_mut().zip(admitted).for_each(|(sum, one)| *sum += one);
    }
    sum
}

/// Eight processes decide. Now and then, one is killed and replaced.
fn five_of_each_client(rule: &str, kills: usize) {
    const CLIENTS: u64 = 10_000;
    let scratch = Scratch::new();
    let start = |seed: usize| {
        let work = Work { rule, clients: CLIENTS, requests: 3, seed: seed as u64 };
        Process::start(&scratch, work)
    };
    let mut running: Vec<_> = (0..8).map(start).collect();
    running.iter_mut().for_each(Process::go);
    let mut ended: Vec<Process> = Vec::new();
    for kill in 0..kills {
        // The kills are spread over the first three quarters of the requests that are admitted.
        let until = (CLIENTS * 5 * 3 / 4) * (kill as u64 + 1) / kills as u64;
        let all = || ended.iter().chain(&running).map(Process::acknowledged).sum::<u64>();
        wait_until(|| all() >= until);
        let victim = running.remove(kill * 3 % 8);
        victim.signal(Signal::KILL);
        ended.push(victim);
        let mut next = start(8 + kill);
        next.go();
        running.push(next);
    }
    ended.append(&mut running);
    let admitted = sum(ended, CLIENTS);
    assert!(admitted.iter().all(|count| *count <= 5), "{rule}: {admitted:?}");
    let acknowledged: u64 = admitted.iter().sum();
    // Each process may have died between a charge and its entry in the ledger.
    assert!(acknowledged + kills as u64 >= 5 * CLIENTS, "{rule}: {acknowledged}");
    let limiter = open(rule, &scratch.path(), CAPACITY).unwrap();
    assert!((0..CLIENTS).all(|client| !limiter.check(&client).is_allowed()), "{rule}");
    assert_eq!(limiter.displaced(), 0);
}

#[test]
fn eight_processes_admit_five_requests_of_each_client() {
    for rule in FIVE {
        five_of_each_client(rule, 0);
        five_of_each_client(rule, times(20, 200));
    }
}

/// Four processes decide. Now and then one is killed and replaced by one of the build `next`, and
/// another one is stopped for a while.
fn episode(rule: &str, quota: u64, episode: usize, kills: usize, next: &Path) {
    let (scratch, clients) = (Scratch::new(), 1 << 14);
    let start = |seed: usize, build: &Path| {
        let work = Work { rule, clients, requests: 1 << 40, seed: seed as u64 };
        let mut process = Process::of_build(build, &scratch, work);
        process.go();
        process
    };
    let mut running: Vec<_> = (0..4).map(|seed| start(seed, &this_build())).collect();
    let mut ended = Vec::new();
    for kill in 0..kills {
        let moment = (episode * 7919 + kill * 104_729) as u64 % 4001;
        let victim = running.remove(kill % 4);
        let stopped = &running[kill % 3];
        stopped.signal(Signal::STOP);
        let until = victim.acknowledged() + moment;
        wait_until(|| victim.acknowledged() >= until);
        victim.signal(Signal::KILL);
        stopped.signal(Signal::CONT);
        ended.push(victim);
        running.push(start(4 + kill, next));
    }
    running.iter().for_each(|process| process.signal(Signal::KILL));
    ended.append(&mut running);
    let killed = ended.len() as u64;
    let admitted = sum(ended, clients);
    let limiter = open(rule, &scratch.path(), CAPACITY).unwrap();
    let mut unacknowledged = 0;
    for client in 0..clients {
        let charged = quota - limiter.peek(&client, Cost::ONE).unwrap().remaining();
        let acknowledged = admitted[client as usize];
        assert!(charged >= acknowledged, "{rule}: {client}: {charged} of {acknowledged}");
        unacknowledged += charged - acknowledged;
    }
    // Each process may have died between a charge and its entry in the ledger.
    assert!(unacknowledged <= killed, "{rule}: {unacknowledged} of {killed}");
    assert_eq!(limiter.displaced(), 0);
}

#[test]
fn every_acknowledged_request_of_killed_processes_is_charged_once() {
    for (rule, quota) in COUNTED {
        for nth in 0..times(1, 10) {
            episode(rule, quota, nth, times(10, 20), &this_build());
        }
    }
}

fn this_build() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Compiles this test once more, optimised. The short form of the test copies it instead.
fn other_build(scratch: &Scratch) -> PathBuf {
    if std::env::var_os("EARRRL_LONG").is_none() {
        let copy = scratch.0.join("build");
        fs::create_dir(&scratch.0).unwrap();
        fs::copy(this_build(), &copy).unwrap();
        return copy;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--release", "--no-run", "--all-features", "--test", "all"]);
    cargo.args([
        "--message-format=json",
        "--target-dir",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/other"),
    ]);
    let output = start(cargo.stdout(Stdio::piped())).wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut path = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        Some(PathBuf::from(rest.split_once('"')?.0))
    });
    path.next_back().unwrap()
}

/// Processes are replaced one by one by those of another build with the same layout of files.
#[test]
fn processes_of_two_builds_share_a_file() {
    let scratch = Scratch::new();
    let other = other_build(&scratch);
    for (rule, quota) in COUNTED {
        episode(rule, quota, 3, times(4, 40), &other);
    }
}
