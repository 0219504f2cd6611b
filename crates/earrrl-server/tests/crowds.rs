//! Crowds: workers that share one key of a strict rule, and send again after the time that each denial tells them.
//! The server's clock stands until a test moves it, so that the seconds of a crowd take no time. With `EARRRL_LONG=1`
//! every rate, size, protocol and engine is tried with every other.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use earrrl::{ManualClock, Nanos};
use earrrl_server::config::{Config, EngineConfig};
use earrrl_server::protobuf::ratelimit::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use earrrl_testing::Random;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use crate::support;
use crate::support::redis::Redis;
use crate::support::resp::Reply;
use crate::support::{TestServer, grpc, http, resp, until};

const CHECK: &str = r#"{"rule":"shared","key":"crowd"}"#;
const OVER_LIMIT: i32 = 2;
const SIZES: [usize; 5] = [1, 2, 5, 20, 100];
/// Strict rules of 0.2/s, 1/s and 10/s, each with its rate.
const RULES: [(&str, f64); 6] = [
    ("recent-average 1/s half-life=10s strict", 1.0),
    ("exponential 15/15s strict", 1.0),
    ("recent-average 0.2/s half-life=1m strict", 0.2),
    ("exponential 12/1m strict", 0.2),
    ("recent-average 10/s half-life=30s strict", 10.0),
    ("exponential 300/30s strict", 10.0),
];

/// A server with one rule and a clock that stands, and a connection to it.
struct Asked {
    door: Door,
    clock: Arc<ManualClock>,
    /// The time in seconds since the start.
    now: f64,
    server: TestServer,
}

/// A connection over one of the protocols.
enum Door {
    Http(http::Client),
    Resp(resp::Client),
    Grpc(Runtime, Channel),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http,
    Resp,
    Grpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memory,
    File,
    Redis,
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Http, Protocol::Resp, Protocol::Grpc];
const PLACES: [Place; 3] = [Place::Memory, Place::File, Place::Redis];

/// The places that a test keeps states in; Redis is started once.
struct Places {
    redis: Redis,
    folder: tempfile::TempDir,
    servers: u32,
}

impl Places {
    fn new() -> Self {
        Self {
            redis: Redis::start(),
            folder: tempfile::tempdir().unwrap(),
            servers: 0,
        }
    }

    /// Starts a server with this limit and no clients.
    fn serve(&mut self, limit: &str, place: Place, protocol: Protocol) -> Asked {
        self.servers += 1;
        let name = format!("crowd{}", self.servers);
        let engine = match place {
            Place::Memory => String::new(),
            Place::File => {
                let directory = self.folder.path().join(&name);
                format!("[engine]\nstate = \"{}\"\n", directory.display())
            }
            Place::Redis => format!(
                "[engine]\nredis = \"{}\"\nprefix = \"{name}:\"\ndeadline = \"10s\"\n",
                self.redis.url()
            ),
        };
        let rule = format!(
            "[[rule]]\nname = \"shared\"\nlimit = \"{limit}\"\n\
             key = [\"descriptor:user\"]\nmatch = {{ domain = \"crowd\" }}\n"
        );
        Asked::start(support::parse(&(engine + &rule)), protocol)
    }
}

impl Asked {
    fn start(mut config: Config, protocol: Protocol) -> Self {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
        let is_shared = if let EngineConfig::Redis(engine) = &mut config.engine {
            engine.own_clock = true;
            engine.options.linger = Duration::from_secs(3600);
            true
        } else {
            false
        };
        let server = TestServer::with_clock(config, clock.clone());
        if is_shared {
            until("Redis decides", || {
                server.http().get("/readyz").json()["engine"]["mode"] == "redis"
            });
        }
        let door = match protocol {
            Protocol::Http => Door::Http(server.http()),
            Protocol::Resp => Door::Resp(server.resp()),
            Protocol::Grpc => {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let channel = runtime.block_on(grpc::connect(server.grpc));
                Door::Grpc(runtime, channel)
            }
        };
        Self {
            door,
            clock,
            now: 0.0,
            server,
        }
    }

    /// Sends a request over HTTP, which is denied, and returns the answer.
    fn denial(&mut self, at: f64) -> serde_json::Value {
        self.advance(at);
        let answer = self.server.http().post("/v1/check", CHECK);
        assert_eq!(answer.status, 429, "{answer:?}");
        answer.json()
    }

    fn advance(&mut self, at: f64) {
        let by = (at - self.now).max(0.0);
        self.clock.advance(Duration::from_secs_f64(by));
        self.now = self.now.max(at);
    }

