//! Decisions of limiters and engines: the search for the client and the change of its state included.

use std::hint::black_box;

use earrrl::internal::{NameOptions, Names, table::KeyHasher};
use earrrl::{
    Actual, Charge, Cost, Engine, HoldTerms, Limiter, ManualClock, MemoryEngine, Mode, Nanos, Rule,
    RuleId,
};

use super::{START, Workload};

/// The clients that take turns. They fit the table, so that none is evicted.
const CLIENTS: u64 = 1024;
const GCRA: &str = "gcra 1000000/s burst=1000000000";
const AVERAGE: &str = "recent-average 1000000000/s half-life=10s";
const FIXED: &str = "fixed-window 100000000/1h";
const COUNTER: &str = "sliding-counter 100000000/1h";
const EXPONENTIAL: &str = "exponential 6000/1m";
/// Rules as users have them: a rate a second, and one that a busy client does not reach.
const RULES: [&str; 8] = [
    "gcra 1/s burst=100000000",
    "gcra 10000/s burst=100000000",
    "recent-average 100000000/s half-life=10s",
    "gcra 1/m burst=100000000",
    "gcra 100/s burst=100000000",
    "recent-average 100000000/s half-life=1m",
    "gcra 1000/s burst=100000000",
    "gcra 1/h burst=100000000",
];

pub(super) fn workloads() -> Vec<Workload> {
    vec![
        Workload {
            name: "gcra check",
            run: |n| check(GCRA, n),
        },
        Workload {
            name: "gcra check, state file",
            run: |n| check_mapped(GCRA, n),
        },
        Workload {
            name: "gcra check, denied",
            run: |n| check("gcra 1/d burst=1", n),
        },
        Workload {
            name: "gcra check, new clients",
            run: new_clients,
        },
        Workload {
            name: "gcra check, new clients, table full of idle ones",
            run: |n| flood(1_000_000, n),
        },
        Workload {
            name: "gcra check, new clients, table full of active ones",
            run: |n| flood(1, n),
        },
        Workload {
            name: "gcra check, batches",
            run: |n| check_batch(GCRA, n),
        },
        Workload {
            name: "gcra admit, batches",
            run: |n| admit_batch(GCRA, n),
        },
        Workload {
            name: "gcra admit, new clients, batches",
            run: admit_new_clients,
        },
        Workload {
            name: "recent-average check",
            run: |n| check(AVERAGE, n),
        },
        Workload {
            name: "recent-average check, state file",
            run: |n| check_mapped(AVERAGE, n),
        },
        Workload {
            name: "recent-average check, denied and strict",
            run: |n| check("recent-average 0.000001/s half-life=10s strict", n),
        },
        Workload {
            name: "recent-average check, batches",
            run: |n| check_batch(AVERAGE, n),
        },
        Workload {
            name: "recent-average admit, batches",
            run: |n| admit_batch(AVERAGE, n),
        },
        Workload {
            name: "fixed-window check",
            run: |n| check(FIXED, n),
        },
        Workload {
            name: "sliding-counter check",
            run: |n| check(COUNTER, n),
        },
        Workload {
            name: "exponential check",
            run: |n| check(EXPONENTIAL, n),
        },
        Workload {
            name: "engine, 1 fixed-window",
            run: |n| decide(&[FIXED], n),
        },
        Workload {
            name: "engine, 1 sliding-counter",
            run: |n| decide(&[COUNTER], n),
        },
        Workload {
            name: "engine, 1 rule",
            run: |n| decide(&RULES[..1], n),
        },
        Workload {
            name: "engine, 1 rule, clients named",
            run: decide_and_name,
        },
        Workload {
            name: "engine, 1 rule, reserved and committed",
            run: |n| reserve(RULES[0], n),
        },
        Workload {
            name: "engine, 8 rules",
            run: |n| decide(&RULES, n),
        },
    ]
}

/// A capacity with which all clients are in their first home line, whatever random key the engine or
/// the state file has.
const ROOMY: usize = 64 * CLIENTS as usize;

fn clock() -> ManualClock {
    ManualClock::new(Nanos::new(START))
}

fn limiter(text: &str, capacity: usize) -> Option<Limiter<u64, ManualClock>> {
    let rule: Rule = text.parse().ok()?;
    // A random key would place the clients otherwise in each run.
    let hasher = KeyHasher::with_key(&[7; 16]);
    Limiter::builder(rule)
        .capacity(capacity)
        .clock(clock())
        .hasher(hasher)
        .build()
        .ok()
}

fn check(text: &str, steps: u64) -> u64 {
    let Some(limiter) = limiter(text, 2 * CLIENTS as usize) else {
        return 0;
    };
    (0..steps)
        .map(|step| u64::from(limiter.check(&(step % CLIENTS)).is_allowed()))
        .sum()
}

/// The same as `check` on a table that is mapped from a file.
fn check_mapped(text: &str, steps: u64) -> u64 {
    let directory = std::env::temp_dir().join(format!("earrrl-bench-{}", std::process::id()));
    let Ok(rule) = text.parse::<Rule>() else {
        return 0;
    };
    let limiter = Limiter::<u64>::builder(rule).capacity(ROOMY);
    let limiter = limiter
        .clock(clock())
        .state_file(directory.join("bench.earrrl"))
        .build();
    let Ok(limiter) = limiter else { return 0 };
    let allowed = (0..steps)
        .map(|step| u64::from(limiter.check(&(step % CLIENTS)).is_allowed()))
        .sum();
    drop(limiter);
    let _ = std::fs::remove_dir_all(directory);
    allowed
}

