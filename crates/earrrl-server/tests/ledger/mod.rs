//! Compares the committed costs with a ledger of their own: many clients reserve, renew, release, and
//! commit once, again, late or never, while clients, servers and Redis are killed by SIGKILL, and Redis
//! is suspended.
//!
//! Each client writes its requests and the answers to a journal. A journal outlives its client, and
//! all of them together say in plain arithmetic how much each key may have been charged. Where an
//! answer was lost with its process, they leave two possibilities, and the sum must be one of these.
//!
//! It makes 3,000 reservations over Redis and 2,000 in memory, and with `EARRRL_LONG=1` 100,000 each.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod client;
mod journal;
mod places;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::support::http::Client;
use crate::support::ports::free_address;
use crate::support::process::{BINARY, Process};
use crate::support::redis::Redis;
use crate::support::until;
use client::{Crowd, RULES};
use journal::PossibleCharges;

/// The number of keys among which the requests are spread.
const KEYS: u64 = 200;

/// Limits that nobody reaches, each with the units that it allows at once. None of the quota comes
/// back meanwhile.
const LIMITS: [(&str, u64); 3] = [
    ("token-bucket 30000 refill=1/d", 30_000),
    ("fixed-window 1000000/3650d", 1_000_000),
    ("sliding-log 1000000/30d", 1_000_000),
];

/// Returns the number of reservations and of kills.
fn plan(short: u64) -> (u64, u64) {
    match std::env::var_os("EARRRL_LONG") {
        Some(_) => (100_000, 150),
        None => (short, 15),
    }
}

/// The servers that the clients use, and the times at which each was killed.
struct Servers {
    folder: TempDir,
    addresses: Vec<SocketAddr>,
    running: Vec<Process>,
    kills: Vec<(usize, SystemTime)>,
    /// Instants at which Redis had what all servers knew.
    settled: Vec<SystemTime>,
}

/// Returns the configuration of the first rules.
fn rules(count: usize) -> String {
    let each = RULES.iter().zip(&LIMITS).take(count);
    let rule = |(name, (limit, _)): (&&str, &(&str, u64))| {
        format!("[[rule]]\nname = \"{name}\"\nlimit = \"{limit}\"\n")
    };
    each.map(rule).collect()
}

impl Servers {
    fn start(count: usize, engine: &str, rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!("[engine]\ncapacity = 10_000\n{engine}\n{rules}");
        std::fs::write(folder.path().join("limits.toml"), config).unwrap();
        let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
        let running = Vec::new();
        let kills = Vec::new();
        let settled = Vec::new();
        let mut servers = Self {
            folder,
            addresses,
            running,
            kills,
            settled,
        };
        servers.running = (0..count).map(|nth| servers.launch(nth)).collect();
        servers
    }

    fn launch(&self, nth: usize) -> Process {
        let mut command = Command::new(BINARY);
        command
            .args(["serve", "--config"])
            .arg(self.folder.path().join("limits.toml"));
        Process::spawn_at(
            &self.addresses[nth].to_string(),
            "127.0.0.1:0",
            &mut command,
        )
    }

    fn kill(&mut self, nth: usize) {
        self.running[nth].child.kill().unwrap();
        self.running[nth].child.wait().unwrap();
        self.kills.push((nth, SystemTime::now()));
        self.running[nth] = self.launch(nth);
    }

    fn http(&self, nth: usize) -> Client {
        Client::connect(self.addresses[nth])
    }

    /// Waits until Redis has what every server knows.
    fn settle(&mut self) {
        let began = SystemTime::now();
        for nth in 0..self.running.len() {
            until("Redis decides", || {
                self.http(nth).get("/readyz").json()["engine"]["mode"] == "redis"
            });
            until("no call is unsettled", || {
                let metrics = self.http(nth).get("/metrics").body;
                let is_settled = |name: &str| metrics.contains(&format!("{name} 0\n"));
                is_settled("earrrl_redis_unsettled_calls")
                    && is_settled("earrrl_redis_owed_clients")
            });
        }
        self.settled.push(began);
    }