    /// Moves the clock to a time in seconds since the start, and sends a request of the shared key. Returns `None` if
    /// it is allowed, and otherwise the wait that it is told, in seconds: whole ones over HTTP and gRPC.
    fn ask(&mut self, at: f64) -> Option<f64> {
        self.advance(at);
        match &mut self.door {
            Door::Http(client) => {
                let answer = client.post("/v1/check", CHECK);
                match answer.status {
                    200 => None,
                    429 => Some(answer.header("retry-after").unwrap().parse().unwrap()),
                    other => panic!("{other}: {answer:?}"),
                }
            }
            Door::Resp(client) => {
                let fields = client.line("EARRRL.CHECK shared crowd").pairs();
                let wait = fields.iter().find(|(name, _)| name == "retry_after");
                let Some((_, Reply::Bulk(wait))) = wait else {
                    panic!("{fields:?}")
                };
                let wait = String::from_utf8_lossy(wait).parse().unwrap();
                (fields[0].1 == Reply::Integer(0)).then_some(wait)
            }
            Door::Grpc(runtime, channel) => {
                let answer = runtime.block_on(should_rate_limit(channel));
                (answer.overall_code == OVER_LIMIT).then(|| {
                    let mut headers = answer.response_headers_to_add.iter();
                    let wait = headers.find(|header| header.key == "retry-after").unwrap();
                    wait.value.parse().unwrap()
                })
            }
        }
    }
}

