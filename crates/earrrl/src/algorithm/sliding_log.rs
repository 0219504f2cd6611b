//! Sliding window log: remembers every request of the last window. Exact, with the largest state of
//! all algorithms.
//!
//! The log is bounded. Requests at the same time share an entry. An entry is outweighed once the
//! newer entries sum to more than the quota: no decision depends on it, unless newer requests are
//! taken back. If more than 32 entries are outweighed, they are merged on a grid of a sixteenth of
//! the window. A merged request counts for longer by less than one cell, and cannot be taken back.
//!
//! When a log has reached half of `max_entries`, requests
//! are merged on a grid: the other half of the entries are equal cells that span the window, and
//! all requests in one cell count as sent at the latest of them. A request then counts for longer
//! than the window by less than one cell, `2 / max_entries` of the window; by default a 5000th, 12
//! ms of a minute. The error only ever denies more, and does not accumulate.
//!
//! Source: "Rate limiting" notes after Figma's "An alternative approach to rate limiting".

use alloc::string::String;
use core::time::Duration;

use super::windowed::{Windowed, tallied, windowed, windowed_terms};
use super::{Algorithm, Policy, Tally};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::grammar::RuleWords;

/// The default limit on the number of entries per client.
pub const DEFAULT_MAX_ENTRIES: usize = 10_000;

/// The number of cells in a window in which outweighed entries are merged.
const OUTWEIGHED_CELLS: u64 = 16;

/// The greatest error, in nanoseconds, of a present-day time that was converted to a double and
/// back.
const READ_BACK: u64 = 240;

/// A limit of `quota` cost units in any interval `(now - window, now]`. Leaky by default.
///
/// ```
/// use earrrl::{Cost, Limit, Mode, Nanos};
/// use earrrl::algorithm::SlidingLog;
/// use std::time::Duration;
/// let limit = Limit::from(SlidingLog::new(Cost::ONE, Duration::from_secs(60))?);
/// let (state, _) = limit.decide(None, Nanos::from_secs(59), Cost::ONE, Mode::Check);
/// let (_, decision) = limit.decide(state, Nanos::from_secs(61), Cost::ONE, Mode::Check);
/// assert_eq!(decision.retry_after.duration(), Some(Duration::from_secs(58)));
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingLog {
    terms: Windowed,
    max_entries: usize,
}

windowed!(SlidingLog);

impl SlidingLog {
    /// Returns a limit of `quota` in any `window` of 1 ms to ten years.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::SlidingLog;
    /// # use std::time::Duration;
    /// let limit = SlidingLog::new(Cost::from_units(60), Duration::from_secs(60))?;
    /// assert_eq!(limit.quota(), Cost::from_units(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the quota is 0 or the window is out of these bounds.
    pub fn new(quota: Cost, window: Duration) -> Result<Self, RuleError> {
        Ok(Self {
            terms: Windowed::new(quota, window)?,
            max_entries: DEFAULT_MAX_ENTRIES,
        })
    }

    /// Sets the most entries per client (at least 1). In a log with more requests, requests are
    /// merged in cells of `2 / max_entries` of the window, and of at least 1 µs: more entries make
    /// finer cells.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::SlidingLog;
    /// # use std::time::Duration;
    /// # let limit = SlidingLog::new(Cost::from_units(60), Duration::from_secs(60))?;
    /// let limit = limit.with_max_entries(1001);
    /// assert_eq!((limit.max_entries(), limit.exact_entries()), (1001, 500));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_max_entries(self, max_entries: usize) -> Self {
        Self {
            max_entries: max_entries.max(1),
            ..self
        }
    }

    /// Returns the most entries that a client's log has.
    pub fn max_entries(&self) -> usize {
        self.max_entries
    }

    /// Returns the number of entries up to which each request keeps its own time.
    pub fn exact_entries(&self) -> usize {
        (self.max_entries - 1) / 2
    }

    /// Returns the length of the cells in which a full log merges requests, in whole microseconds.
    /// A window touches one cell more than it spans.
    pub fn grain(&self) -> Duration {
        Duration::from_nanos(self.grain_nanos())
    }

    /// Returns the length of the cells in nanoseconds.
    #[doc(hidden)]
    pub fn grain_nanos(&self) -> u64 {
        match (self.max_entries - 1 - self.exact_entries()) as u64 {
            0 => u64::MAX,
            cells => self.terms.window.div_ceil(cells).next_multiple_of(1000),
        }
    }

    /// Returns the length of the cells in which outweighed entries are merged, in whole
    /// microseconds.
    #[doc(hidden)]
    pub fn outweighed_grain_nanos(&self) -> u64 {
        let cell = self.terms.window.div_ceil(OUTWEIGHED_CELLS);
        cell.next_multiple_of(1000)
    }

    fn merge_outweighed(&self, log: &mut Tally) {
        let quota = self.terms.quota.billionths();
        log.merge_outweighed(quota, self.outweighed_grain_nanos());
    }

    fn is_crowded(&self, log: &Tally) -> bool {
        log.entries().len() >= self.exact_entries()
    }

    fn until_left(&self, slot: u64, now: Nanos) -> i128 {
        self.terms.until_left(slot, now)
    }
}

impl Algorithm for SlidingLog {
    type State = Tally;

    const NAMES: &'static [&'static str] = &["sliding-log"];

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        Ok(Self {
            terms: Windowed::read(words)?,
            max_entries: DEFAULT_MAX_ENTRIES,
        })
    }

    fn write(&self) -> String {
        self.terms.write(Self::NAMES[0], "")
    }

    tallied!(cost => cost);

    /// Returns the bytes of the longest log. The quota does not bound it, since requests may cost less than 1.
    fn most_heap_bytes(&self) -> usize {
        Tally::bytes_of(self.max_entries)
    }

    fn meaning(&self) -> [u64; 2] {
        [self.terms.window, self.max_entries as u64]
    }

    fn advance(&self, state: Option<Tally>, now: Nanos) -> Option<Tally> {
        state?.since(self.terms.start(now))
    }

    fn charge(&self, before: Option<Tally>, now: Nanos, cost: Cost) -> Tally {
        let mut log = before.unwrap_or_default();
        if self.is_crowded(&log) {
            log.gather(now.get(), self.grain_nanos());
        }
        log.add(now.get(), cost.billionths());
        self.merge_outweighed(&mut log);
        log
    }

    fn refund(&self, mut log: Tally, now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Tally> {
        let slot = match self.is_crowded(&log) {
            true => log.now_at(charged_at.get(), self.grain_nanos()),
            false => log.nearest(charged_at.get(), READ_BACK),
        };
        log.subtract(slot, cost.billionths());
        log.since(self.terms.start(now))
    }

    fn charge_past(
        &self,
        before: Option<Tally>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<Tally> {
        if charged_at.get() < self.terms.start(now) {
            return before;
        }
        let mut log = before.unwrap_or_default();
        let grain = if self.is_crowded(&log) {
            self.grain_nanos()
        } else {
            1
        };
        log.insert(charged_at.get(), cost.billionths(), grain);
        self.merge_outweighed(&mut log);
        Some(log)
    }
}
