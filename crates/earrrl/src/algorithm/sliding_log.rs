//! Sliding window log: every request of the last window, remembered. Exact, and the largest state.
//!
//! It is bounded: an entry goes once the newer ones sum to more than the quota, equal times merge,
//! and beyond `max_entries` the two oldest merge at the later time, an error on the deny side.
//!
//! Source: "Rate limiting" notes after Figma's "An alternative approach to rate limiting".

use core::time::Duration;

use super::{Algorithm, Policy, Tally};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::parameter;

/// Entries a client, unless said otherwise.
pub const DEFAULT_MAX_ENTRIES: usize = 10_000;

/// At most `quota` in any `(now - window, now]`. Leaky.
///
/// ```
/// use earrrl::{Cost, Limit, Nanos, SlidingLog, Mode};
/// use std::time::Duration;
/// let limit = Limit::from(SlidingLog::new(Cost::ONE, Duration::from_secs(60))?);
/// let (state, _) = limit.decide(None, Nanos::from_secs(59), Cost::ONE, Mode::Check);
/// let (_, decision) = limit.decide(state, Nanos::from_secs(61), Cost::ONE, Mode::Check);
/// assert_eq!(decision.retry_after.duration(), Some(Duration::from_secs(58)));
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingLog {
    quota: Cost,
    window: u64,
    policy: Policy,
    max_entries: usize,
}

impl SlidingLog {
    /// `quota` in any `window` of 1 ms to ten years.
    pub fn new(quota: Cost, window: Duration) -> Result<Self, RuleError> {
        let quota = parameter::quota("quota", quota)?;
        let window = parameter::span("window", window)?;
        Ok(Self { quota, window, policy: Policy::Leaky, max_entries: DEFAULT_MAX_ENTRIES })
    }

    /// Denied attempts count, or do not (the default).
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// At most so many entries a client (at least 1).
    pub fn with_max_entries(self, max_entries: usize) -> Self {
        Self { max_entries: max_entries.max(1), ..self }
    }

    /// The most cost a window.
    pub fn quota(&self) -> Cost {
        self.quota
    }

    /// The window in nanoseconds.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// How many entries a client of requests of cost 1 can have.
    pub(super) fn most_entries(&self) -> usize {
        let quota = parameter::whole_units(self.quota.billionths());
        self.max_entries.min(usize::try_from(quota).unwrap_or(usize::MAX).saturating_add(2))
    }

    /// Entries a client, at the most.
    pub fn max_entries(&self) -> usize {
        self.max_entries
    }

    /// The first instant that still counts at `now`: the window is open at its start.
    fn start(&self, now: Nanos) -> u64 {
        now.get().saturating_add(1).saturating_sub(self.window)
    }

    fn until_left(&self, slot: u64, now: Nanos) -> i128 {
        i128::from(slot) + i128::from(self.window) - i128::from(now.get())
    }
}

fn sum(tally: Option<&Tally>) -> u128 {
    tally.map_or(0, Tally::sum)
}

impl Algorithm for SlidingLog {
    type State = Tally;

    fn policy(&self) -> Policy {
        self.policy
    }

    fn limit(&self) -> f64 {
        parameter::per_second(self.quota.billionths(), self.window)
    }

    fn advance(&self, state: Option<Tally>, now: Nanos) -> Option<Tally> {
        state?.since(self.start(now))
    }

    fn allows(&self, before: Option<&Tally>, _now: Nanos, cost: Cost) -> bool {
        sum(before).saturating_add(cost.billionths()) <= self.quota.billionths()
    }

    fn charge(&self, before: Option<Tally>, now: Nanos, cost: Cost) -> Tally {
        let mut log = before.unwrap_or_default();
        log.add(now.get(), cost.billionths());
        log.drop_outweighed(self.quota.billionths());
        log.merge_oldest(self.max_entries);
        log
    }

    fn refund(&self, mut log: Tally, now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Tally> {
        log.subtract(charged_at.get(), cost.billionths());
        log.since(self.start(now))
    }

    fn counted(&self, after: Option<&Tally>, _now: Nanos) -> Option<f64> {
        Some(parameter::per_second(sum(after), self.window))
    }

    fn remaining(&self, after: Option<&Tally>, _now: Nanos) -> u64 {
        parameter::whole_units(self.quota.billionths().saturating_sub(sum(after)))
    }

    fn retry_after(&self, after: Option<&Tally>, now: Nanos, cost: Cost) -> Wait {
        let Some(room) = self.quota.billionths().checked_sub(cost.billionths()) else {
            return Wait::Never;
        };
        let slot = after.and_then(|log| log.slot_to_leave(room));
        Wait::from_nanos(slot.map_or(0, |slot| self.until_left(slot, now)))
    }

    fn reset_after(&self, after: Option<&Tally>, now: Nanos) -> Duration {
        let newest = after.and_then(Tally::newest);
        duration_from_nanos(newest.map_or(0, |slot| self.until_left(slot, now)))
    }
}