async fn should_rate_limit(channel: &Channel) -> RateLimitResponse {
    let entry = Entry {
        key: "user".into(),
        value: "crowd".into(),
    };
    let request = RateLimitRequest {
        domain: "crowd".into(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![entry],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 1,
    };
    let method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    grpc::call(channel, method, request).await.unwrap()
}

/// The requests of the second half of a run.
#[derive(Debug, Default)]
struct Served {
    /// The number of allowed requests of each worker.
    allowed: Vec<u64>,
    denied: u64,
    /// The greatest number of denials that a worker got between two allowed requests, in the whole run.
    in_a_row: u64,
    seconds: f64,
}

impl Served {
    fn all(&self) -> u64 {
        self.allowed.iter().sum()
    }

    /// Returns the number of allowed requests a second.
    fn rate(&self) -> f64 {
        self.all() as f64 / self.seconds
    }

    /// Returns the requests of the worker that got least, as a part of the mean.
    fn least(&self) -> f64 {
        let least = self.allowed.iter().min().unwrap();
        *least as f64 * self.allowed.len() as f64 / self.all().max(1) as f64
    }
}

/// Sends the requests of obedient workers for this many seconds. Each worker works for about 50 ms after an allowed
/// request, and sends the next. After a denial it waits as it was told. If `hammering` is a rate, one more client
/// sends at this rate and ignores all answers.
fn run(asked: &mut Asked, workers: usize, seconds: f64, hammering: Option<f64>) -> Served {
    let mut random = Random::new(workers as u64);
    let mut served = Served {
        allowed: vec![0; workers + usize::from(hammering.is_some())],
        seconds: seconds / 2.0,
        ..Served::default()
    };
    let mut in_a_row = vec![0; served.allowed.len()];
    let start = asked.now;
    // Times are in nanoseconds, since a heap orders no floating-point numbers.
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    let mut due: BinaryHeap<_> = (0..served.allowed.len())
        .map(|worker| Reverse((nanos(random.unit()), worker)))
        .collect();
    while let Some(Reverse((time, worker))) = due.pop() {
        let after = time as f64 / 1e9;
        if after >= seconds {
            break;
        }
        let told = asked.ask(start + after);
        let counts = after >= seconds / 2.0;
        served.denied += u64::from(counts && told.is_some());
        served.allowed[worker] += u64::from(counts && told.is_none());
        in_a_row[worker] = told.map_or(0, |_| in_a_row[worker] + 1);
        let network = 0.02 * random.unit();
        let wait = match (told, hammering) {
            (_, Some(rate)) if worker == workers => (0.9 + 0.2 * random.unit()) / rate,
            (None, _) => 0.035 + 0.03 * random.unit() + network,
            (Some(wait), _) => wait + network,
        };
        if worker < workers {
            served.in_a_row = served.in_a_row.max(in_a_row[worker]);
        }
        due.push(Reverse((time + nanos(wait), worker)));
    }
    served
}

/// Returns the seconds in which a crowd gets some hundred requests through, after the burst, which ends within a few
/// averaging times.
fn lasts(rate: f64, workers: usize) -> f64 {
    f64::max((300.0 + 12.0 * workers as f64) / rate, 300.0)
}

fn is_long() -> bool {
    std::env::var_os("EARRRL_LONG").is_some()
}

/// Returns the combinations of a rule, a size, a protocol and an engine. A short run has every size in memory over
/// HTTP, and a crowd of 20 over every other protocol and engine.
fn combinations() -> Vec<((&'static str, f64), usize, Protocol, Place)> {
    let mut all = Vec::new();
    for (nth, rule) in RULES.into_iter().enumerate() {
        for workers in SIZES {
            for protocol in PROTOCOLS {
                for place in PLACES {
                    // No state file can keep the states of exponential.
                    if place == Place::File && rule.0.starts_with("exponential") {
                        continue;
                    }
                    let is_plain = protocol == Protocol::Http && place == Place::Memory;
                    let is_usual = nth == 0 && (is_plain || workers == 20);
                    let is_short = is_usual || nth == 1 && is_plain && workers == 5;
                    if is_short || is_long() {
                        all.push((rule, workers, protocol, place));
                    }
                }
            }
        }
    }
    all
}

#[test]
fn workers_that_obey_share_the_limit() {
    let mut places = Places::new();
    for ((limit, rate), workers, protocol, place) in combinations() {
        let mut asked = places.serve(limit, place, protocol);
        let served = run(&mut asked, workers, lasts(rate, workers), None);
        let what = format!("{workers} workers under {limit}, {protocol:?}, {place:?}");
        let share = served.rate() / rate;
        let denials = served.denied as f64 / served.all().max(1) as f64;
        let least = served.least();
        println!(
            "{what}: {share:.2} of the limit, {denials:.2} denials a success, least {least:.2}"
        );
        assert!(share >= 0.5, "{what}: {share:.2} of the limit");
        assert!(denials <= 1.0, "{what}: {denials:.2} denials a success");
        let is_fair = workers > 20 || least >= 0.5;
        assert!(is_fair, "{what}: one worker got {least:.2} of the mean");
        let is_denied_twice = workers == 1 && served.in_a_row > 1;
        assert!(!is_denied_twice, "{what}: a lone worker is denied twice");
    }
}

/// A worker that hammers keeps the whole crowd out, as the rule counts all attempts of the key.
#[test]
fn who_hammers_stays_out_and_so_do_those_that_share_the_key() {
    let mut places = Places::new();
    for (limit, rate) in RULES {
        for times in [1.2, 2.0, 20.0] {
            if !is_long() && (rate != 1.0 || times == 2.0) {
                continue;
            }
            for obedient in [0, 4] {
                let mut asked = places.serve(limit, Place::Memory, Protocol::Http);
                // At 1.2 times, the limit is reached after two averaging times.
                let seconds = f64::max(240.0 / rate, 200.0);
                let served = run(&mut asked, obedient, seconds, Some(times * rate));
                let what = format!("{limit}: {obedient} workers beside {times} times the limit");
                assert_eq!(served.all(), 0, "{what}: {served:?}");
            }
        }
    }
}

/// Hammers for a minute at ten times the limit. The wait of the last denial is at most twice the first possible one.
#[test]
fn a_client_that_hammered_and_then_obeys_is_told_nearly_the_first_possible_time() {
    let mut places = Places::new();
    for (limit, rate) in RULES {
        for place in [Place::Memory, Place::Redis] {
            if !is_long() && (rate != 0.2 || place == Place::Redis) {
                continue;
            }
            let mut asked = places.serve(limit, place, Protocol::Http);
            let steps = (600.0 * rate) as u32;
            for step in 0..steps {
                asked.ask(f64::from(step) / (10.0 * rate));
            }
            let denial = asked.denial(60.0);
            let [told, earliest] = ["retry_after", "earliest"].map(|name| denial[name].as_f64());
            let (told, earliest) = (told.unwrap(), earliest.unwrap());
            println!("{limit}, {place:?}: told {told:.0} s, first possible {earliest:.0} s");
            assert!(told <= 2.0 * earliest, "{limit}: {told} s, {earliest} s");
            assert_eq!(asked.ask(60.0 + told.ceil()), None, "{limit}: it obeys");
        }
    }
}

/// At one instant, denials are told different whole seconds if places are a second or more apart.
#[test]
fn denials_at_one_instant_are_told_whole_seconds_of_their_own() {
    let mut places = Places::new();
    for (limit, rate) in RULES {
        let mut asked = places.serve(limit, Place::Memory, Protocol::Http);
        let told: Vec<_> = (0..500).filter_map(|_| asked.ask(0.0)).take(40).collect();
        assert_eq!(told.len(), 40, "{limit}");
        let [first, last] = [told[0], told[39]];
        let is_apart = told.windows(2).all(|pair| pair[0] < pair[1]);
        assert_eq!(is_apart, rate <= 1.0, "{limit}: {told:?}");
        assert!(last - first >= 39.0 * 3.0 / rate - 2.0, "{limit}: {told:?}");
    }
}
