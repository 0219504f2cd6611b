//! Several processes on one file, some of them killed or stopped at random moments. Every
//! acknowledged request is charged once, and no client is admitted more often than its limit permits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use earrrl::Cost;
use rustix::process::{Pid, Signal, kill_process};

use super::process::{Process, Work, decider, idle_ledger, wait_until};
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
    if std::env::var_os("EARRRL_LONG").is_some() {
        long
    } else {
        short
    }
}

/// Adds up the acknowledged requests of several processes.
fn sum(processes: impl IntoIterator<Item = Process>, clients: u64) -> Vec<u64> {
    let mut sum = vec![0; clients as usize];
    for process in processes {
        let admitted = process.admitted(clients);
        sum.iter_mut()
            .zip(admitted)
            .for_each(|(sum, one)| *sum += one);
    }
    sum
}

/// Eight processes decide. Now and then, one is killed and replaced.
fn five_of_each_client(rule: &str, kills: usize) {
    const CLIENTS: u64 = 10_000;
    let scratch = Scratch::new();
    let start = |seed: usize| {
        let capacity = CAPACITY;
        let seed = seed as u64;
        let work = Work {
            rule,
            capacity,
            clients: CLIENTS,
            requests: 3,
            seed,
        };
        Process::start(&scratch, work)
    };
    let mut running: Vec<_> = (0..8).map(start).collect();
    running.iter_mut().for_each(Process::go);
    let mut ended: Vec<Process> = Vec::new();
    for kill in 0..kills {
        // The kills are spread over the first three quarters of the requests that are admitted.
        let until = (CLIENTS * 5 * 3 / 4) * (kill as u64 + 1) / kills as u64;
        let all = || {
            ended
                .iter()
                .chain(&running)
                .map(Process::acknowledged)
                .sum::<u64>()
        };
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
    assert!(
        admitted.iter().all(|count| *count <= 5),
        "{rule}: {admitted:?}"
    );
    let acknowledged: u64 = admitted.iter().sum();
    // Each process may have died between a charge and its entry in the ledger.
    assert!(
        acknowledged + kills as u64 >= 5 * CLIENTS,
        "{rule}: {acknowledged}"
    );
    let limiter = open(rule, &scratch.path(), CAPACITY).unwrap();
    assert!(
        (0..CLIENTS).all(|client| !limiter.check(&client).is_allowed()),
        "{rule}"
    );
    assert_eq!(limiter.displaced(), 0);
}

#[test]
fn eight_processes_admit_five_requests_of_each_client() {
    for rule in FIVE {
        five_of_each_client(rule, 0);
        five_of_each_client(rule, times(20, 200));
    }
}

/// A rule that processes open a file under, and the quota of which nothing comes back within a test.
#[derive(Clone, Copy)]
struct Counted<'a> {
    rules: [&'a str; 2],
    capacities: [usize; 2],
    quota: u64,
}

impl Counted<'_> {
    /// Starts a process under the rule of a round.
    fn start(&self, round: usize, build: &Path, scratch: &Scratch) -> Process {
        let rule = self.rules[round % 2];
        let capacity = self.capacities[round % 2];
        let requests = 1 << 40;
        let seed = round as u64;
        let work = Work {
            rule,
            capacity,
            clients: CLIENTS,
            requests,
            seed,
        };
        let mut process = Process::of_build(build, scratch, work);
        process.go();
        process
    }

    /// Asserts that every acknowledged request of killed processes is charged, and no other one but
    /// the last one of each.
    fn assert_charged(&self, scratch: &Scratch, processes: Vec<Process>) {
        processes
            .iter()
            .for_each(|process| process.signal(Signal::KILL));
        let killed = processes.len() as u64;
        let admitted = sum(processes, CLIENTS);
        let limiter = open(self.rules[0], &scratch.path(), self.capacities[0]).unwrap();
        let mut unacknowledged = 0;
        for client in 0..CLIENTS {
            let charged = self.quota - limiter.peek(&client, Cost::ONE).unwrap().remaining();
            let acknowledged = admitted[client as usize];
            let what = format!("{:?}: {client}: {charged} of {acknowledged}", self.rules);
            assert!(charged >= acknowledged, "{what}");
            unacknowledged += charged - acknowledged;
        }
        // Each process may have died between a charge and its entry in the ledger.
        assert!(
            unacknowledged <= killed,
            "{:?}: {unacknowledged} of {killed}",
            self.rules
        );
        assert_eq!(limiter.displaced(), 0);
    }
}

