//! What a state file costs: decisions on a table in a file beside decisions on a private one, the longest decisions,
//! and the time until a file is open.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml --example state_file -- [RULE] DIRECTORY...`; the rule is
//! `gcra 1/s burst=1000000` by default. A directory must not exist yet, and its parent must, such as `/dev/shm/bench`.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use earrrl::{Limiter, Rule};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const CLIENTS: [u64; 3] = [10_000, 1_000_000, 10_000_000];
/// The number of pairs of runs, one on each table.
const ROUNDS: usize = 21;
/// The decisions of a run.
const DECISIONS: u64 = 500_000;
/// The time for which single decisions are measured: longer than the kernel leaves a changed page unwritten.
const SINGLE: Duration = Duration::from_secs(40);

fn limiter(rule: &Rule, clients: u64, file: Option<&Path>) -> Result<Limiter<u64>, Box<dyn Error>> {
    let builder = Limiter::builder(rule.clone()).capacity(clients as usize);
    Ok(match file {
        Some(path) => builder.state_file(path).build()?,
        None => builder.build()?,
    })
}

/// Decides a request of each client, so that all clients are in the table.
fn fill(limiter: &Limiter<u64>, clients: u64) {
    for client in 0..clients {
        black_box(limiter.check(&client).is_allowed());
    }
}

/// Returns the nanoseconds for a decision.
fn run(limiter: &Limiter<u64>, clients: u64, seed: u64) -> f64 {
    let mut random = SmallRng::seed_from_u64(seed);
    let start = Instant::now();
    let allowed = (0..DECISIONS)
        .filter(|_| limiter.check(&random.random_range(0..clients)).is_allowed())
        .count();
    black_box(allowed);
    start.elapsed().as_nanos() as f64 / DECISIONS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the medians of both tables, and the median of the ratios of runs that followed each other.
fn compare(private: &Limiter<u64>, mapped: &Limiter<u64>, clients: u64) {
    let pairs: Vec<_> = (0..ROUNDS as u64)
        .map(|round| match round % 2 {
            0 => (run(private, clients, round), run(mapped, clients, round)),
            _ => {
                let mapped = run(mapped, clients, round);
                (run(private, clients, round), mapped)
            }
        })
        .collect();
    let mut ratios: Vec<f64> = pairs
        .iter()
        .map(|(private, mapped)| mapped / private)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let low = ratios[ROUNDS / 4];
    let high = ratios[ROUNDS * 3 / 4];
    let (private, mapped): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    let private = median(private);
    let mapped = median(mapped);
    let ratio = ratios[ROUNDS / 2];
    println!(
        "{clients:>9} clients: private {private:.0} ns, file {mapped:.0} ns, ratio {ratio:.2} ({low:.2}-{high:.2})"
    );
}

/// Prints the longest single decisions.
fn single(name: &str, limiter: &Limiter<u64>, clients: u64) {
    let mut random = SmallRng::seed_from_u64(1);
    let mut times: Vec<u32> = Vec::with_capacity(200_000_000);
    let start = Instant::now();
    let mut before = start;
    while before.duration_since(start) < SINGLE && times.len() < times.capacity() {
        black_box(limiter.check(&random.random_range(0..clients)).is_allowed());
        let after = Instant::now();
        times.push(after.duration_since(before).as_nanos() as u32);
        before = after;
    }
    let count = times.len();
    let mut at = |share: f64| {
        let place = ((count as f64 * share) as usize).min(count - 1);
        f64::from(*times.select_nth_unstable(place).1) / 1e3
    };
    let [p50, p99, p9999, most] = [0.5, 0.99, 0.9999, 1.0].map(&mut at);
    println!(
        "{name}: p50 {p50:.2} us, p99 {p99:.2} us, p99.99 {p9999:.2} us, longest {most:.0} us of {count} decisions"
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let rule = match arguments.first() {
        Some(first) if !first.starts_with(['/', '.']) => arguments.remove(0).parse::<Rule>()?,
        _ => "gcra 1/s burst=1000000".parse()?,
    };
    for clients in CLIENTS {
        let private = limiter(&rule, clients, None)?;
        fill(&private, clients);
        for (nth, directory) in arguments.iter().enumerate() {
            let directory = Path::new(directory);
            let path = directory.join("bench.earrrl");
            let mapped = limiter(&rule, clients, Some(&path))?;
            fill(&mapped, clients);
            println!("{}", directory.display());
            compare(&private, &mapped, clients);
            if clients == 1_000_000 {
                single("  file", &mapped, clients);
                if nth == 0 {
                    single("  private", &private, clients);
                }
            }
            drop(mapped);
            let start = Instant::now();
            let again = limiter(&rule, clients, Some(&path))?;
            println!("  opened again in {:.3} s", start.elapsed().as_secs_f64());
            assert!(
                again.len() as u64 > clients * 9 / 10,
                "{} clients are left",
                again.len()
            );
            drop(again);
            std::fs::remove_dir_all(directory)?;
        }
    }
    Ok(())
}
