//! Who are the fastest clients, after a flood of keys that occur once each? Compares the names that a limiter keeps
//! with sketches that count keys: recall, memory, and nanoseconds for a request.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml --example top [-- MILLIONS_OF_KEYS]`, 10 by default.
//!
//! The flood takes 100 seconds. 100 clients send 10 to 109 requests a second meanwhile, and 10,000 send one.

use std::alloc::System;
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use earrrl::internal::{NameOptions, Names};
use earrrl::{Cost, Engine, MemoryEngine, Mode, Nanos, Rule, RuleId};
use heavykeeper::TopK;
use pingora_limits::estimator::Estimator;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

#[global_allocator]
static MEMORY: cap::Cap<System> = cap::Cap::new(System, usize::MAX);

const FAST: u64 = 100;
const ORDINARY: u64 = 10_000;
const SECONDS: u64 = 100;
const START: u64 = 1_800_000_000;
/// The clients for which the limiter has room.
const CAPACITY: usize = 100_000;
/// The first key of the flood. The fast clients have the keys from 0 on, then come the ordinary ones.
const FLOOD: u64 = 1 << 32;

/// Counts requests, and lists the keys with the most.
trait Ranking {
    fn add(&mut self, key: u64, now: Nanos);
    fn top(&self) -> Vec<u64>;
}

struct Limiter {
    engine: MemoryEngine,
    rule: RuleId,
    limit: Rule,
    names: Option<Names>,
}

impl Limiter {
    fn new(named: bool) -> Self {
        let limit: Rule = "recent-average 5/s half-life=10s"
            .parse()
            .expect("a valid rule");
        let engine = MemoryEngine::new(CAPACITY).expect("there is memory");
        let rule = engine.prepare("api", &limit).expect("there is memory");
        let names = named.then(|| Names::new(limit.limit(), NameOptions::default()));
        Self {
            engine,
            rule,
            limit,
            names,
        }
    }
}

impl Ranking for Limiter {
    fn add(&mut self, key: u64, now: Nanos) {
        let key = key.to_le_bytes();
        let hash = self.engine.hash(&key);
        let decision =
            self.engine
                .decide_hashed(self.rule, hash, Cost::ONE, Mode::Check, Some(now));
        let decision = decision.expect("the rule is known");
        let below = NameOptions::default().remaining_below(self.limit.limit());
        let is_noted = decision.remaining < below || decision.is_over(0);
        if let Some(names) = self.names.as_ref().filter(|_| is_noted) {
            names.note(hash, self.limit.limit(), &decision, || key.to_vec());
        }
    }

    fn top(&self) -> Vec<u64> {
        let Some(names) = &self.names else {
            return Vec::new();
        };
        let top = self
            .engine
            .survey(self.rule, FAST as usize)
            .expect("the rule is known")
            .top;
        let named = |fingerprint| {
            Some(u64::from_le_bytes(
                (*names.get(fingerprint)?.name).try_into().ok()?,
            ))
        };
        top.iter()
            .filter_map(|client| named(client.fingerprint))
            .collect()
    }
}

impl Ranking for TopK<u64> {
    fn add(&mut self, key: u64, _: Nanos) {
        self.add(&key, 1);
    }

    fn top(&self) -> Vec<u64> {
        self.list().iter().map(|node| node.item).collect()
    }
}

/// An estimator counts keys and lists none, so that its user has to keep the greatest.
struct Estimated {
    counts: Estimator,
    greatest: HashMap<u64, isize, foldhash::fast::RandomState>,
    least: isize,
}

impl Ranking for Estimated {
    fn add(&mut self, key: u64, _: Nanos) {
        let count = self.counts.incr(key, 1);
        if count <= self.least {
            return;
        }
        self.greatest.insert(key, count);
        if self.greatest.len() > FAST as usize {
            let least = self
                .greatest
                .iter()
                .min_by_key(|(_, count)| **count)
                .map(|(&key, _)| key);
            least.and_then(|key| self.greatest.remove(&key));
        }
        if self.greatest.len() == FAST as usize {
            self.least = self.greatest.values().copied().min().unwrap_or(0);
        }
    }

    fn top(&self) -> Vec<u64> {
        self.greatest.keys().copied().collect()
    }
}

/// Only asks for the keys of the stream.
struct Nothing;

impl Ranking for Nothing {
    fn add(&mut self, key: u64, now: Nanos) {
        black_box((key, now));
    }

    fn top(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// Returns the key of a request that is not of the flood: of a fast client, by its rate, or of an ordinary one.
fn client(random: &mut SmallRng) -> u64 {
    let fast = (0..FAST).map(|client| 10 + client).sum::<u64>();
    let mut place = random.random_range(0..fast + ORDINARY);
    if place >= fast {
        return FAST + (place - fast);
    }
    (0..FAST)
        .find(|client| {
            place
                .checked_sub(10 + client)
                .map(|rest| place = rest)
                .is_none()
        })
        .unwrap_or(0)
}

fn measure<R: Ranking>(name: &str, keys: u64, new: impl FnOnce() -> R) {
    let before = MEMORY.allocated();
    let mut ranking = new();
    let mut random = SmallRng::seed_from_u64(7);
    let others = ((0..FAST).map(|client| 10 + client).sum::<u64>() + ORDINARY) * SECONDS;
    let mut owed = 0.0;
    let mut requests = 0u64;
    let started = Instant::now();
    for key in 0..keys {
        let now = Nanos::new(START * 1_000_000_000 + key * (SECONDS * 1_000_000_000 / keys));
        ranking.add(FLOOD + key, now);
        owed += others as f64 / keys as f64;
        while owed >= 1.0 {
            ranking.add(client(&mut random), now);
            (owed, requests) = (owed - 1.0, requests + 1);
        }
    }
    let nanos = started.elapsed().as_nanos() as f64 / (keys + requests) as f64;
    let bytes = MEMORY.allocated() - before;
    let mut top = ranking.top();
    top.sort_unstable();
    top.dedup();
    let found = top.iter().filter(|&&key| key < FAST).count();
    println!(
        "| {name} | {found} of {FAST} | {:.1} MB | {nanos:.0} |",
        bytes as f64 / 1e6
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let millions: u64 = std::env::args()
        .nth(1)
        .map_or(Ok(10), |text| text.parse())?;
    let keys = millions * 1_000_000;
    println!("{millions} million keys that occur once each, and 1.6 million requests of others\n");
    println!("| | fastest clients found | memory | ns a request |\n|---|---:|---:|---:|");
    measure("the stream alone", keys, || Nothing);
    measure("**earrrl**, which also limits, with names", keys, || {
        Limiter::new(true)
    });
    measure("earrrl without names", keys, || Limiter::new(false));
    for width in [8192, 65_536] {
        measure(&format!("heavykeeper, {width} × 4"), keys, || {
            TopK::<u64>::new(FAST as usize, width, 4, 0.9)
        });
        measure(
            &format!("pingora's `Estimator`, {width} × 4, and a list of 100"),
            keys,
            || Estimated {
                counts: Estimator::new(4, width),
                greatest: HashMap::default(),
                least: 0,
            },
        );
    }
    Ok(())
}
