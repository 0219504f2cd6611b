//! Three ways to make an update atomic, and a running sum against counting again.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};
use std::time::{Duration, Instant};

use earrrl::algorithm::State;
use earrrl::{Cost, Limit, Mode, Nanos, Rule};

const DECISIONS: u32 = 2_000_000;

/// One window's count, and whether one more is within the quota.
trait Counter: Sync {
    fn admit(&self, quota: u64) -> bool;
}

/// Reads, judges, and writes if nobody else has meanwhile: nothing is stored of what is denied.
struct CompareAndSwap(AtomicU64);

/// The same under a lock, which whoever dies holding it leaves locked.
struct Locked(Mutex<u64>);

/// Counts first and judges then: never retries, and can't help counting what is denied.
struct FetchAndAdd(AtomicU64);

impl Counter for CompareAndSwap {
    fn admit(&self, quota: u64) -> bool {
        let within = |count: u64| (count < quota).then(|| count + 1);
        self.0.fetch_update(AcqRel, Acquire, within).is_ok()
    }
}

impl Counter for Locked {
    fn admit(&self, quota: u64) -> bool {
        let mut count = self.0.lock().expect("no panic");
        let allowed = *count < quota;
        *count += u64::from(allowed);
        allowed
    }
}

impl Counter for FetchAndAdd {
    fn admit(&self, quota: u64) -> bool {
        self.0.fetch_add(1, AcqRel) < quota
    }
}

fn nanos(counter: &dyn Counter, threads: usize, quota: u64) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                (0..DECISIONS)
                    .filter(|_| black_box(counter).admit(quota))
                    .count()
            });
        }
    });
    start.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
}

fn median(rounds: usize, mut measure: impl FnMut() -> f64) -> f64 {
    let mut times: Vec<f64> = (0..rounds).map(|_| measure()).collect();
    times.sort_by(f64::total_cmp);
    times[rounds / 2]
}

pub fn print_atomic_updates(rounds: usize) {
    println!("\n### ns an update of one contended count\n");
    println!("| | allowed, 1 thread | allowed, 2 threads | denied, 1 thread | denied, 2 threads |");
    println!("|---|---:|---:|---:|---:|");
    let ways: [(&str, Box<dyn Counter>); 3] = [
        (
            "compare-and-swap",
            Box::new(CompareAndSwap(AtomicU64::new(0))),
        ),
        ("mutex", Box::new(Locked(Mutex::new(0)))),
        ("fetch-and-add", Box::new(FetchAndAdd(AtomicU64::new(0)))),
    ];
    for (name, counter) in ways {
        let cell = |threads, quota| median(rounds, || nanos(&*counter, threads, quota));
        let one = cell(1, u64::MAX);
        let two = cell(2, u64::MAX);
        println!(
            "| {name} | {one:.1} | {two:.1} | {:.1} | {:.1} |",
            cell(1, 0),
            cell(2, 0)
        );
    }
}

/// A sliding window of 60 parts, all of them busy.
fn window_nanos(recount: bool) -> f64 {
    let rule: Rule = "sliding-window 1000000000/1m sub-windows=60"
        .parse()
        .expect("a rule");
    let limit: &Limit = rule.limit();
    let mut state = None;
    let mut now = Nanos::from_secs(1_800_000_000);
    let decisions = DECISIONS / 10;
    let start = Instant::now();
    for _ in 0..decisions {
        now = now + Duration::from_millis(100);
        if let (true, Some(State::SlidingWindow(tally))) = (recount, &state) {
            black_box(tally.entries().map(|(_, cost)| cost).sum::<u128>());
        }
        black_box(limit.admit(&mut state, now, Cost::ONE, Mode::Check));
    }
    start.elapsed().as_nanos() as f64 / f64::from(decisions)
}

pub fn print_sums(rounds: usize) {
    println!("\n### ns a decision of a sliding window with 60 sub-windows\n");
    println!("| | |\n|---|---:|");
    println!(
        "| a running sum, as it is | {:.1} |",
        median(rounds, || window_nanos(false))
    );
    println!(
        "| counting again each time | {:.1} |",
        median(rounds, || window_nanos(true))
    );
}
