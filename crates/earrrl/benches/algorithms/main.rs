//! The cost of a decision, by algorithm, limiter and engine.
//!
//! `cargo bench -p earrrl --bench algorithms` prints nanoseconds: the median of nine runs.
//! `bench/instructions.sh` counts the instructions of the same steps, which no busy machine disturbs.

mod store;

use std::hint::black_box;
use std::time::{Duration, Instant};

use earrrl::algorithm::{Algorithm, Moment, RecentAverage, TokenBucket};
use earrrl::{Cost, Limit, Mode, Nanos, Rule};

/// A workload: runs a number of steps and returns a value that depends on all of them.
struct Workload {
    name: &'static str,
    run: fn(u64) -> u64,
}

/// The nanoseconds between requests.
const GAP: u64 = 100_000_000;
const START: u64 = 1_700_000_000_000_000_000;

fn main() {
    let workloads: Vec<_> = workloads().into_iter().chain(store::workloads()).collect();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["names"] => {
            for algorithm in earrrl::internal::algorithms() {
                let is_run = workloads
                    .iter()
                    .any(|workload| workload.name.starts_with(algorithm));
                assert!(is_run, "no workload measures {algorithm}");
            }
            workloads.iter().for_each(|workload| say(workload.name));
        }
        ["steps", name, steps] => {
            let workload = workloads.iter().find(|workload| workload.name == name);
            let steps = steps.parse().unwrap_or(0);
            say(&workload
                .map_or(0, |workload| (workload.run)(steps))
                .to_string());
        }
        _ => {
            say(&format!("{:44} {:>8}", "ns a decision", "median"));
            for workload in workloads {
                say(&format!(
                    "{:44} {:>8.1}",
                    workload.name,
                    median_nanos(&workload)
                ));
            }
        }
    }
}

#[expect(
    clippy::print_stdout,
    reason = "a benchmark's output is what it prints"
)]
fn say(line: &str) {
    println!("{line}");
}

/// Returns the median of nine runs of about 50 ms.
fn median_nanos(workload: &Workload) -> f64 {
    let mut steps = 1000;
    while time(workload, steps) < Duration::from_millis(50) {
        steps *= 2;
    }
    let mut runs: Vec<Duration> = (0..9).map(|_| time(workload, steps)).collect();
    runs.sort();
    runs[4].as_nanos() as f64 / steps as f64
}

fn time(workload: &Workload, steps: u64) -> Duration {
    let start = Instant::now();
    black_box((workload.run)(steps));
    start.elapsed()
}

/// "step" is the hot path: whether a request of cost 1 is allowed, and the state after it. "decide" is
/// that with every figure of the answer.
fn workloads() -> Vec<Workload> {
    vec![
        Workload {
            name: "recent-average step",
            run: |steps| recent_average(steps, GAP),
        },
        Workload {
            name: "recent-average step, 1e6 requests a second",
            run: |steps| recent_average(steps, 1_000),
        },
        Workload {
            name: "recent-average step, 1024 clients in turn",
            run: recent_average_clients,
        },
        Workload {
            name: "recent-average step, denied and leaky",
            run: recent_average_denied,
        },
        Workload {
            name: "token-bucket step",
            run: token_bucket,
        },
        Workload {
            name: "recent-average decide",
            run: |n| decide("recent-average 1/s half-life=10s", n),
        },
        Workload {
            name: "exponential decide, allowed",
            run: |n| decide("exponential 6000/1m", n),
        },
        Workload {
            name: "exponential decide, denied",
            run: |n| decide("exponential 60/1m strict", n),
        },
        Workload {
            name: "token-bucket decide",
            run: |n| decide("token-bucket 60 refill=1/s", n),
        },
        Workload {
            name: "fixed-window decide",
            run: |n| decide("fixed-window 60/1m", n),
        },
        Workload {
            name: "sliding-log decide, 60 entries",
            run: |n| decide("sliding-log 60/1m", n),
        },
        Workload {
            name: "sliding-window decide, 60 sub-windows",
            run: |n| decide("sliding-window 60/1m", n),
        },
        Workload {
            name: "concurrent decide, 60 places",
            run: |n| decide("concurrent 60 timeout=1m", n),
        },
        Workload {
            name: "sliding-counter decide",
            run: |n| decide("sliding-counter 60/1m", n),
        },
    ]
}

/// Returns the limit of a rule, given its text.
fn limit(rule: &str) -> Option<Limit> {
    rule.parse::<Rule>().ok().map(|rule| *rule.limit())
}

fn recent_average_limit() -> Option<RecentAverage> {
    match limit("recent-average 1/s half-life=10s")? {
        Limit::RecentAverage(limit) => Some(limit),
        _ => None,
    }
}

/// One client, so that every step waits for the one before.
fn recent_average(steps: u64, gap: u64) -> u64 {
    let Some(limit) = recent_average_limit() else {
        return 0;
    };
    let limit = black_box(limit);
    let mut state = None;
    let mut allowed = 0;
    for step in 0..steps {
        let now = Nanos::new(START + step * gap);
        allowed += u64::from(limit.allows(state.as_ref(), now, Cost::ONE));
        state = Some(limit.charge(state, now, Cost::ONE));
    }
    allowed + state.map_or(0, |Moment(v)| v as u64 & 1)
}

/// Many clients, so that the processor may work on several steps at once.
fn recent_average_clients(steps: u64) -> u64 {
    let Some(limit) = recent_average_limit() else {
        return 0;
    };
    let limit = black_box(limit);
    let mut states = vec![None; 1024];
    let mut allowed = 0;
    for step in 0..steps {
        let now = Nanos::new(START + step * 100_000);
        let state = &mut states[step as usize % 1024];
        allowed += u64::from(limit.allows(state.as_ref(), now, Cost::ONE));
        *state = Some(limit.charge(state.take(), now, Cost::ONE));
    }
    allowed
}

/// The cost of a denied request under a leaky rule: one comparison.
fn recent_average_denied(steps: u64) -> u64 {
    let Some(limit) = recent_average_limit() else {
        return 0;
    };
    let limit = black_box(limit);
    let state = limit.state_with_count(1e9, Nanos::new(START));
    let denied = |step| {
        !limit.allows(
            black_box(state.as_ref()),
            Nanos::new(START + step),
            Cost::ONE,
        )
    };
    (0..steps).map(|step| u64::from(denied(step))).sum()
}

fn token_bucket(steps: u64) -> u64 {
    let Some(Limit::TokenBucket(limit)) = limit("token-bucket 60 refill=1/s") else {
        return 0;
    };
    let limit: TokenBucket = black_box(limit);
    let mut state = None;
    let mut allowed = 0;
    for step in 0..steps {
        let now = Nanos::new(START + step * GAP);
        if limit.allows(state.as_ref(), now, Cost::ONE) {
            allowed += 1;
            state = Some(limit.charge(state, now, Cost::ONE));
        }
    }
    allowed
}

/// Everything that is answered, through the one dispatch.
fn decide(rule: &str, steps: u64) -> u64 {
    let Some(limit) = limit(rule) else { return 0 };
    let limit = black_box(limit);
    let mut state = None;
    let mut remaining = 0u64;
    for step in 0..steps {
        let now = Nanos::new(START + step * GAP);
        let (after, decision) = limit.decide(state.take(), now, Cost::ONE, Mode::Check);
        state = after;
        remaining = remaining.wrapping_add(black_box(decision).remaining);
    }
    remaining
}
