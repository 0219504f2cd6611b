//! The cost of a request through a rate limiting layer, in process: ours beside axum-governor and
//! tower_governor, around a service that responds at once.
//!
//!     earrrl-bench-tower                              nanoseconds for a request, the layers in turns
//!     earrrl-bench-tower steps NAME CLIENTS KIND N    N requests, to be counted by callgrind
//!     earrrl-bench-tower memory NAME                  bytes for a client, of 100,000 clients

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum_governor::extractor::PeerIp;
use axum_governor::{Quota, nz};
use earrrl::MemoryEngine;
use earrrl_tower::{ClientAddress, RateLimitLayer, RequestRule};
use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, Service};
use tower_governor::key_extractor::PeerIpKeyExtractor;

const NAMES: [&str; 6] = [
    "nothing",
    "earrrl-tower",
    "earrrl-tower, no headers on allowed",
    "axum-governor 2.1",
    "tower_governor 0.8, headers",
    "tower_governor 0.8, no headers",
];

/// The position of requests to the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Allowed,
    Denied,
}

#[derive(Clone)]
struct Inner;

impl Service<Request<Body>> for Inner {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

/// A layer under test: sends a number of requests, from clients in an order that no cache predicts, and
/// returns how many passed.
type Run = Box<dyn FnMut(u32) -> u32>;

fn requests<S, B>(mut service: S, clients: u32) -> Run
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + 'static,
{
    let mut place = 1u32;
    Box::new(move |count| {
        let mut passed = 0;
        for _ in 0..count {
            place = place.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let client = ((u64::from(place) * u64::from(clients)) >> 32) as u32;
            let address = SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + client), 4711));
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(ConnectInfo(address));
            let response = service
                .call(request)
                .now_or_never()
                .expect("an answer at once");
            passed += u32::from(response.is_ok_and(|response| response.status() == 200));
        }
        passed
    })
}

fn contender(name: &str, clients: u32, kind: Kind) -> Run {
    match name {
        "nothing" => requests(Inner, clients),
        "earrrl-tower" => requests(ours(kind, true).layer(Inner), clients),
        "earrrl-tower, no headers on allowed" => requests(ours(kind, false).layer(Inner), clients),
        "axum-governor 2.1" => {
            let quota = match kind {
                Kind::Allowed => Quota::requests_per_second(nz!(1_000_000u32)),
                Kind::Denied => Quota::requests_per_hour(nz!(1u32)),
            };
            let config = axum_governor::GovernorConfigBuilder::default()
                .with_extractor(PeerIp::default())
                .expect_connect_info()
                .quota_default(quota)
                .gc_disable()
                .finish()
                .expect("a valid configuration");
            requests(
                axum_governor::GovernorLayer::new(config).layer(Inner),
                clients,
            )
        }
        "tower_governor 0.8, headers" => {
            let mut config = theirs(kind);
            let config = config
                .use_headers()
                .finish()
                .expect("a valid configuration");
            requests(
                tower_governor::GovernorLayer::new(config).layer(Inner),
                clients,
            )
        }
        "tower_governor 0.8, no headers" => {
            let config = theirs(kind).finish().expect("a valid configuration");
            requests(
                tower_governor::GovernorLayer::new(config).layer(Inner),
                clients,
            )
        }
        _ => panic!("no contender is called {name}"),
    }
}

fn ours(kind: Kind, headers: bool) -> RateLimitLayer<MemoryEngine> {
    let rule = match kind {
        Kind::Allowed => "gcra 1000000/s burst=1000000",
        Kind::Denied => "gcra 1/1h burst=1",
    };
    let rule = RequestRule::new(
        "address",
        rule.parse().expect("a rule"),
        ClientAddress::default(),
    );
    let engine = MemoryEngine::new(100_000).expect("an engine");
    let builder = RateLimitLayer::builder(engine)
        .rule(rule)
        .headers_on_allowed(headers);
    builder.build().expect("a layer")
}

type Theirs = tower_governor::governor::GovernorConfigBuilder<
    PeerIpKeyExtractor,
    governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>,
>;

fn theirs(kind: Kind) -> Theirs {
    let mut config = Theirs::default();
    match kind {
        Kind::Allowed => config.per_nanosecond(1000).burst_size(1_000_000),
        Kind::Denied => config.per_second(3600).burst_size(1),
    };
    config
}

/// The median of rounds in which all contenders take turns.
fn table() {
    println!("| ns a request | 1 client, allowed | denied | 100,000 clients, allowed | denied |");
    println!("|---|---|---|---|---|");
    let mut rows = vec![Vec::new(); NAMES.len()];
    for (clients, kind) in [
        (1, Kind::Allowed),
        (1, Kind::Denied),
        (100_000, Kind::Allowed),
        (100_000, Kind::Denied),
    ] {
        let mut runs: Vec<Run> = NAMES
            .iter()
            .map(|name| contender(name, clients, kind))
            .collect();
        let mut times = vec![Vec::new(); NAMES.len()];
        // Every client is known, and has used what a denied one may use.
        runs.iter_mut().for_each(|run| {
            run(clients.max(1000) * 12);
        });
        for _ in 0..9 {
            for (run, times) in runs.iter_mut().zip(&mut times) {
                let started = Instant::now();
                run(100_000);
                times.push(started.elapsed());
            }
        }
        for (row, mut times) in rows.iter_mut().zip(times) {
            times.sort();
            row.push(times[times.len() / 2]);
        }
    }
    for (name, row) in NAMES.iter().zip(rows) {
        let cells: Vec<_> = row
            .iter()
            .map(|time| each(*time, 100_000).to_string())
            .collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

fn each(time: Duration, count: u128) -> u128 {
    time.as_nanos() / count
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => table(),
        ["steps", name, clients, kind, count] => {
            let kind = if kind == "denied" {
                Kind::Denied
            } else {
                Kind::Allowed
            };
            let clients: u32 = clients.parse().expect("a number of clients");
            contender(name, clients, kind)(count.parse().expect("a number of requests"));
        }
        ["memory", name] => {
            let before = resident();
            let mut run = contender(name, 100_000, Kind::Denied);
            let passed = run(1_200_000);
            println!(
                "{name}: {} bytes a client",
                (resident() - before) / u64::from(passed)
            );
            drop(run);
        }
        _ => panic!("expected nothing, `steps NAME CLIENTS KIND N` or `memory NAME`"),
    }
}
