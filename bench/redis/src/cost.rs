//! Redis's processor time a decision, and its memory a client, in one run: every contender on a server
//! of its own, 64 requests in flight, every client known already, under rules whose records outlive the
//! measurement. The engine sends decisions in batches; `in a call` is their mean number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earrrl::{Charge, Cost, Engine, Mode, RuleId};
use earrrl_redis::{Options, RedisEngine};
use redis::aio::MultiplexedConnection;

use crate::support::{Server, called};

const UNDER_WAY: u64 = 64;
/// Decisions that are measured, in so many rounds.
const DECISIONS: u64 = 400_000;
const ROUNDS: usize = 3;

#[derive(Clone)]
enum Contender {
    /// A script by its name, and its arguments.
    Script(MultiplexedConnection, Arc<String>, &'static [&'static str]),
    Ours(Arc<RedisEngine>, RuleId),
}

impl Contender {
    async fn decide(&self, client: u64) {
        let key = format!("user_id_{client:06}");
        match self {
            Self::Script(connection, sha, args) => {
                let mut command = redis::cmd("EVALSHA");
                command.arg(sha.as_str()).arg(1).arg(key).arg(*args);
                let _: redis::Value = command.query_async(&mut connection.clone()).await.unwrap();
            }
            Self::Ours(engine, rule) => {
                let charge = Charge {
                    rule: *rule,
                    key: key.as_bytes(),
                    cost: Cost::ONE,
                };
                engine.decide(&[charge], Mode::Check, None).await.unwrap();
            }
        }
    }
}

/// Makes a contender on a server.
enum Make {
    Script(&'static str, &'static [&'static str]),
    Rule(&'static str),
}

impl Make {
    async fn on(&self, server: &Server) -> Contender {
        match self {
            Self::Script(text, args) => {
                let client = redis::Client::open(server.url()).unwrap();
                let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
                let connection = client.get_multiplexed_async_connection_with_config(&patient);
                let connection = connection.await.unwrap();
                let load = redis::cmd("SCRIPT").arg("LOAD").arg(text).clone();
                let sha: String = load.query_async(&mut connection.clone()).await.unwrap();
                Contender::Script(connection, Arc::new(sha), args)
            }
            Self::Rule(text) => {
                let mut options = Options::new(&server.url());
                options.deadline = Duration::from_secs(10);
                let engine = RedisEngine::connect(options, Duration::from_secs(10))
                    .await
                    .unwrap();
                assert!(engine.ready(Duration::from_secs(10)).await);
                let rule = engine.prepare("login", &text.parse().unwrap()).unwrap();
                Contender::Ours(Arc::new(engine), rule)
            }
        }
    }
}

pub async fn run(clients: u64) {
    let contenders = [
        ("EVALSHA 'return 1'", Make::Script("return 1", &[])),
        (
            "the article's script, two keys",
            Make::Script(include_str!("../scripts/article.lua"), &[]),
        ),
        (
            "recent-average",
            Make::Rule("recent-average 0.5/s half-life=10s"),
        ),
        (
            "GCRA, a decimal time",
            Make::Script(
                include_str!("../scripts/gcra.lua"),
                &["60", "60", "3600", "1"],
            ),
        ),
        ("token-bucket", Make::Rule("gcra 60/1h burst=60")),
        ("fixed-window", Make::Rule("fixed-window 600/1h")),
        ("sliding-counter", Make::Rule("sliding-counter 600/1h")),
        ("exponential", Make::Rule("exponential 600/1h")),
    ];
    println!("{clients} clients, {UNDER_WAY} requests in flight; microseconds of Redis a decision");
    println!(
        "{:34} {:>9} {:>8} {:>10} {:>8} {:>8}",
        "", "in a call", "CPU us", "bytes", "CPU", "bytes"
    );
    let mut article = None;
    for (name, make) in contenders {
        let server = Server::start(&[]).await;
        let contender = make.on(&server).await;
        let empty = memory(&server);
        for _ in 0..3 {
            send(&contender, 0..clients).await;
        }
        let bytes = (memory(&server) - empty) / clients as f64;
        let mut best = f64::INFINITY;
        let calls = called(&server, "evalsha");
        for _ in 0..ROUNDS {
            let before = cpu(&server);
            scattered(&contender, clients).await;
            best = best.min((cpu(&server) - before) / DECISIONS as f64 * 1e6);
        }
        let together =
            (ROUNDS as u64 * DECISIONS) as f64 / (called(&server, "evalsha") - calls) as f64;
        if name.starts_with("the article") {
            article = Some((best, bytes));
        }
        let shares = article.map_or(String::new(), |(time, space)| {
            format!(
                "{:7.0}% {:7.0}%",
                best / time * 100.0,
                bytes / space * 100.0
            )
        });
        println!("{name:34} {together:9.1} {best:8.2} {bytes:10.1} {shares}");
    }
    println!("(shares are of the article's script)");
}

async fn send(contender: &Contender, clients: std::ops::Range<u64>) {
    let next = Arc::new(AtomicU64::new(clients.start));
    let tasks = (0..UNDER_WAY).map(|_| {
        let contender = contender.clone();
        let next = next.clone();
        tokio::spawn(async move {
            loop {
                let client = next.fetch_add(1, Ordering::Relaxed);
                if client >= clients.end {
                    return;
                }
                contender.decide(client).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

async fn scattered(contender: &Contender, clients: u64) {
    let tasks = (0..UNDER_WAY).map(|task| {
        let contender = contender.clone();
        tokio::spawn(async move {
            for turn in 0..DECISIONS / UNDER_WAY {
                // A fixed, scattered order: the same for every contender.
                let number = (task * DECISIONS + turn).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                contender.decide(number % clients).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

fn field(server: &Server, section: &str, name: &str) -> f64 {
    let info: String = server.command(&["INFO", section]).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|value| value.trim_start_matches(':').parse().ok())
        .expect("a field of INFO")
}

fn cpu(server: &Server) -> f64 {
    field(server, "cpu", "used_cpu_user:") + field(server, "cpu", "used_cpu_sys:")
}

fn memory(server: &Server) -> f64 {
    field(server, "memory", "used_memory:")
}
