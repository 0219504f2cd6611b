//! Compares what several servers with near rules and a common Redis admit together with what a
//! single server would have admitted of the same requests. `EARRRL_LONG=1` runs more servers for
//! longer.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::http;
use crate::support::process::{BINARY, Process};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Reply};
use crate::support::until;
use earrrl_testing::Random;
use rustix::process::Signal;

/// A model of what a rule admits in one place, computed by the test itself; times are in seconds.
#[derive(Clone, Copy)]
enum Reference {
    Bucket {
        capacity: f64,
        rate: f64,
    },
    /// A recent average of admitted requests, which the count of a strict rule never falls below.
    Average {
        most: f64,
        period: f64,
    },
    Window {
        quota: usize,
        length: f64,
    },
    Log {
        quota: usize,
        length: f64,
    },
}

impl Reference {
    /// Returns how many of the requests at these times are admitted.
    fn admits(self, times: &[f64]) -> usize {
        let mut admitted: Vec<f64> = Vec::new();
        let mut level = 0.0;
        let mut last = f64::MIN;
        for &now in times {
            let past = now - last;
            let fits = match self {
                Self::Bucket { capacity, rate } => {
                    level = f64::min(capacity, level + past * rate);
                    level >= 1.0 - 1e-9
                }
                Self::Average { most, period } => {
                    level *= (-past / period).exp();
                    level <= most
                }
                Self::Window { quota, length } => {
                    let begun = (now / length).floor() * length;
                    admitted.iter().rev().take_while(|at| **at >= begun).count() < quota
                }
                Self::Log { quota, length } => {
                    admitted
                        .iter()
                        .rev()
                        .take_while(|at| **at > now - length)
                        .count()
                        < quota
                }
            };
            last = now;
            if fits {
                admitted.push(now);
                level += if let Self::Bucket { .. } = self {
                    -1.0
                } else {
                    1.0
                };
            }
        }
        admitted.len()
    }
}

/// Returns the rules with their models; each allows 10 requests a second.
fn rules() -> [(&'static str, Reference); 6] {
    let capacity = 20.0;
    let rate = 10.0;
    let quota = 20;
    let length = 2.0;
    let period = 2.0 / std::f64::consts::LN_2;
    let average = Reference::Average {
        most: rate * period,
        period,
    };
    [
        ("gcra 10/s burst=20", Reference::Bucket { capacity, rate }),
        (
            "token-bucket 20 refill=10/s",
            Reference::Bucket { capacity, rate },
        ),
        ("recent-average 10/s half-life=2s leaky", average),
        ("recent-average 10/s half-life=2s strict", average),
        ("fixed-window 20/2s", Reference::Window { quota, length }),
        ("sliding-log 20/2s", Reference::Log { quota, length }),
    ]
}

fn fleet(size: usize, redis: &Redis) -> Vec<Process> {
    let rules = rules()
        .iter()
        .enumerate()
        .fold(String::new(), |text, (place, (limit, _))| {
            let head = format!("[[rule]]\nname = \"rule{place}\"\nlimit = \"{limit}\"\n");
            text + &head + "consistency = \"near\"\n"
        });
    let engine = format!(
        "[engine]\nredis = \"{}\"\ndeadline = \"10s\"\n",
        redis.url()
    );
    let file = std::env::temp_dir().join(format!("earrrl-near-{}.toml", redis.address.port()));
    std::fs::write(&file, engine + &rules).unwrap();
    let start = |_| Process::spawn(Command::new(BINARY).arg("serve").arg("--config").arg(&file));
    let fleet: Vec<Process> = (0..size).map(start).collect();
    std::fs::remove_file(&file).unwrap();
    for server in &fleet {
        until("Redis decides", || {
            let mut http = http::Client::connect(server.http);
            http.get("/readyz").json()["engine"]["mode"] == "redis"
        });
    }
    fleet
}

fn metric(server: &Process, name: &str) -> f64 {
    let text = http::Client::connect(server.http).get("/metrics").body;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in {text}"))
        .parse()
        .unwrap()
}

/// A client that sends successive requests to different servers.
struct Hopper {
    key: String,
    /// The mean time in seconds between two requests; a burst of n requests follows n times as
    /// much.
    gap: f64,
    burst: usize,
    next: f64,
    /// The time of each request, and whether it was admitted.
    asked: Vec<(f64, bool)>,
}

/// Sends requests under one rule for the time `lasts`, and returns the clients with their results.
fn hop(fleet: &[SocketAddr], rule: usize, loads: &[f64], lasts: Duration) -> Vec<Hopper> {
    let mut servers: Vec<Client> = fleet.iter().map(|one| Client::connect(*one)).collect();
    let patterns = loads.iter().flat_map(|load| [(*load, 1), (*load, 10)]);
    let hopper = |(load, burst): (f64, usize)| {
        let key = format!("client-{load}-{burst}");
        let gap = 0.1 / load;
        Hopper {
            key,
            gap,
            burst,
            next: 0.0,
            asked: Vec::new(),
        }
    };
    let mut hoppers: Vec<Hopper> = patterns.map(hopper).collect();
    let mut random = Random::new(rule as u64);
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        let now = begun.elapsed().as_secs_f64();
        for hopper in hoppers.iter_mut().filter(|hopper| hopper.next <= now) {
            for _ in 0..hopper.burst {
                let server = &mut servers[random.below(fleet.len() as u64) as usize];
                let answer = server.line(&format!("EARRRL.CHECK rule{rule} {}", hopper.key));
                let fields = answer.pairs();
                let Some((_, Reply::Bulk(at))) = fields.last() else {
                    panic!("{fields:?}")
                };
                let at: f64 = String::from_utf8_lossy(at).parse().unwrap();
                hopper.asked.push((at, fields[0].1 == Reply::Integer(1)));
            }
            hopper.next = now + hopper.gap * hopper.burst as f64 * (0.5 + random.unit());
        }
        thread::sleep(Duration::from_millis(1));
    }
    hoppers
}

