//! Memory that hostile clients of HTTP/2 make the server take, and that it gives back: by the resident
//! size of the whole process.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use crate::support::certificates::{Authority, Tls, shake};
use crate::support::http2::{self, RST_STREAM};
use crate::support::process::Process;
use crate::support::{connect, testdata, until};
use rustls::ClientConfig;
use rustls::version::TLS13;

const CONNECTIONS: usize = 150;
/// Requests that each connection sends in each round.
const AT_ONCE: u32 = 256;
const ROUNDS: u32 = 8;
const MIB: u64 = 1024;

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Domain `shop`, with the descriptor `remote_address=1`.
const QUESTION: &[u8] = b"\x0a\x04shop\x12\x17\x0a\x15\x0a\x0eremote_address\x12\x031.2";

/// A way to make the server hold memory.
struct Attack {
    name: &'static str,
    over: Over,
    /// The window for each answer.
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

const ATTACKS: [Attack; 8] = [
    Attack { name: "no window", over: Over::Http, window: 0, reads: true, request: document },
    Attack { name: "a window of 1", over: Over::Http, window: 1, reads: true, request: document },
    Attack {
        name: "nothing read",
        over: Over::Http,
        window: 1 << 30,
        reads: false,
        request: health,
    },
    Attack { name: "resets", over: Over::Http, window: 0, reads: true, request: reset },
    Attack { name: "gRPC, no window", over: Over::Grpc, window: 0, reads: true, request: question },
    Attack {
        name: "gRPC, nothing read",
        over: Over::Grpc,
        window: 1 << 30,
        reads: false,
        request: question,
    },
    Attack { name: "gRPC, watches", over: Over::Grpc, window: 0, reads: true, request: watch },
    Attack { name: "TLS, no window", over: Over::Tls, window: 0, reads: true, request: document },
];

fn document(stream: u32) -> Vec<u8> {
    http2::get(stream, "/openapi.json")
}

fn health(stream: u32) -> Vec<u8> {
    http2::get(stream, "/healthz")
}

fn reset(stream: u32) -> Vec<u8> {
    [document(stream), http2::frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
}

fn question(stream: u32) -> Vec<u8> {
    http2::unary(stream, RATE_LIMIT, QUESTION)
}

fn watch(stream: u32) -> Vec<u8> {
    http2::unary(stream, "/grpc.health.v1.Health/Watch", b"")
}

/// A hostile client's connection.
enum Hostile {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

impl Hostile {
    fn connect(target: &Target, over: Over, bytes: &[u8]) -> Self {
        let mut hostile = match over {
            Over::Http => Self::Plain(connect(target.plain.http)),
            Over::Grpc => Self::Plain(connect(target.grpc)),
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

    /// Sends as much as the server takes.
    fn send(&mut self, bytes: &[u8]) {
        let _ = match self {
            Self::Plain(stream) => stream.write_all(bytes),
            Self::Tls(tls) => tls.write_all(bytes),
        };
    }

    /// Reads what has come; returns false if the server has closed.
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

/// The servers that are attacked: one in clear text and one over TLS.
struct Target {
    plain: Process,
    grpc: SocketAddr,
    tls: Process,
    client: Arc<ClientConfig>,
}

impl Target {
    fn start(authority: &Authority) -> Self {
        let grpc = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let serve = |grpc: &str, more: &str| {
            let config = authority.path(&format!("earrrl{}.toml", more.len()));
            let server = "[server]\nthreads = 2\nmax_held_memory = 16777216\n";
            let envoy = format!("[envoy]\nfiles = {:?}\n", testdata("envoy/shop.yaml"));
            std::fs::write(&config, format!("{server}{more}{envoy}")).unwrap();
            let mut command = std::process::Command::new(crate::support::process::BINARY);
            command.arg("serve").arg("--config").arg(config);
            Process::spawn_at("127.0.0.1:0", grpc, &mut command)
        };
        let plain = serve(&grpc.to_string(), "");
        let tls = serve("127.0.0.1:0", &authority.table(""));
        Self { plain, grpc, tls, client: authority.client(None, &[&TLS13], &["h2"]) }
    }

    fn resident(&self, over: Over) -> u64 {
        if over == Over::Tls { self.tls.resident_kib() } else { self.plain.resident_kib() }
    }
}

/// Attacks with this many connections; returns the highest resident size, in KiB.
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

#[test]
fn hostile_streams_hold_bounded_memory_and_give_it_back() {
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    let target = Target::start(&authority);
    // The pages of code that an attack touches for the first time stay; they are not held memory.
    for kind in &ATTACKS {
        attack(&target, kind, 2, 2);
    }
    for kind in &ATTACKS {
        let idle = target.resident(kind.over);
        let highest = attack(&target, kind, CONNECTIONS, ROUNDS);
        println!("{}: idle {idle} KiB, highest {highest} KiB", kind.name);
        assert!(highest <= idle + 64 * MIB, "{}: {idle} KiB, then {highest}", kind.name);
        let most = idle + idle / 10;
        until("memory is given back", || target.resident(kind.over) <= most);
        println!("    then {} KiB", target.resident(kind.over));
    }
}