fn new_clients(steps: u64) -> u64 {
    let Some(limiter) = limiter(GCRA, 100_000) else {
        return 0;
    };
    (0..steps)
        .map(|step| u64::from(limiter.check(&step).is_allowed()))
        .sum()
}

fn admit_new_clients(steps: u64) -> u64 {
    let Some(limiter) = limiter(GCRA, 100_000) else {
        return 0;
    };
    let keys: Vec<u64> = (0..steps).collect();
    limiter.admit_batch(&keys).map(u64::from).sum()
}

/// New clients of a full table, one every `nanos`. Each is active for a millisecond.
fn flood(nanos: u64, steps: u64) -> u64 {
    let Ok(rule) = "gcra 1000/s burst=10".parse::<Rule>() else {
        return 0;
    };
    let clock = std::sync::Arc::new(clock());
    let hasher = KeyHasher::with_key(&[7; 16]);
    let limiter = Limiter::<u64>::builder(rule)
        .capacity(96)
        .clock(clock.clone())
        .hasher(hasher)
        .build();
    let Ok(limiter) = limiter else { return 0 };
    let check = |step: u64| {
        clock.advance(std::time::Duration::from_nanos(nanos));
        u64::from(limiter.check(&step).is_allowed())
    };
    (0..steps).map(check).sum()
}

fn check_batch(text: &str, steps: u64) -> u64 {
    let Some(limiter) = limiter(text, 2 * CLIENTS as usize) else {
        return 0;
    };
    let keys: Vec<u64> = (0..steps).map(|step| step % CLIENTS).collect();
    limiter
        .check_batch(&keys)
        .map(|verdict| u64::from(verdict.is_allowed()))
        .sum()
}

fn admit_batch(text: &str, steps: u64) -> u64 {
    let Some(limiter) = limiter(text, 2 * CLIENTS as usize) else {
        return 0;
    };
    let keys: Vec<u64> = (0..steps).map(|step| step % CLIENTS).collect();
    limiter.admit_batch(&keys).map(u64::from).sum()
}

fn decide(rules: &[&str], steps: u64) -> u64 {
    let Ok(engine) = MemoryEngine::with_clock(ROOMY, clock()) else {
        return 0;
    };
    let prepare = |(nth, text): (usize, &&str)| {
        engine
            .prepare(&format!("rule-{nth}"), &text.parse().ok()?)
            .ok()
    };
    let ids: Vec<RuleId> = rules.iter().enumerate().filter_map(prepare).collect();
    let decide = |step: u64| {
        let key = &(step % CLIENTS).to_le_bytes()[..];
        let mut charges = [Charge {
            rule: ids[0],
            key,
            cost: Cost::ONE,
        }; 8];
        charges
            .iter_mut()
            .zip(&ids)
            .for_each(|(charge, id)| charge.rule = *id);
        let decision = engine
            .decide(&charges[..ids.len()], Mode::Check, None)
            .into_inner();
        decision.map_or(0, |decision| black_box(&decision).remaining)
    };
    (0..steps).map(decide).fold(0, u64::wrapping_add)
}

/// Reserves two units for each request, and commits one at once.
fn reserve(text: &str, steps: u64) -> u64 {
    let Ok(engine) = MemoryEngine::with_clock(ROOMY, clock()) else {
        return 0;
    };
    let Some(rule) = text
        .parse()
        .ok()
        .and_then(|rule| engine.prepare("rule-0", &rule).ok())
    else {
        return 0;
    };
    let reserve = |step: u64| {
        let key = &(step % CLIENTS).to_le_bytes()[..];
        let charge = Charge {
            rule,
            key,
            cost: Cost::from_units(2),
        };
        let id = engine
            .hold(&[charge], HoldTerms::default(), None)
            .ok()?
            .id?;
        let committed = engine.commit(id, Actual::All(Cost::ONE), None).ok()?;
        Some(black_box(&committed).decision.remaining)
    };
    (0..steps).filter_map(reserve).fold(0, u64::wrapping_add)
}

/// The same as `decide` of one rule, with a directory of names that no client is close enough to the
/// limit for.
fn decide_and_name(steps: u64) -> u64 {
    let Ok(engine) = MemoryEngine::with_clock(ROOMY, clock()) else {
        return 0;
    };
    let Ok(parsed) = RULES[0].parse::<Rule>() else {
        return 0;
    };
    let Ok(rule) = engine.prepare("rule-0", &parsed) else {
        return 0;
    };
    let names = black_box(Names::new(parsed.limit(), NameOptions::default()));
    let below = black_box(NameOptions::default().remaining_below(parsed.limit()));
    let decide = |step: u64| {
        let key = &(step % CLIENTS).to_le_bytes()[..];
        let mut charges = [Charge {
            rule,
            key,
            cost: Cost::ONE,
        }; 8];
        charges[0].rule = black_box(rule);
        let decision = engine.decide(&charges[..1], Mode::Check, None).into_inner();
        decision.map_or(0, |decision| {
            if (decision.remaining < below) | decision.is_over(0) {
                names.note(engine.hash(key), parsed.limit(), &decision, || key.to_vec());
            }
            black_box(&decision).remaining
        })
    };
    (0..steps).map(decide).fold(0, u64::wrapping_add)
}
