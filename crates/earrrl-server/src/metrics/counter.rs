//! Counters that are spread over several cache lines. If two threads incremented the same word,
//! they would slow each other down by more than a decision takes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The number of cells of a counter. With more threads than cells, some threads share a cell.
pub(super) const CELLS: usize = 16;
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