    /// Returns true if a server may have been killed before it took back what it had answered as
    /// failed at this instant.
    fn may_lack(&self, server: usize, at: SystemTime) -> bool {
        let settled = self.settled.iter().copied().find(|settled| *settled > at);
        let was_killed = |(killed, when): &(usize, SystemTime)| {
            *killed == server && *when > at && settled.is_none_or(|settled| *when < settled)
        };
        self.kills.iter().any(was_killed)
    }

    /// Compares the units that every key has used of the first rules with the journals.
    fn audit(&self, rules: usize, charges: impl Fn(u64) -> PossibleCharges) {
        let mut client = self.http(0);
        for nth in 0..KEYS {
            let used = |(rule, (_, quota)): (&&str, &(&str, u64))| {
                let peek = json!({"rule": rule, "key": client::key(nth)}).to_string();
                quota
                    - client.post("/v1/peek", &peek).json()["remaining"]
                        .as_u64()
                        .unwrap()
            };
            let used: Vec<_> = RULES.iter().zip(&LIMITS).take(rules).map(used).collect();
            let charges = charges(nth);
            assert!(
                charges.may_be(&used),
                "key {nth}: {used:?} were charged: {charges:?}"
            );
        }
    }
}

/// Starts a Redis that appends every write to a file before it answers.
fn lasting_redis(folder: &TempDir) -> Redis {
    let path = folder.path().display().to_string();
    Redis::start_with(&[
        "--dir",
        &path,
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ])
}

/// Suspends Redis for longer than the servers wait for it. It then executes what they have sent, and what
/// they answered as failed must be taken back.
fn suspend(redis: &Redis) {
    redis.signal(Signal::STOP);
    thread::sleep(Duration::from_millis(1200));
    redis.signal(Signal::CONT);
}

/// Two servers share one Redis, which loses nothing when it is killed. A reservation is charged under all of
/// its rules or none, and is committed under all of them at once.
#[test]
fn of_two_servers_over_redis_balances() {
    let (reservations, kills) = plan(3_000);
    let folder = tempfile::tempdir().unwrap();
    let mut redis = lasting_redis(&folder);
    let engine = format!("redis = \"{}\"\ndeadline = \"500ms\"", redis.url());
    let mut servers = Servers::start(2, &engine, &rules(3));
    servers.settle();
    let mut crowd = Crowd::start(&servers.addresses, 3, reservations);
    for kill in 0..kills {
        crowd.until_held(reservations * (kill + 1) / (kills + 1));
        let round = kill / 3;
        match kill % 3 {
            0 => crowd.kill_one(kill),
            1 if round % 5 == 2 => suspend(&redis),
            1 => redis.restart(),
            _ => {
                // Every fifth one is killed before it has taken back what Redis did not answer.
                if round % 5 < 4 {
                    servers.settle();
                }
                servers.kill(round as usize % 2);
            }
        }
    }
    let journals = crowd.join();
    servers.settle();
    let charges = |key| {
        PossibleCharges::new(&journals, key, true, |server, at| {
            servers.may_lack(server, at)
        })
    };
    println!("{}", journal::summary(&journals));
    servers.audit(3, charges);
}

/// One server keeps its states and reservations in files. Where it is killed while it commits, the
/// estimate may stay charged.
#[test]
fn of_a_server_with_state_files_balances() {
    let (reservations, kills) = plan(2_000);
    let states = tempfile::tempdir().unwrap();
    let path: PathBuf = states.path().join("states");
    let mut servers = Servers::start(1, &format!("state = \"{}\"", path.display()), &rules(2));
    let mut crowd = Crowd::start(&servers.addresses, 2, reservations);
    for kill in 0..kills {
        crowd.until_held(reservations * (kill + 1) / (kills + 1));
        match kill % 2 {
            0 => crowd.kill_one(kill),
            _ => servers.kill(0),
        }
    }
    let journals = crowd.join();
    let charges = |key| {
        PossibleCharges::new(&journals, key, false, |server, at| {
            servers.may_lack(server, at)
        })
    };
    println!("{}", journal::summary(&journals));
    servers.audit(2, charges);
}

/// Waits for a moment, as a client does between two attempts.
fn pause() {
    thread::sleep(Duration::from_millis(20));
}
