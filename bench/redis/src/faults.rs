//! How long a decision takes while Redis breaks, beside a bare `sleep(deadline)` at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use earrrl::{Charge, Cost, Engine, RuleId};
use earrrl_redis::{EngineMode, Options, RedisEngine};
use tokio::time::sleep;

use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{Server, key_of, until};

const DEADLINE: Duration = Duration::from_millis(5);
const TASKS: u64 = 32;

/// When it began, and how long it took.
type Sample = (Instant, Duration);

struct Load {
    stop: Arc<AtomicBool>,
    decisions: Arc<Mutex<Vec<Sample>>>,
    sleeps: Arc<Mutex<Vec<Sample>>>,
}

impl Load {
    fn start(engine: &Arc<RedisEngine>, rule: RuleId) -> Self {
        let load = Self {
            stop: Arc::default(),
            decisions: Arc::default(),
            sleeps: Arc::default(),
        };
        for task in 0..TASKS {
            let engine = engine.clone();
            let stop = load.stop.clone();
            let decisions = load.decisions.clone();
            let sleeps = load.sleeps.clone();
            tokio::spawn(async move {
                for turn in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("client-{task}-{}", turn % 100);
                    let charge = Charge {
                        rule,
                        key: key.as_bytes(),
                        cost: Cost::ONE,
                    };
                    let began = Instant::now();
                    engine
                        .decide(&[charge], earrrl::Mode::Check, None)
                        .await
                        .expect("no decision fails");
                    decisions.lock().unwrap().push((began, began.elapsed()));
                    let began = Instant::now();
                    if turn % 4 == 0 {
                        sleep(DEADLINE).await;
                        sleeps.lock().unwrap().push((began, began.elapsed()));
                    } else {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            });
        }
        load
    }

    /// Prints what was measured from `broken` on, apart before and after the breaker opened.
    fn report(&self, name: &str, broken: Instant, opened: Instant, ended: Instant) {
        self.stop.store(true, Ordering::Relaxed);
        let decisions = self.decisions.lock().unwrap();
        let sleeps = self.sleeps.lock().unwrap();
        let part = |samples: &[Sample], from: Instant, to: Instant| {
            let chosen = samples
                .iter()
                .filter(|(began, _)| (from..to).contains(began));
            let mut times: Vec<Duration> = chosen.map(|(_, took)| *took).collect();
            times.sort();
            times
        };
        let before = part(&decisions, broken - DEADLINE, opened);
        let after = part(&decisions, opened, ended);
        let sleeps = part(&sleeps, broken - DEADLINE, ended);
        let at = |times: &[Duration], share: f64| {
            let place = (times.len() as f64 * share) as usize;
            times
                .get(place.min(times.len().saturating_sub(1)))
                .copied()
                .unwrap_or_default()
        };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{name:24} {:8.3} {:7} {:8.3} {:8} {:8.4} {:8.4}",
            ms(at(&sleeps, 0.999)),
            before.len(),
            ms(at(&before, 0.999)),
            after.len(),
            ms(at(&after, 0.5)),
            ms(at(&after, 0.999)),
        );
    }
}

async fn engine(mut options: Options) -> (Arc<RedisEngine>, RuleId) {
    options.deadline = DEADLINE;
    let engine = RedisEngine::connect(options, Duration::from_secs(10))
        .await
        .unwrap();
    assert!(engine.ready(Duration::from_secs(10)).await);
    let rule = engine.prepare(
        "wide",
        &"recent-average 1000000/s half-life=10s".parse().unwrap(),
    );
    (Arc::new(engine), rule.unwrap())
}

