//! Near rules: what a decision costs this process, beside the memory engine and the exact one; what it costs
//! Redis; and how long one takes while Redis is 20 ms away.

use std::hint::black_box;
use std::time::{Duration, Instant};

use earrrl_testing::Random;
use earrrl::{Charge, Cost, Engine, MemoryEngine, Mode, RuleId};
use earrrl_redis::{Consistency, Options, RedisEngine};

use crate::support::Server;
use crate::support::proxy::Proxy;

const DECISIONS: u64 = 2_000_000;
/// Of near rules: for several leases.
const NEAR: u64 = 10_000_000;
const PATIENCE: Duration = Duration::from_secs(10);
/// A limit that its clients come close to now and then.
const RULE: &str = "recent-average 1000/s half-life=10s";

pub async fn run(clients: usize) {
    let keys: Vec<String> = (0..clients)
        .map(|number| format!("user_id_{number:06}"))
        .collect();
    println!("{clients} clients, {RULE}");
    let memory = MemoryEngine::new(2 * keys.len()).unwrap();
    let rule = memory.prepare("rule", &RULE.parse().unwrap()).unwrap();
    let first = decide(&memory, rule, &keys, DECISIONS).await;
    println!("memory            {first:8.0} ns of this process a decision");
    alone(&memory, rule, &keys).await;
    let before = decide(&memory, rule, &keys, DECISIONS).await;
    let server = Server::start(&[]).await;
    let (near, near_rule) = engine(&server.url(), keys.len()).await;
    meet(&near, near_rule, &keys).await;
    let there = cpu(server.id());
    let each = decide(&near, near_rule, &keys, NEAR).await;
    let redis = (cpu(server.id()) - there) / NEAR as f64 * 1e9;
    let counts = near.status().counts;
    let exact = near.prepare("exact", &RULE.parse().unwrap()).unwrap();
    measure_exact(&near, exact, &keys, server.id()).await;
    drop(near);
    let here = (before + decide(&memory, rule, &keys, DECISIONS).await) / 2.0;
    println!(
        "near              {each:8.0} ns, {:.2} of the memory engine's before and after ({here:.0}); Redis {redis:.0} ns; {counts:?}",
        each / here,
    );
    far(&keys).await;
}

async fn measure_exact(engine: &RedisEngine, rule: RuleId, keys: &[String], server: u32) {
    let there = cpu(server);
    let times = DECISIONS / 20;
    let each = decide(engine, rule, keys, times).await;
    let redis = (cpu(server) - there) / times as f64 * 1e9;
    println!("exact             {each:8.0} ns; Redis {redis:.0} ns");
}

/// Decisions while Redis is not there, with room in the ledger for all clients and for one.
async fn alone(memory: &MemoryEngine, local: RuleId, keys: &[String]) {
    for (name, room) in [("noted", 2 * keys.len()), ("not noted", 1)] {
        let mut options = Options::new("redis://127.0.0.1:1");
        options.local_capacity = room;
        let engine = RedisEngine::new(options).unwrap();
        let rule = engine
            .prepare_with("rule", &RULE.parse().unwrap(), 2 * keys.len())
            .unwrap();
        decide(&engine, rule, keys, 3 * keys.len() as u64).await;
        let here = decide(memory, local, keys, DECISIONS).await;
        let each = decide(&engine, rule, keys, DECISIONS).await;
        println!("alone, {name:9}  {each:8.0} ns; memory in this run {here:.0}");
    }
}

async fn engine(url: &str, clients: usize) -> (RedisEngine, RuleId) {
    let mut options = Options::new(url);
    options.deadline = Duration::from_secs(1);
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await);
    let rule = RULE.parse().unwrap();
    let rule = engine
        .prepare_as("rule", &rule, 2 * clients, Consistency::Near)
        .unwrap();
    (engine, rule)
}

/// Every client's first requests, of which one asks Redis.
async fn meet(engine: &RedisEngine, rule: RuleId, keys: &[String]) {
    for key in [keys; 3].into_iter().flatten() {
        let charge = Charge {
            rule,
            key: key.as_bytes(),
            cost: Cost::ONE,
        };
        engine.decide(&[charge], Mode::Check, None).await.unwrap();
    }
}

/// Nanoseconds of this process a decision.
async fn decide<E: Engine>(engine: &E, rule: RuleId, keys: &[String], times: u64) -> f64 {
    let mut random = Random::new(7);
    let before = cpu(std::process::id());
    for turn in 0..times {
        let key = keys[random.below(keys.len() as u64) as usize].as_bytes();
        let charge = Charge {
            rule,
            key,
            cost: Cost::ONE,
        };
        black_box(engine.decide(&[charge], Mode::Check, None).await.unwrap());
        if turn % 4096 == 0 {
            tokio::task::yield_now().await;
        }
    }
    (cpu(std::process::id()) - before) / times as f64 * 1e9
}

/// Percentiles of decisions while Redis is 20 ms away: of those without a trip, beside the memory engine's.
async fn far(keys: &[String]) {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let (near, rule) = engine(&proxy.url(), keys.len()).await;
    let memory = MemoryEngine::new(2 * keys.len()).unwrap();
    let local = memory.prepare("rule", &RULE.parse().unwrap()).unwrap();
    let few = &keys[..50];
    decide(&near, rule, few, 20_000).await;
    proxy.set_latency(Duration::from_millis(10));
    let mut random = Random::new(9);
    let mut here = Vec::new();
    let mut took = Vec::new();
    let mut trips = 0;
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        let key = few[random.below(few.len() as u64) as usize].as_bytes();
        here.push(time(&memory, local, key).await);
        let before = near.status().counts.shared;
        let each = time(&near, rule, key).await;
        match near.status().counts.shared == before {
            true => took.push(each),
            false => trips += 1,
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    for (name, mut all) in [("near", took), ("memory", here)] {
        all.sort_unstable();
        let at = |share: f64| all[(all.len() as f64 * share) as usize];
        let p50 = at(0.5);
        let p99 = at(0.99);
        let p999 = at(0.999);
        println!(
            "Redis 20 ms away, {name}: {} decisions, p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}",
            all.len()
        );
    }
    println!("and {trips} with a trip");
}

async fn time<E: Engine>(engine: &E, rule: RuleId, key: &[u8]) -> Duration {
    let begun = Instant::now();
    let charge = Charge {
        rule,
        key,
        cost: Cost::ONE,
    };
    black_box(engine.decide(&[charge], Mode::Check, None).await.unwrap());
    begun.elapsed()
}

/// Seconds of processor time that a process has used.
fn cpu(process: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = text
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