#[test]
fn servers_admit_no_more_than_one_place_would() {
    let long = std::env::var_os("EARRRL_LONG").is_some();
    let (sizes, loads) = if long {
        (&[2, 4, 8][..], &[0.1, 0.5, 2.0, 20.0, 100.0][..])
    } else {
        (&[2, 4][..], &[0.5, 2.0, 10.0][..])
    };
    let lasts = Duration::from_secs(if long { 30 } else { 5 });
    for &size in sizes {
        let redis = Redis::start();
        let fleet = fleet(size, &redis);
        thread::scope(|scope| {
            let hops = (0..rules().len()).map(|rule| {
                let servers: Vec<SocketAddr> = fleet.iter().map(|server| server.resp).collect();
                scope.spawn(move || hop(&servers, rule, loads, lasts))
            });
            for (rule, hop) in hops.collect::<Vec<_>>().into_iter().enumerate() {
                hop.join()
                    .unwrap()
                    .into_iter()
                    .for_each(|hopper| compare(size, rule, hopper));
            }
        });
        let all = |name: &str| fleet.iter().map(|server| metric(server, name)).sum::<f64>();
        let near = all("earrrl_engine_decisions_total{by=\"near\"}");
        let trips = all("earrrl_engine_decisions_total{by=\"redis\"}");
        println!("{size} servers: {near} decisions without a trip, {trips} with one");
        // How many trips are saved depends on the pace, and so on the machine; docs/near.md has measurements.
        assert!(near > 0.0);
        assert_eq!(all("earrrl_engine_decisions_total{by=\"local\"}"), 0.0);
    }
}

/// What a server has counted is in Redis when it is stopped.
#[test]
fn a_stopped_server_leaves_its_counts_in_redis() {
    let redis = Redis::start();
    let rule =
        "[[rule]]\nname = \"rule\"\nlimit = \"fixed-window 60/1h\"\nconsistency = \"near\"\n";
    let engine = format!(
        "[engine]\nredis = \"{}\"\ndeadline = \"10s\"\n",
        redis.url()
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), engine + rule).unwrap();
    let start = || {
        let mut command = Command::new(BINARY);
        let server = Process::spawn(command.args(["serve", "--config"]).arg(file.path()));
        until("Redis decides", || {
            let ready = http::Client::connect(server.http).get("/readyz");
            ready.status == 200 && ready.json()["engine"]["mode"] == "redis"
        });
        server
    };
    let remaining = |server: &Process, times: usize| {
        let mut client = Client::connect(server.resp);
        let last = (0..times)
            .map(|_| client.line("EARRRL.CHECK rule k").pairs())
            .last()
            .unwrap();
        assert_eq!(last[0].1, Reply::Integer(1), "{last:?}");
        last[4].1.clone()
    };
    let mut first = start();
    assert_eq!(remaining(&first, 5), Reply::bulk("55"));
    first.signal(Signal::TERM);
    assert!(first.child.wait().unwrap().success());
    let Reply::Bulk(left) = remaining(&start(), 1) else {
        panic!("no figure")
    };
    // The first server's unspent units, if it had any, stay charged.
    let left: u32 = String::from_utf8_lossy(&left).parse().unwrap();
    assert!((40..=54).contains(&left), "{left}");
}

#[test]
fn config_check_warns_of_rounded_counts() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "[engine]\nredis = \"redis://127.0.0.1\"\n[[rule]]\nname = \"api\"\nlimit = \"fixed-window 10000000/1s\"\n";
    std::fs::write(file.path(), text).unwrap();
    let output = Command::new(BINARY)
        .args(["config", "check"])
        .arg(file.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let warnings = String::from_utf8(output.stderr).unwrap();
    let expected = "warning: api: fixed-window 10000000/1s: Redis stores";
    assert!(
        warnings.starts_with(expected) && warnings.lines().count() == 1,
        "{warnings}"
    );
}

fn compare(size: usize, rule: usize, mut hopper: Hopper) {
    let (limit, reference) = rules()[rule];
    hopper.asked.sort_by(|a, b| a.0.total_cmp(&b.0));
    let times: Vec<f64> = hopper.asked.iter().map(|(at, _)| *at).collect();
    let near = hopper
        .asked
        .iter()
        .filter(|(_, admitted)| *admitted)
        .count();
    let one = reference.admits(&times);
    println!(
        "{size} {limit:40} {:16} {near} of {}, one place {one}",
        hopper.key,
        times.len()
    );
    assert!(
        near as f64 <= one as f64 * 1.01 + 1.0,
        "{limit}, {}: {near} {one}",
        hopper.key
    );
}
