//! Sends mutated requests of a client that is over its limit: none may be served.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

use super::proxy::{HAMMERING, Limiter, Proxy};
use super::until;

/// The number of threads that send requests at the same time.
const THREADS: u64 = 4;

/// Rules that count every request of a client, and take keys and costs from headers.
pub const RULES: &str = r#"
[[rule]]
name = "all"
limit = "gcra 0.001/s burst=3"

[[rule]]
name = "by-key"
limit = "gcra 1000000/s burst=1000000"
key = ["client", "header:x-api-key"]

[[rule]]
name = "by-path"
limit = "gcra 1000000/s burst=1000000"
key = ["path", "method", "header:user-agent"]
cost = "attribute:header:x-cost"
max_cost = 10
"#;

/// Returns the number of requests, which is greater in long tests.
fn requests() -> u64 {
    if std::env::var_os("EARRRL_LONG").is_some() {
        200_000
    } else {
        20_000
    }
}

/// Sends mutated requests, and fails if one is served.
#[allow(clippy::print_stdout)]
pub fn none_is_served(name: &str, proxy: &Proxy, limiter: &Limiter) {
    until("the client is over its limit", || {
        proxy.client(HAMMERING).get("/").status == 429
    });
    let seed = u64::from(std::process::id());
    println!("{name}: {} requests, seed {seed}", requests());
    let counts = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || send(proxy, Random(seed * THREADS + thread))))
            .collect();
        let mut all = BTreeMap::new();
        for thread in threads {
            for (outcome, count) in thread.join().unwrap() {
                *all.entry(outcome).or_insert(0) += count;
            }
        }
        all
    });
    println!("{name}: {counts:?}");
    let unanswered = counts.get(&NO_ANSWER).copied().unwrap_or_default();
    assert!(unanswered * 10 < requests(), "{counts:?}");
    let passed = limiter.readiness()["passed_without_verdict"].clone();
    assert_eq!(
        passed,
        serde_json::json!({"rule_failed": 0, "late": 0, "refused": 0})
    );
}

/// The status that stands for no answer: the proxy closed the connection, or waits for more bytes.
const NO_ANSWER: u16 = 0;

/// Sends the requests of one thread, and returns the number of answers with each status.
fn send(proxy: &Proxy, mut random: Random) -> BTreeMap<u16, u64> {
    let mut counts = BTreeMap::new();
    let mut kept: Option<BufReader<TcpStream>> = None;
    for _ in 0..requests() / THREADS {
        let request = request(&mut random);
        let mut connection = kept
            .take()
            .unwrap_or_else(|| BufReader::new(proxy.connect(HAMMERING)));
        // The proxy may answer and close the connection before all bytes are sent.
        let _ = connection.get_mut().write_all(&request);
        let (status, goes_on) = answer(&mut connection).unwrap_or((NO_ANSWER, false));
        let start = request[..request.len().min(2000)].escape_ascii();
        assert!(!matches!(status, 101 | 200..=299), "{status}: {start}");
        *counts.entry(status).or_insert(0) += 1;
        kept = goes_on.then_some(connection);
    }
    counts
}

/// Reads an answer; returns its status, and whether the connection can be used again.
fn answer(connection: &mut BufReader<TcpStream>) -> std::io::Result<(u16, bool)> {
    let mut line = String::new();
    let mut length = None;
    let mut closes = false;
    connection.read_line(&mut line)?;
    let invalid = || std::io::Error::from(ErrorKind::InvalidData);
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(invalid)?;
    loop {
        let mut line = String::new();
        connection.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        match line.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok(),
            Some(("connection", value)) => closes |= value == "close",
            Some(_) => {}
            None => break,
        }
    }
    let Some(length) = length else {
        return Ok((status, false));
    };
    connection.read_exact(&mut vec![0; length])?;
    Ok((status, !closes))
}

/// A SplitMix64 generator of random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// Returns true with a probability of one in `times`.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

const METHODS: [&str; 8] = [
    "GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get", "PROPFIND",
];
const TARGETS: [&str; 9] = [
    "/",
    "/login",
    "/a/../login",
    "//login",
    "/%6Cogin;x",
    "http://other.example/login",
    "/x/..%2flogin",
    "/v1/authz",
    "/%0d%0aX-Forwarded-For:%206.6.6.6",
];
const NAMES: [&str; 24] = [
    "X-Api-Key",
    "User-Agent",
    "X-Cost",
    "X-Forwarded-For",
    "X-Forwarded-Uri",
    "X-Forwarded-Method",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Original-Uri",
    "X-Original-Method",
    "X-RateLimit-Action",
    "Forwarded",
    "Authorization",
    "Cookie",
    "Accept",
    "Range",
    "If-None-Match",
    "Upgrade",
    "Connection",
    "TE",
    "Trailer",
    "Via",
    "Origin",
    "Content-Type",
];
const VALUES: [&str; 12] = [
    "",
    "a",
    "/",
    "GET",
    "6.6.6.6, 127.0.0.1",
    "close",
    "upgrade, X-Forwarded-Uri",
    "websocket",
    "allow",
    "-1",
    "NaN",
    "1e999",
];
const LENGTHS: [usize; 12] = [
    0, 1, 3, 20, 100, 1000, 4090, 4100, 5000, 8000, 15_000, 40_000,
];
const COUNTS: [usize; 10] = [0, 0, 1, 2, 5, 20, 57, 70, 100, 400];

/// Returns a request that ends where its head states, whatever else it contains.
fn request(random: &mut Random) -> Vec<u8> {
    let mut request = random.one_of(&METHODS).as_bytes().to_vec();
    request.push(b' ');
    request.extend_from_slice(random.one_of(&TARGETS).as_bytes());
    if random.once_in(3) {
        request.extend_from_slice(random.one_of(&[&b"/"[..], b"?", b"?a=", b"/%ff", b"#"]));
        noise(random, b'!', &mut request);
    }
    request.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    request.extend_from_slice(
        random
            .one_of(&["a.example", "127.0.0.1", "A.:80", "\u{e9}", ""])
            .as_bytes(),
    );
    request.extend_from_slice(b"\r\nContent-Length: 0\r\n");
    for number in 0..random.one_of(&COUNTS) {
        request.extend_from_slice(format!("N{number}: v\r\n").as_bytes());
    }
    for _ in 0..random.below(5) {
        request.extend_from_slice(random.one_of(&NAMES).as_bytes());
        request.extend_from_slice(b": ");
        if random.once_in(2) {
            request.extend_from_slice(random.one_of(&VALUES).as_bytes());
        } else {
            noise(random, 1, &mut request);
        }
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request
}

/// Appends random bytes that are at least `least`, mostly letters.
fn noise(random: &mut Random, least: u8, into: &mut Vec<u8>) {
    let length = random.one_of(&LENGTHS);
    let odd = random.one_of(&[0, 1, 30]);
    into.extend((0..length).map(|_| match random.next().to_le_bytes() {
        [byte, chance, ..] if usize::from(chance) < odd && byte >= least => match byte {
            b'\r' | b'\n' => b'x',
            byte => byte,
        },
        [byte, ..] => b'a' + byte % 26,
    }));
}
