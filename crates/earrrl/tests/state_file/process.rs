//! Processes that decide requests on a state file: the test binary, started again.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{CAPACITY, Scratch, open};
use crate::starts::start;

const ROLE: &str = "EARRRL_STATE_PROCESS";

/// The work of one process: requests of all clients, in an order of this process's own.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) rule: &'a str,
    pub(super) capacity: usize,
    /// The number of clients, without prime factors other than 2 and 5.
    pub(super) clients: u64,
    /// The number of requests of each client.
    pub(super) requests: u64,
    pub(super) seed: u64,
}

/// Returns the command of a process that does the work.
fn command(build: &Path, scratch: &Scratch, work: Work<'_>, ledger: &Path) -> Command {
    let Work {
        rule,
        capacity,
        clients,
        requests,
        seed,
    } = work;
    let path = scratch.path().display().to_string();
    let ledger = ledger.display().to_string();
    let numbers = [capacity as u64, clients, requests, seed].map(|number| number.to_string());
    let role = [
        [path, ledger, rule.to_owned()].join("\n"),
        numbers.join("\n"),
    ]
    .join("\n");
    let mut command = Command::new(build);
    command
        .args([
            "state_file::process::decides_alone",
            "--exact",
            "--nocapture",
        ])
        .env(ROLE, role);
    command
}

/// Returns the command of a process that opens the file under a rule, and waits.
pub(super) fn decider(scratch: &Scratch, rule: &str, capacity: usize) -> Command {
    let work = Work {
        rule,
        capacity,
        clients: 1,
        requests: 0,
        seed: 1,
    };
    command(
        &std::env::current_exe().unwrap(),
        scratch,
        work,
        &idle_ledger(scratch),
    )
}

/// Returns the ledger of a process that decides nothing. It must not exist when the process starts.
pub(super) fn idle_ledger(scratch: &Scratch) -> PathBuf {
    scratch.0.with_extension("ledger-of-none")
}

/// A process that decides requests, and writes the client of each admitted request to a ledger.
pub(super) struct Process {
    child: Child,
    /// Kept open, since the test harness of the process ends if it cannot print.
    _output: Lines<BufReader<ChildStdout>>,
    ledger: PathBuf,
}

impl Process {
    /// Starts a process, and waits until it has opened the state file.
    pub(super) fn start(scratch: &Scratch, work: Work<'_>) -> Self {
        Self::of_build(&std::env::current_exe().unwrap(), scratch, work)
    }

    /// Starts a process of another build of this test.
    pub(super) fn of_build(build: &Path, scratch: &Scratch, work: Work<'_>) -> Self {
        let ledger = scratch.0.with_extension(format!("ledger-{}", work.seed));
        let mut command = command(build, scratch, work, &ledger);
        let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap().ends_with("open")),
            "the process ended early"
        );
        Self {
            child,
            _output: lines,
            ledger,
        }
    }

    /// Lets the process begin.
    pub(super) fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the number of requests that the process has acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        fs::metadata(&self.ledger).unwrap().len() / 8
    }

    /// Waits until the process ends, and counts its acknowledged requests of each client.
    pub(super) fn admitted(mut self, clients: u64) -> Vec<u64> {
        self.child.wait().unwrap();
        let mut admitted = vec![0; clients as usize];
        for client in fs::read(&self.ledger).unwrap().chunks_exact(8) {
            admitted[u64::from_le_bytes(client.try_into().unwrap()) as usize] += 1;
        }
        fs::remove_file(&self.ledger).unwrap();
        admitted
    }
}

/// Decides requests as the environment says. Without instructions, starts one such process.
#[test]
fn decides_alone() {
    let Ok(role) = std::env::var(ROLE) else {
        return a_process_admits_the_limit();
    };
    let lines: Vec<&str> = role.lines().collect();
    let [path, ledger, rule, capacity, clients, requests, seed] = lines[..] else {
        panic!()
    };
    let [clients, requests, seed] = [clients, requests, seed].map(|n| n.parse::<u64>().unwrap());
    let mut ledger = File::create_new(ledger).unwrap();
    let limiter = open(rule, Path::new(path), capacity.parse().unwrap()).unwrap();
    println!("open");
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
    for nth in 0..clients * requests {
        // Multiplication by a number without the factors 2 and 5 visits every client once a round, in
        // another order in each process.
        let client = (nth * (20 * seed + 1) + seed * 977) % clients;
        let is_allowed = limiter.check(&client).is_allowed();
        if is_allowed {
            // One write for each, so that no acknowledged request is lost with the process.
            ledger.write_all(&client.to_le_bytes()).unwrap();
        }
    }
    drop(limiter);
    // The harness would complain that nobody reads its standard output.
    std::process::exit(0);
}

fn a_process_admits_the_limit() {
    let scratch = Scratch::new();
    let rule = super::BUCKET;
    let capacity = CAPACITY;
    let work = Work {
        rule,
        capacity,
        clients: 64,
        requests: 7,
        seed: 1,
    };
    let mut process = Process::start(&scratch, work);
    process.go();
    assert_eq!(process.admitted(64), [5; 64]);
}

/// Waits until `ready` returns true, at most half a minute.
pub(super) fn wait_until(mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::yield_now();
    }
}
