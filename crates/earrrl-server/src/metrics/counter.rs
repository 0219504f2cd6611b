//! Counters that are spread over several cache lines, among them those of the outcomes of each rule's decisions. If two
//! threads incremented the same word, they would slow each other down by more than a decision takes.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use earrrl::Outcome;
use earrrl::internal::lock;

use crate::log::Seldom;

/// The number of cells of a counter. With more threads than cells, some threads share a cell.
const CELLS: usize = 16;
/// The upper bounds of a histogram's buckets, in microseconds.
const BOUNDS: [u64; 12] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 100_000, 1_000_000,
];

/// A counter that never decreases and is cheap to increment from any thread.
#[derive(Debug, Default)]
pub struct Counter([StripedCell; CELLS]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct StripedCell(AtomicU64);

impl Counter {
    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count` to the counter.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0[cell()].0.fetch_add(count, Relaxed);
    }

    /// Returns the value of the counter, which is the sum of all cells.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Relaxed)).sum()
    }
}

/// A counter that never decreases and takes a single word, for kinds of counters of which there are
/// thousands.
#[derive(Debug, Default)]
pub struct SmallCounter(AtomicU64);

impl SmallCounter {
    /// Adds `count` to the counter.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// Returns the value of the counter.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Returns the index of the cell that this thread increments.
#[inline]
pub(super) fn cell() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static CELL: usize = NEXT.fetch_add(1, Relaxed) % CELLS);
    CELL.with(|cell| *cell)
}

/// A histogram of durations, such as those of requests.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BOUNDS.len() + 1],
    nanos: Counter,
}

impl Histogram {
    /// Counts one duration in the histogram.
    #[inline]
    pub fn record(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = BOUNDS
            .iter()
            .position(|bound| micros <= *bound)
            .unwrap_or(BOUNDS.len());
        self.buckets[bucket].increment();
        self.nanos.add(took.as_nanos() as u64);
    }

    /// Returns each upper bound in seconds, with the number of durations up to that bound.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let counts = self.buckets.iter().scan(0, |sum, bucket| {
            *sum += bucket.get();
            Some(*sum)
        });
        BOUNDS
            .iter()
            .map(|micros| *micros as f64 / 1e6)
            .chain([f64::INFINITY])
            .zip(counts)
    }

    /// Returns the sum of all durations in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.nanos.get() as f64 / 1e9
    }
}

/// Counters of a few known names, and one counter for all other names together.
#[derive(Debug)]
pub(super) struct CountsByName<const N: usize> {
    known: [Counter; N],
    other: Counter,
}

impl<const N: usize> Default for CountsByName<N> {
    fn default() -> Self {
        Self {
            known: std::array::from_fn(|_| Counter::default()),
            other: Counter::default(),
        }
    }
}

impl<const N: usize> CountsByName<N> {
    /// Counts an occurrence of the name `seen`.
    pub(super) fn count<T: PartialEq>(&self, names: &[T; N], seen: &T) {
        let place = names.iter().position(|known| known == seen);
        place
            .map_or(&self.other, |place| &self.known[place])
            .increment();
    }

    /// Returns the names that were counted, with their counts.
    pub(super) fn seen<T: ToString>(&self, names: &[T; N]) -> Vec<(String, f64)> {
        let known = names
            .iter()
            .zip(&self.known)
            .map(|(name, counter)| (name.to_string(), counter));
        let all = known.chain([("other".to_owned(), &self.other)]);
        let all = all.map(|(name, counter)| (name, counter.get() as f64));
        all.filter(|(_, count)| *count > 0.0).collect()
    }
}

/// The outcomes that a request can have under a rule, in the order of the variants of `Outcome`.
pub(super) const OUTCOMES: [Outcome; 6] = [
    Outcome::Allow,
    Outcome::Observe,
    Outcome::Quarantine,
    Outcome::Delay,
    Outcome::ShadowBan,
    Outcome::Deny,
];

/// Returns the place of an outcome in [`OUTCOMES`].
fn place(outcome: Outcome) -> usize {
    (outcome as usize).min(OUTCOMES.len() - 1)
}

/// The counters of the outcomes of one rule.
#[derive(Debug, Default)]
pub struct RuleOutcomes {
    cells: [OutcomeCells; CELLS],
    /// The number of requests that lacked an attribute of the rule's key.
    pub missing: Counter,
    /// The number of requests that stated a cost which is none.
    pub invalid_costs: Counter,
    pub(crate) invalid_cost_logged: Seldom,
    observed_logged: Seldom,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct OutcomeCells([AtomicU64; OUTCOMES.len()]);

impl RuleOutcomes {
    /// Counts one request with this outcome.
    #[inline]
    pub fn count(&self, outcome: Outcome) {
        self.cells[cell()].0[place(outcome)].fetch_add(1, Relaxed);
    }

    /// Returns the number of requests with this outcome.
    pub fn get(&self, outcome: Outcome) -> u64 {
        let counts = self.cells.iter().map(|cell| &cell.0[place(outcome)]);
        counts.map(|count| count.load(Relaxed)).sum()
    }

    /// Returns the number of requests with any outcome.
    pub fn total(&self) -> u64 {
        OUTCOMES.map(|outcome| self.get(outcome)).iter().sum()
    }

    /// Logs a request that would have been denied if its rule were not a dry run. At most one
    /// request a second is logged, while the counters include all of them.
    pub fn log_observed(&self, rule: &str, key: &[u8]) {
        if self.observed_logged.is_due(1) {
            let observed = self.get(Outcome::Observe);
            // A key may be a credential, such as a header's value: it is logged at debug level
            // only.
            let client = digest(key);
            tracing::info!(rule, client, observed, "over the limit, not enforced");
            tracing::debug!(rule, client, key = %key.escape_ascii(), "the key of a client");
        }
    }
}

/// Returns a digest of a client's key, which does not reveal the key. The same key has the same
/// digest as long as the process runs.
pub(crate) fn digest(key: &[u8]) -> String {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    format!("{:016x}", SECRET.hash_one(key))
}

/// The counters of all rules since the server started, including removed ones. Configurations bound
/// the number of rules.
#[derive(Debug, Default)]
pub struct Outcomes(Mutex<BTreeMap<String, Arc<RuleOutcomes>>>);

impl Outcomes {
    /// Returns the counters of the rule of this name, which continue across reloads.
    pub fn of_rule(&self, name: &str) -> Arc<RuleOutcomes> {
        Arc::clone(lock(&self.0).entry(name.to_owned()).or_default())
    }

    /// Returns the number of decisions of all rules.
    pub fn total(&self) -> u64 {
        lock(&self.0).values().map(|rule| rule.total()).sum()
    }

    /// Returns the name of each rule with its counters.
    pub(super) fn each(&self) -> Vec<(String, Arc<RuleOutcomes>)> {
        lock(&self.0)
            .iter()
            .map(|(name, rule)| (name.clone(), Arc::clone(rule)))
            .collect()
    }
}
