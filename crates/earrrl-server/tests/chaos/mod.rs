//! Combines many faults under load: log outputs that are closed, full or not read, too few
//! descriptors, valid and invalid reloads, replaced tokens and certificates, idle and hostile
//! clients, and every minute a restart by socket activation. Clients are the test's own, redis-py
//! and curl. Requests fail only with a reply that says so, every answered request is counted, and
//! memory stays within its bound.
//!
//! It takes at least 20 seconds, and ten minutes with `EARRRL_LONG=1`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod changes;
mod clients;
mod generation;
mod hostile;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::certificates::Authority;
use crate::support::until;
use changes::Changes;
use generation::{Generation, Sink};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

/// The most bytes that all connections may hold together.
const HELD: u64 = 16 << 20;
/// The capacity of all tables together, which a reload may double.
const CLIENTS: u64 = 2 * 5 * 20_000;
/// The memory in bytes for threads, connections and the allocator.
const SLACK: u64 = 32 << 20;

/// The state that all threads of the test share.
struct Chaos {
    http: SocketAddr,
    resp: SocketAddr,
    /// The TLS configuration of HTTP clients; RESP is used without TLS.
    tls: Arc<ClientConfig>,
    /// The file with the certificate of the authority.
    authority: PathBuf,
    token: RwLock<String>,
    /// The file with the same token, for clients in other processes.
    token_file: PathBuf,
    over: AtomicBool,
    /// If set, clients send no further requests.
    rest: AtomicBool,
    resting: AtomicUsize,
    /// The number of decisions that clients have received.
    answered: AtomicU64,
    /// The number of requests that were answered with an overload error.
    told: AtomicU64,
}

impl Chaos {
    fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Called by clients between two requests: waits while clients are to rest, and returns true if
    /// another request is to follow.
    fn goes_on(&self) -> bool {
        if self.rest.load(Relaxed) {
            self.resting.fetch_add(1, Relaxed);
            while self.rest.load(Relaxed) && !self.is_over() {
                thread::sleep(Duration::from_millis(1));
            }
            self.resting.fetch_sub(1, Relaxed);
        }
        !self.is_over()
    }

    fn token(&self) -> String {
        self.token.read().unwrap().clone()
    }

    /// Makes clients use this token from now on.
    fn use_token(&self, token: String) {
        replace(&self.token_file, &token);
        *self.token.write().unwrap() = token;
    }
}

/// Replaces a file atomically, as editors and Kubernetes do.
fn replace(file: &Path, text: &str) {
    let next = file.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, file).unwrap();
}

/// Returns the TLS configuration of a client that trusts an authority.
fn client(authority: &Authority) -> Arc<ClientConfig> {
    authority.client(None, &[&TLS13, &TLS12], &[])
}

/// Ends all threads when it is dropped, also if the watching thread panics.
struct Ends<'a>(&'a Chaos);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Relaxed);
    }
}

struct Plan {
    restarts: usize,
    between: Duration,
}

fn plan() -> Plan {
    match std::env::var_os("EARRRL_LONG") {
        Some(_) => Plan {
            restarts: 10,
            between: Duration::from_secs(60),
        },
        None => Plan {
            restarts: 4,
            between: Duration::from_secs(5),
        },
    }
}

#[test]
fn nothing_fails_and_everything_is_counted() {
    let plan = plan();
    let listen = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // systemd uses a backlog of this length.
        socket2::SockRef::from(&listener).listen(4096).unwrap();
        listener
    };
    let http = listen();
    let resp = listen();
    let authority = Authority::new("ours");
    let chaos = Chaos {
        http: http.local_addr().unwrap(),
        resp: resp.local_addr().unwrap(),
        tls: client(&authority),
        authority: authority.path("ca.pem"),
        token: RwLock::default(),
        token_file: authority.path("token"),
        over: AtomicBool::new(false),
        rest: AtomicBool::new(false),
        resting: AtomicUsize::new(0),
        answered: AtomicU64::new(0),
        told: AtomicU64::new(0),
    };
    let changes = Changes::new(&chaos, authority);
    let mut counted = 0;
    thread::scope(|scope| {
        let _ends = Ends(&chaos);
        let mut crowd = Vec::new();
        let mut first = Some(Generation::start(
            &chaos,
            [&http, &resp],
            &changes.file,
            Sink::Read,
        ));
        for seed in 0..4 {
            let chaos = &chaos;
            crowd.push(scope.spawn(move || clients::pipelines(chaos, seed)));
        }
        for client in [clients::checks, clients::redis_py, clients::curl] {
            let chaos = &chaos;
            crowd.push(scope.spawn(move || client(chaos)));
        }
        let mut others = Vec::new();
        for seed in 0..2 {
            let chaos = &chaos;
            others.push(scope.spawn(move || hostile::attack(chaos, seed)));
        }
        for nth in 0..plan.restarts {
            let sink = Sink::ALL[nth % Sink::ALL.len()];
            let started = || Generation::start(&chaos, [&http, &resp], &changes.file, sink);
            let mut generation = first.take().unwrap_or_else(started);
            let most = generation.resident() + HELD + 22 * CLIENTS + SLACK;
            let began = Instant::now();
            while began.elapsed() < plan.between {
                changes.next(&generation);
                generation.fill_or_free_the_log();
                let resident = generation.resident();
                assert!(resident <= most, "{resident} bytes, {most} may be");
            }
            counted += generation.stop(&chaos, crowd.len());
            assert!(
                crowd.iter().all(|client| !client.is_finished()),
                "a client failed"
            );
        }
        let last = Generation::start(&chaos, [&http, &resp], &changes.file, Sink::Read);
        changes.next(&last);
        counted += last.stop_at_rest(&chaos, crowd.len(), || chaos.over.store(true, Relaxed));
        crowd
            .into_iter()
            .chain(others)
            .for_each(|thread| thread.join().unwrap());
    });
    let answered = chaos.answered.load(Relaxed);
    let told = chaos.told.load(Relaxed);
    let (good, bad) = changes.counts();
    println!("{answered} answered, {told} told overloaded, {good} reloads, {bad} refused");
    assert_eq!(counted, answered);
    assert!(
        answered > 1000 && good > 3 && bad > 3,
        "{answered} {good} {bad}"
    );
}

/// Waits until all clients rest.
fn until_all_rest(chaos: &Chaos, clients: usize) {
    chaos.rest.store(true, Relaxed);
    until("all clients rest", || {
        chaos.resting.load(Relaxed) == clients
    });
}
