//! Counts the holders of places under a concurrency limit while servers and Redis are killed by SIGKILL.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use earrrl_testing::Random;
use serde_json::{Value, json};

use super::client::Server;
use super::{Servers, lasting_redis, pause};
use crate::support::http::Client;
use crate::support::until;

const BOUND: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(1);

fn streams(timeout: Duration) -> String {
    let limit = format!("concurrent {BOUND} timeout={}s", timeout.as_secs());
    format!("[[rule]]\nname = \"streams\"\nlimit = \"{limit}\"\n")
}

fn ask() -> Value {
    json!({"rule": "streams", "key": "alice"})
}

fn free(client: &mut Client) -> u64 {
    client.post("/v1/peek", &ask().to_string()).json()["remaining"]
        .as_u64()
        .unwrap()
}

/// The holders that are certainly live, each with the earliest instant of its timeout.
#[derive(Default)]
struct Holders {
    live: Mutex<HashMap<String, Instant>>,
    granted: AtomicU64,
    is_over: AtomicBool,
}

/// Ends all clients when it is dropped, also if the test fails.
struct Ends<'a>(&'a Holders);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
    }
}

impl Holders {
    fn goes_on(&self) -> bool {
        !self.is_over.load(SeqCst)
    }

    /// Counts a holder, whose reservation or renewal was sent at `since`.
    fn insert(&self, id: &str, since: Instant) {
        let mut live = self.live.lock().unwrap();
        live.insert(id.to_owned(), since + TIMEOUT);
        let now = Instant::now();
        live.retain(|_, ends| *ends > now);
        assert!(live.len() <= BOUND, "{} holders", live.len());
    }

    /// Takes places and gives them back, until the test is over. A few holders disappear.
    fn take_places(&self, servers: &[SocketAddr], seed: u64) {
        let mut servers: Vec<_> = servers
            .iter()
            .map(|address| Server::new(*address))
            .collect();
        let mut random = Random::new(seed);
        while self.goes_on() {
            let server = random.below(servers.len() as u64) as usize;
            let since = Instant::now();
            let answer = servers[server].post("/v1/reserve", &ask());
            let Ok((200, body)) = answer else {
                pause();
                continue;
            };
            let id = body["reservation"].as_str().unwrap();
            self.insert(id, since);
            self.granted.fetch_add(1, SeqCst);
            pause();
            let since = Instant::now();
            let renewal = json!({"reservation": id, "ttl": 60});
            if random.below(3) == 0
                && let Ok((204, _)) = servers[server].post("/v1/renew", &renewal)
            {
                self.insert(id, since);
                pause();
            }
            if random.below(20) > 0 {
                self.live.lock().unwrap().remove(id);
                self.commit(&mut servers, id, &mut random);
            }
        }
    }

    fn commit(&self, servers: &mut [Server], id: &str, random: &mut Random) {
        let commit = json!({"reservation": id, "cost": 731});
        while self.goes_on() {
            let server = random.below(servers.len() as u64) as usize;
            match servers[server].post("/v1/commit", &commit) {
                Ok((200 | 404, _)) => return,
                Ok((503, _)) | Err(_) => pause(),
                Ok(other) => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn of_two_servers_over_redis_are_never_more_than_the_bound() {
    let kills = if std::env::var_os("EARRRL_LONG").is_some() {
        90
    } else {
        9
    };
    let folder = tempfile::tempdir().unwrap();
    let mut redis = lasting_redis(&folder);
    let engine = format!("redis = \"{}\"\ndeadline = \"2s\"", redis.url());
    let mut servers = Servers::start(2, &engine, &streams(TIMEOUT));
    servers.settle();
    let holders = &Holders::default();
    let addresses = servers.addresses.clone();
    thread::scope(|scope| {
        let _ends = Ends(holders);
        for seed in 0..8 {
            let addresses = &addresses;
            scope.spawn(move || holders.take_places(addresses, seed));
        }
        for kill in 0..kills {
            let enough = 40 * (kill as u64 + 1);
            until("places are taken", || {
                holders.granted.load(SeqCst) >= enough
            });
            match kill % 3 {
                2 => redis.restart(),
                nth => servers.kill(nth),
            }
        }
    });
    servers.settle();
    println!("{} holders, {kills} kills", holders.granted.load(SeqCst));
    let mut client = servers.http(0);
    until("the places of lost holders have timed out", || {
        free(&mut client) == BOUND as u64
    });
}

/// A server keeps holders in memory only, also if it has state files. After a kill all places are free, and
/// commits of the reservations, which are in a file, free no more.
#[test]
fn of_a_killed_server_are_free_after_its_restart() {
    let states = tempfile::tempdir().unwrap();
    let path = states.path().join("states");
    let state = format!("not_persisted = \"ok\"\nstate = \"{}\"", path.display());
    let mut servers = Servers::start(1, &state, &streams(Duration::from_secs(3600)));
    let mut client = servers.http(0);
    let mut reserve = || client.post("/v1/reserve", &ask().to_string());
    let held: Vec<_> = (0..BOUND)
        .map(|_| reserve().json()["reservation"].clone())
        .collect();
    assert_eq!(reserve().status, 429);
    servers.kill(0);
    let mut client = servers.http(0);
    assert_eq!(free(&mut client), BOUND as u64);
    let commit = json!({"reservation": held[0], "cost": 1}).to_string();
    assert_eq!(client.post("/v1/commit", &commit).status, 200);
    assert_eq!(free(&mut client), BOUND as u64);
}