const CLIENTS: u64 = 1 << 14;

/// Four processes decide. Now and then one is killed and replaced by one of the build `next`, which
/// may have another rule, and another one is stopped for a while.
fn episode(counted: Counted<'_>, episode: usize, kills: usize, next: &Path) {
    let scratch = Scratch::new();
    let start = |round: usize, build: &Path| counted.start(round, build, &scratch);
    let mut running: Vec<_> = (0..4).map(|round| start(round, &this_build())).collect();
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
    ended.append(&mut running);
    counted.assert_charged(&scratch, ended);
}

#[test]
fn every_acknowledged_request_of_killed_processes_is_charged_once() {
    for (rule, quota) in COUNTED {
        let counted = Counted {
            rules: [rule; 2],
            capacities: [CAPACITY; 2],
            quota,
        };
        for nth in 0..times(1, 10) {
            episode(counted, nth, times(10, 20), &this_build());
        }
    }
}

/// Rules that share a file, each with its own quota, and a capacity that changes.
const CHANGED: [Counted<'_>; 3] = [
    Counted {
        rules: [
            "token-bucket 10000 refill=1/d",
            "token-bucket 20000 refill=1/d",
        ],
        capacities: [CAPACITY; 2],
        quota: 10_000,
    },
    Counted {
        rules: ["fixed-window 1000000/3650d", "fixed-window 3000000/3650d"],
        capacities: [CAPACITY, 2 * CAPACITY],
        quota: 1_000_000,
    },
    Counted {
        rules: [
            "sliding-counter 1000000/3650d",
            "sliding-counter 2000000/3650d strict",
        ],
        capacities: [CAPACITY, 3 * CAPACITY],
        quota: 1_000_000,
    },
];

/// The rule or the capacity changes with every process that replaces a killed one. The others go on under theirs.
#[test]
fn a_changed_rule_loses_no_request_of_processes_that_stop_and_die() {
    for counted in CHANGED {
        for nth in 0..times(1, 10) {
            episode(counted, nth, times(10, 20), &this_build());
        }
    }
}

/// A process that changes the rule is stopped at any moment, and then killed or not. The others go on
/// meanwhile.
#[test]
fn no_process_waits_for_one_that_changes_the_rule() {
    for counted in CHANGED {
        let scratch = Scratch::new();
        let running: Vec<_> = (0..3)
            .map(|round| counted.start(2 * round, &this_build(), &scratch))
            .collect();
        for round in 0..times(20, 200) {
            let rule = counted.rules[1 - round % 2];
            let capacity = counted.capacities[1 - round % 2];
            let mut changing = decider(&scratch, rule, capacity);
            let mut changing = start(changing.stdin(Stdio::piped()).stdout(Stdio::null()));
            std::thread::sleep(Duration::from_micros(round as u64 * 7919 % 20_000));
            let pid = Pid::from_child(&changing);
            kill_process(pid, Signal::STOP).unwrap();
            for process in &running {
                let until = process.acknowledged() + 100;
                wait_until(|| process.acknowledged() >= until);
            }
            kill_process(pid, Signal::CONT).unwrap();
            if round % 3 == 0 {
                kill_process(pid, Signal::KILL).unwrap();
            }
            drop(changing.stdin.take());
            changing.wait().unwrap();
            fs::remove_file(idle_ledger(&scratch)).ok();
        }
        counted.assert_charged(&scratch, running);
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
    cargo.args([
        "test",
        "--release",
        "--no-run",
        "--all-features",
        "--test",
        "all",
    ]);
    cargo.args([
        "--message-format=json",
        "--target-dir",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/other"),
    ]);
    let output = start(cargo.stdout(Stdio::piped()))
        .wait_with_output()
        .unwrap();
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
        let counted = Counted {
            rules: [rule; 2],
            capacities: [CAPACITY; 2],
            quota,
        };
        episode(counted, 3, times(4, 40), &other);
    }
}
