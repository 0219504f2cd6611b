//! Several rules on one request: one limiter for each of them, and all at once.

use std::hint::black_box;
use std::time::Instant;

use earrrl::{Charge, Cost, Engine, Limiter, MemoryEngine, Mode, Rule, RuleId};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Uniform};

const CLIENTS: u64 = 10_000;
const REQUESTS: usize = 200_000;

/// What decides a request of a client under all rules, and what it is called.
type Way = (&'static str, Box<dyn Fn(&[u8]) -> bool>);

/// Buckets and averages at rates that users have. Their bursts are so large that none of them denies
/// a request, since then limiters that come later would not be asked.
fn rules(count: usize) -> Vec<Rule> {
    const RATES: [u64; 5] = [1, 10_000, 10, 1_000, 100];
    let rule = |nth: usize| {
        let rate = RATES[nth % RATES.len()];
        match nth % 2 {
            0 => format!("gcra {rate}/s burst=100000"),
            _ => format!("recent-average {rate}/s half-life=1d"),
        }
    };
    (0..count)
        .map(|nth| rule(nth).parse().expect("a valid rule"))
        .collect()
}

fn limiters(rules: &[Rule]) -> Vec<Limiter<[u8]>> {
    let limiter = |rule: &Rule| Limiter::builder(rule.clone()).capacity(12_500).build();
    rules
        .iter()
        .map(|rule| limiter(rule).expect("enough memory"))
        .collect()
}

fn ways(rules: &[Rule]) -> Vec<Way> {
    let silent = limiters(rules);
    let telling = limiters(rules);
    let engine = MemoryEngine::new(12_500).expect("an engine");
    let prepare = |(nth, rule)| {
        engine
            .prepare(&format!("rule-{nth}"), rule)
            .expect("a rule")
    };
    let ids: Vec<RuleId> = rules.iter().enumerate().map(prepare).collect();
    vec![
        (
            "a limiter for each, the verdicts only",
            Box::new(move |key| silent.iter().all(|limiter| limiter.check(key).is_allowed())),
        ),
        (
            "a limiter for each, with all figures",
            Box::new(move |key| {
                telling
                    .iter()
                    .all(|limiter| limiter.check(key).decision().allowed)
            }),
        ),
        (
            "MemoryEngine",
            Box::new(move |key| {
                let mut charges = [Charge {
                    rule: ids[0],
                    key,
                    cost: Cost::ONE,
                }; 8];
                charges
                    .iter_mut()
                    .zip(&ids)
                    .for_each(|(charge, id)| charge.rule = *id);
                let decision = engine.decide(&charges[..ids.len()], Mode::Check, None);
                decision.into_inner().expect("known rules").allowed
            }),
        ),
    ]
}

fn nanos(way: &Way, keys: &[[u8; 8]]) -> f64 {
    let start = Instant::now();
    black_box(keys.iter().filter(|key| way.1(&key[..])).count());
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}

/// The median of rounds in which the ways take turns, each way's times in a column of their own.
fn medians(rules: &[Rule], keys: &[[u8; 8]], rounds: usize) -> Vec<(&'static str, f64)> {
    let ways = ways(rules);
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..=rounds {
        for (way, times) in ways.iter().zip(&mut times) {
            let time = nanos(way, keys);
            if round > 0 {
                times.push(time);
            }
        }
    }
    let named = ways.iter().zip(times).map(|((name, _), mut times)| {
        times.sort_by(f64::total_cmp);
        (*name, times[times.len() / 2])
    });
    named.collect()
}

pub fn print(rounds: usize) {
    let uniform = Uniform::new(0, CLIENTS).expect("a range");
    let mut random = SmallRng::seed_from_u64(1);
    let keys: Vec<_> = (0..REQUESTS)
        .map(|_| uniform.sample(&mut random).to_le_bytes())
        .collect();
    let one = medians(&rules(1), &keys, rounds);
    let eight = medians(&rules(8), &keys, rounds);
    println!("\n### ns a request under several rules, {CLIENTS} clients of each\n");
    println!("| | 1 rule | 8 rules |\n|---|---:|---:|");
    for ((name, one), (_, eight)) in one.into_iter().zip(eight) {
        println!("| {name} | {one:.1} | {eight:.1} |");
    }
}