/// Breaks Redis, keeps it so for `lasting`, mends it.
async fn scene(
    name: &str,
    (engine, rule): (Arc<RedisEngine>, RuleId),
    lasting: Duration,
    fault: impl AsyncFnOnce(),
    repair: impl AsyncFnOnce(),
) {
    let load = Load::start(&engine, rule);
    sleep(Duration::from_millis(500)).await;
    let opened_before = engine.status().counts.opened;
    let broken = Instant::now();
    let opening = async {
        while engine.status().counts.opened == opened_before && broken.elapsed() < lasting {
            sleep(Duration::from_micros(100)).await;
        }
        Instant::now()
    };
    let ((), opened) = tokio::join!(fault(), opening);
    sleep(lasting.saturating_sub(broken.elapsed())).await;
    let ended = Instant::now();
    repair().await;
    load.report(name, broken, opened, ended);
    until("Redis decides again", || {
        engine.status().mode == EngineMode::Shared
    })
    .await;
}

pub async fn run() {
    println!("milliseconds; deadline {DEADLINE:?}");
    println!(
        "{:24} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8}",
        "", "sleep", "before", "p99.9", "alone", "p50", "p99.9"
    );
    let second = Duration::from_secs(2);

    let mut server = Server::start(&[]).await;
    let made = engine(Options::new(&server.url())).await;
    let cell = Mutex::new(&mut server);
    #[allow(clippy::await_holding_lock)]
    scene(
        "killed, restarted",
        made,
        second,
        async || cell.lock().unwrap().kill(),
        async || cell.lock().unwrap().restart().await,
    )
    .await;

    let server = Server::start(&[]).await;
    let made = engine(Options::new(&server.url())).await;
    let ten = Duration::from_secs(10);
    scene(
        "stopped for 10 s",
        made,
        ten,
        async || server.signal("STOP"),
        async || server.signal("CONT"),
    )
    .await;

    let proxy = Proxy::start(server.port).await;
    let made = engine(Options::new(&proxy.url())).await;
    scene(
        "black-holed",
        made,
        second,
        async || proxy.swallow(),
        async || {},
    )
    .await;

    let made = engine(Options::new(&server.url())).await;
    let tell = |words: &[&str]| drop(server.command::<redis::Value>(words).unwrap());
    scene(
        "out of memory",
        made.clone(),
        second,
        async || tell(&["CONFIG", "SET", "maxmemory", "1"]),
        async || tell(&["CONFIG", "SET", "maxmemory", "0"]),
    )
    .await;
    scene(
        "scripts flushed",
        made.clone(),
        second,
        async || tell(&["SCRIPT", "FLUSH"]),
        async || {},
    )
    .await;

    let key = key_of(&server, "client-0-0", "wide");
    let key = key.as_str();
    scene(
        "a wrong type",
        made.clone(),
        second,
        async || {
            tell(&["DEL", key]);
            tell(&["LPUSH", key, "x"]);
        },
        async || tell(&["DEL", key]),
    )
    .await;

    let other = Server::start(&[]).await;
    let port = other.port.to_string();
    scene(
        "a read-only replica",
        made,
        second,
        async || tell(&["REPLICAOF", "127.0.0.1", &port]),
        async || tell(&["REPLICAOF", "NO", "ONE"]),
    )
    .await;

    let server = Server::start(&[]).await;
    let made = engine(Options::new(&server.url())).await;
    let with_password = format!("redis://:new@127.0.0.1:{}", server.port);
    scene(
        "the password changed",
        made.clone(),
        second,
        async || {
            // In one transaction: after the first of the two the second would be refused.
            let client = redis::Client::open(server.url()).unwrap();
            let mut connection = client.get_connection().unwrap();
            let mut both = redis::pipe();
            both.cmd("CONFIG")
                .arg(&["SET", "requirepass", "new"])
                .ignore();
            both.cmd("CLIENT")
                .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
                .ignore();
            let _: () = both.query(&mut connection).unwrap();
        },
        async || made.0.set_urls(vec![with_password.clone()]),
    )
    .await;

    let mut cluster = Cluster::start().await;
    let urls = cluster.urls();
    let made = engine(Options::cluster(urls.iter().map(String::as_str))).await;
    let dead = cluster.master_of(100);
    let five = Duration::from_secs(5);
    scene(
        "a failover in a Cluster",
        made,
        five,
        async || cluster.nodes[dead].kill(),
        async || {},
    )
    .await;
}
