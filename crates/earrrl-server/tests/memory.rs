//! Tests how much memory hostile HTTP/2 clients can make the server use, and that it is freed
//! afterwards. Memory is the resident size of the whole process.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use crate::support::certificates::{Authority, Tls, shake};
use crate::support::http2::{self, RST_STREAM};
use crate::support::process::{BINARY, Process};
use crate::support::resp::{Client, Reply};
use crate::support::{connect, grpc, testdata, until};
use earrrl_server::protobuf::ratelimit::{
    DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use rustls::ClientConfig;
use rustls::version::TLS13;

const CONNECTIONS: usize = 150;
/// The number of requests that each connection sends in a round.
const AT_ONCE: u32 = 256;
const ROUNDS: u32 = 8;
const MIB: u64 = 1024;

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// A rate limit request for the domain `shop` with the descriptor `remote_address=1.2`.
const QUESTION: &[u8] = b"\x0a\x04shop\x12\x17\x0a\x15\x0a\x0eremote_address\x12\x031.2";

/// A way to make the server use memory.
struct Attack {
    name: &'static str,
    over: Over,
    /// The HTTP/2 flow control window for each answer, in bytes.
    window: u32,
    reads: bool,
    request: fn(u32) -> Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Http,
    Grpc,
    Tls,
}

const ATTACKS: [Attack; 9] = [
    Attack {
        name: "no window",
        over: Over::Http,
        window: 0,
        reads: true,
        request: document,
    },
    Attack {
        name: "a window of 1",
        over: Over::Http,
        window: 1,
        reads: true,
        request: document,
    },
    Attack {
        name: "nothing read",
        over: Over::Http,
        window: 1 << 30,
        reads: false,
        request: health,
    },
    Attack {
        name: "resets",
        over: Over::Http,
        window: 0,
        reads: true,
        request: reset,
    },
    Attack {
        name: "bodies of no request",
        over: Over::Http,
        window: 0,
        reads: true,
        request: stray,
    },
    Attack {
        name: "gRPC, no window",
        over: Over::Grpc,
        window: 0,
        reads: true,
        request: question,
    },
    Attack {
        name: "gRPC, nothing read",
        over: Over::Grpc,
        window: 1 << 30,
        reads: false,
        request: question,
    },
    Attack {
        name: "gRPC, watches",
        over: Over::Grpc,
        window: 0,
        reads: true,
        request: watch,
    },
    Attack {
        name: "TLS, no window",
        over: Over::Tls,
        window: 0,
        reads: true,
        request: document,
    },
];

fn document(stream: u32) -> Vec<u8> {
    http2::get(stream, "/openapi.json")
}

fn health(stream: u32) -> Vec<u8> {
    http2::get(stream, "/healthz")
}

fn reset(stream: u32) -> Vec<u8> {
    [
        document(stream),
        http2::frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
    ]
    .concat()
}

/// Returns parts of bodies of 16 streams that are not open, after a request whose stream has a higher number.
fn stray(stream: u32) -> Vec<u8> {
    let parts =
        (0..16).flat_map(|nth| http2::frame(http2::DATA, 0, 16 * stream + 2 * nth + 1, b""));
    let first = (stream == 1).then(|| health(1_000_001));
    first.into_iter().flatten().chain(parts).collect()
}

fn question(stream: u32) -> Vec<u8> {
    http2::unary(stream, RATE_LIMIT, QUESTION)
}

fn watch(stream: u32) -> Vec<u8> {
    http2::unary(stream, "/grpc.health.v1.Health/Watch", b"")
}

/// The connection of a hostile client, plain or over TLS.
enum Hostile {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

impl Hostile {
    fn connect(target: &Target, over: Over, bytes: &[u8]) -> Self {
        let mut hostile = match over {
            Over::Http => Self::Plain(connect(target.plain.http)),
            Over::Grpc => Self::Plain(connect(target.plain.grpc)),
            Over::Tls => Self::Tls(Box::new(shake(&target.client, target.tls.http).unwrap())),
        };
        hostile.socket().set_nonblocking(true).unwrap();
        hostile.send(bytes);
        hostile
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(tls) => &tls.sock,
        }
    }

    /// Sends as much as the server accepts.
    fn send(&mut self, bytes: &[u8]) {
        let _ = match self {
            Self::Plain(stream) => stream.write_all(bytes),
            Self::Tls(tls) => tls.write_all(bytes),
        };
    }

    /// Reads the bytes that have arrived; returns false if the server has closed the connection.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 16 * 1024];
        loop {
            let read = match self {
                Self::Plain(stream) => stream.read(&mut bytes),
                Self::Tls(tls) => tls.read(&mut bytes),
            };
            match read {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}

/// The attacked servers, one without TLS and one with it.
struct Target {
    plain: Process,
    tls: Process,
    client: Arc<ClientConfig>,
}

impl Target {
    fn start(authority: &Authority) -> Self {
        let serve = |more: &str| {
            let config = authority.path(&format!("earrrl{}.toml", more.len()));
            let server = "[server]\nthreads = 2\nmax_held_memory = 16777216\n";
            let envoy = format!("[envoy]\nfiles = {:?}\n", testdata("envoy/shop.yaml"));
            std::fs::write(&config, format!("{server}{more}{envoy}")).unwrap();
            let mut command = std::process::Command::new(crate::support::process::BINARY);
            command.arg("serve").arg("--config").arg(config);
            Process::spawn(&mut command)
        };
        let plain = serve("");
        let tls = serve(&authority.table(""));
        Self {
            plain,
            tls,
            client: authority.client(None, &[&TLS13], &["h2"]),
        }
    }

    fn resident(&self, over: Over) -> u64 {
        if over == Over::Tls {
            self.tls.resident_kib()
        } else {
            self.plain.resident_kib()
        }
    }
}

/// Attacks with this number of connections; returns the highest resident size in KiB.
fn attack(target: &Target, attack: &Attack, connections: usize, rounds: u32) -> u64 {
    let greeting = http2::greeting(attack.window);
    let join = || Hostile::connect(target, attack.over, &greeting);
    let mut crowd: Vec<Hostile> = (0..connections).map(|_| join()).collect();
    let mut highest = 0;
    for round in 0..rounds {
        let streams = (0..AT_ONCE).map(|nth| 2 * (round * AT_ONCE + nth) + 1);
        let requests: Vec<u8> = streams.flat_map(attack.request).collect();
        for hostile in &mut crowd {
            if attack.reads && !hostile.read() {
                *hostile = join();
            }
            hostile.send(&requests);
        }
        highest = highest.max(target.resident(attack.over));
    }
    highest
}

/// The number of descriptors in Envoy's configuration, and the number in each file, which is a
/// domain.
const DESCRIPTORS: usize = 15_000;
const IN_A_FILE: usize = 5_000;
const IN_A_REQUEST: usize = 50;

/// A kind of descriptor: its level in the file, and the entry of a request that matches it.
type Kind = (fn(usize) -> String, fn(usize) -> (String, String));

const KINDS: [Kind; 2] = [
    (
        |nth| format!("key: key\n    value: value-{nth}"),
        |nth| ("key".to_owned(), format!("value-{nth}")),
    ),
    (
        |nth| format!("key: key-{nth}"),
        |nth| (format!("key-{nth}"), "a".to_owned()),
    ),
];
/// The most bytes that a descriptor takes with its first client.
const MOST: u64 = 1024;

/// Returns the resident size in KiB of a server with `count` descriptors: after its start, and
/// after one request for each descriptor.
fn with_descriptors(algorithm: &str, kind: &Kind, count: usize) -> [u64; 2] {
    let (level, entry) = kind;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("earrrl.toml");
    let limit = "    rate_limit: {unit: hour, requests_per_unit: 10}\n";
    for first in (0..count).step_by(IN_A_FILE) {
        let these = first..count.min(first + IN_A_FILE);
        let levels: String = these
            .map(|nth| format!("  - {}\n{limit}", level(nth)))
            .collect();
        let yaml = folder.path().join(format!("{first}.yaml"));
        std::fs::write(
            &yaml,
            format!("domain: shop-{first}\ndescriptors:\n{levels}"),
        )
        .unwrap();
    }
    let table = format!(
        "[envoy]\nfiles = [{:?}]\nalgorithm = {algorithm:?}\n",
        folder.path()
    );
    std::fs::write(&config, format!("[server]\nthreads = 1\n{table}")).unwrap();
    let server = Process::start(&["--config", config.to_str().unwrap()]);
    let started = server.resident_kib();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let channel = grpc::connect(server.grpc).await;
        // All descriptors of a request belong to one domain.
        for first in (0..count).step_by(IN_A_REQUEST) {
            let descriptors = (first..count.min(first + IN_A_REQUEST)).map(|nth| {
                let (key, value) = entry(nth);
                RateLimitDescriptor {
                    entries: vec![Entry {
                        key,
                        value: value.into(),
                    }],
                    ..Default::default()
                }
            });
            let question = RateLimitRequest {
                domain: format!("shop-{}", first / IN_A_FILE * IN_A_FILE),
                descriptors: descriptors.collect(),
                hits_addend: 1,
            };
            let answer: RateLimitResponse =
                grpc::call(&channel, RATE_LIMIT, question).await.unwrap();
            let is_limited = |status: &DescriptorStatus| status.current_limit.is_some();
            assert!(answer.statuses.iter().all(is_limited));
        }
    });
    [started, server.resident_kib()]
}

#[test]
fn a_descriptor_takes_little_memory() {
    for algorithm in ["fixed-window", "gcra"] {
        for kind in &KINDS {
            // A few descriptors for any value have a table each, and many of them share one.
            let half = with_descriptors(algorithm, kind, DESCRIPTORS / 2);
            let all = with_descriptors(algorithm, kind, DESCRIPTORS);
            let each = |at: usize| (all[at] - half[at]) * 1024 / (DESCRIPTORS as u64 / 2);
            let started = each(0);
            let used = each(1);
            println!("{algorithm}: {started} bytes a descriptor, {used} in use");
            assert!(used <= MOST, "{algorithm}: {used} bytes");
        }
    }
}

#[test]
fn hostile_streams_hold_bounded_memory_and_give_it_back() {
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    let target = Target::start(&authority);
    // Code pages that an attack touches for the first time stay resident, but are not memory that
    // it holds.
    for kind in &ATTACKS {
        attack(&target, kind, 2, 2);
    }
    for kind in &ATTACKS {
        let idle = target.resident(kind.over);
        let highest = attack(&target, kind, CONNECTIONS, ROUNDS);
        println!("{}: idle {idle} KiB, highest {highest} KiB", kind.name);
        assert!(
            highest <= idle + 2 * HELD + CONNECTION * CONNECTIONS as u64,
            "{}: {idle} KiB, then {highest}",
            kind.name
        );
        // An allocator keeps some pages for later, whatever the size of the server.
        let most = idle + 4 * MIB;
        until("memory is given back", || {
            target.resident(kind.over) <= most
        });
        println!("    then {} KiB", target.resident(kind.over));
    }
}

/// The connections and the requests on each, up to what `production.md` documents.
const OPEN: [(usize, u32); 2] = [(150, 128), (600, 128)];
/// The memory that is documented for an HTTP/2 connection, in KiB.
const CONNECTION: u64 = 50;
/// `max_held_memory` of the attacked servers, in KiB.
const HELD: u64 = 16 * MIB;

#[test]
fn open_streams_keep_to_the_bound_whatever_is_open() {
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    for kind in &ATTACKS {
        // A server of its own for each kind, since an allocator keeps some pages of the kind before.
        let target = Target::start(&authority);
        attack(&target, kind, 2, 2);
        let idle = target.resident(kind.over);
        for (connections, streams) in OPEN {
            let mut crowd = Vec::new();
            let requests: Vec<u8> = (0..streams)
                .flat_map(|nth| (kind.request)(2 * nth + 1))
                .collect();
            let greeting = http2::greeting(kind.window);
            for _ in 0..connections {
                let mut hostile = Hostile::connect(&target, kind.over, &greeting);
                hostile.send(&requests);
                crowd.push(hostile);
            }
            let mut highest = 0;
            let mut steady = 0;
            until("all requests have arrived", || {
                crowd.iter_mut().filter(|_| kind.reads).for_each(|one| {
                    one.read();
                });
                let taken = target.resident(kind.over);
                steady = if taken > highest { 0 } else { steady + 1 };
                highest = highest.max(taken);
                steady > 40
            });
            let taken = highest.saturating_sub(idle);
            let bound = 2 * HELD + CONNECTION * connections as u64;
            println!(
                "{}: {connections} x {streams}: {taken} of {bound} KiB",
                kind.name
            );
            assert!(
                taken <= bound,
                "{}: {connections} x {streams}: {taken} KiB",
                kind.name
            );
            drop(crowd);
            until("memory is given back", || {
                target.resident(kind.over) <= idle + 4 * MIB
            });
        }
    }
}

/// The table for ten million clients would take 213 MB.
#[test]
fn the_table_of_cl_throttle_takes_memory_as_clients_come() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"rules = \"none\"\n[engine]\ncapacity = 10_000_000\n")
        .unwrap();
    let server = Process::spawn(
        Command::new(BINARY)
            .args(["serve", "--config"])
            .arg(file.path()),
    );
    let mut client = Client::connect(server.resp);
    for (remaining, limited) in [(1, 0), (0, 0), (0, 1)] {
        let Reply::Array(answer) = client.line("CL.THROTTLE alice 1 1 3600") else {
            panic!()
        };
        assert_eq!(answer[..3], [limited, 2, remaining].map(Reply::Integer));
    }
    assert!(
        server.resident_kib() < 60 * MIB,
        "{} KiB",
        server.resident_kib()
    );
}
