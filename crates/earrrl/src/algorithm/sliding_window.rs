//! Hybrid sliding window: counts in `k` sub-windows, added up. The log, at a bounded size.
//!
//! *Lenient* adds the present sub-window and the `k-1` before it, and may admit a little over the
//! quota; *harsh*, the default, adds one more, and never admits more than the quota in any window.
//!
//! Source: "Rate limiting" notes after Figma's "An alternative approach to rate limiting".

use alloc::format;
use core::time::Duration;

use super::{Algorithm, Policy, Tally};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::parameter;

/// Sub-windows a window, at the most; also the most that is chosen by default.
const MOST: u64 = 10_000;
const DEFAULT_MOST: u64 = 60;

/// Which sub-windows count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edge {
    /// The present one and the `k` before it: never over the quota in any window.
    Harsh,
    /// The present one and the `k-1` before it: up to a sub-window's cost over the quota.
    Lenient,
}

/// At most `quota` in any `window`, counted in sub-windows. Leaky and harsh.
///
/// ```
/// use earrrl::{Cost, Limit, Nanos, SlidingWindow, Mode};
/// use std::time::Duration;
/// let limit = SlidingWindow::new(Cost::from_units(600), Duration::from_secs(3600))?;
/// assert_eq!(limit.sub_windows(), 60);
/// let (_, decision) = Limit::from(limit).decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
/// assert_eq!(decision.remaining, 599);
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingWindow {
    quota: Cost,
    window: u64,
    sub_windows: u64,
    edge: Edge,
    policy: Policy,
}

impl SlidingWindow {
    /// `quota` in any `window` of 1 ms to ten years, in as many sub-windows up to 60 as make whole
    /// nanoseconds.
    pub fn new(quota: Cost, window: Duration) -> Result<Self, RuleError> {
        let quota = parameter::quota("quota", quota)?;
        let window = parameter::span("window", window)?;
        let whole = (1..=DEFAULT_MOST).rev().find(|k| window % k == 0);
        let sub_windows = whole.unwrap_or(1);
        Ok(Self { quota, window, sub_windows, edge: Edge::Harsh, policy: Policy::Leaky })
    }

    /// In so many sub-windows: 1 to 10 000.
    pub fn with_sub_windows(self, sub_windows: u64) -> Result<Self, RuleError> {
        if !(1..=MOST).contains(&sub_windows) {
            let problem = format!("{sub_windows} is not from 1 to {MOST}");
            return Err(RuleError::new(problem).of("sub-windows"));
        }
        Ok(Self { sub_windows, ..self })
    }

    /// Which sub-windows count: harsh by default.
    pub fn with_edge(self, edge: Edge) -> Self {
        Self { edge, ..self }
    }

    /// Denied attempts count, or do not (the default).
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// The most cost a window.
    pub fn quota(&self) -> Cost {
        self.quota
    }

    /// The window in nanoseconds.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Sub-windows a window.
    pub fn sub_windows(&self) -> u64 {
        self.sub_windows
    }

    /// Which sub-windows count.
    pub fn edge(&self) -> Edge {
        self.edge
    }

    /// The sub-window of an instant: `⌊now·k/w⌋`.
    fn slot(&self, now: Nanos) -> u64 {
        (u128::from(now.get()) * u128::from(self.sub_windows) / u128::from(self.window)) as u64
    }

    /// Sub-windows from a count to the one that no longer sees it.
    fn lifetime(&self) -> u64 {
        self.sub_windows + u64::from(self.edge == Edge::Harsh)
    }

    /// Time until a sub-window is no longer counted.
    fn until_left(&self, slot: u64, now: Nanos) -> i128 {
        self.start(u128::from(slot) + u128::from(self.lifetime())) as i128 - i128::from(now.get())
    }

    /// The first instant of a sub-window: the least that `slot` sends there.
    fn start(&self, slot: u128) -> u128 {
        (slot * u128::from(self.window)).div_ceil(u128::from(self.sub_windows))
    }

    /// The state under these parameters: each count goes where its sub-window ended, if it did.
    pub(super) fn convert(&self, old: &Self, state: Tally, now: Nanos) -> Option<Tally> {
        let end = |slot| (old.start(u128::from(slot) + 1) - 1).min(now.get().into()) as u64;
        let moved = state.entries().map(|(slot, cost)| (self.slot(Nanos::new(end(slot))), cost));
        self.advance(Some(Tally::from_entries(moved)), now)
    }
}

fn sum(tally: Option<&Tally>) -> u128 {
    tally.map_or(0, Tally::sum)
}

impl Algorithm for SlidingWindow {
    type State = Tally;

    fn policy(&self) -> Policy {
        self.policy
    }

    fn limit(&self) -> f64 {
        parameter::per_second(self.quota.billionths(), self.window)
    }

    fn advance(&self, state: Option<Tally>, now: Nanos) -> Option<Tally> {
        state?.since((self.slot(now) + 1).saturating_sub(self.lifetime()))
    }

    fn allows(&self, before: Option<&Tally>, _now: Nanos, cost: Cost) -> bool {
        sum(before).saturating_add(cost.billionths()) <= self.quota.billionths()
    }

    fn charge(&self, before: Option<Tally>, now: Nanos, cost: Cost) -> Tally {
        let mut tally = before.unwrap_or_default();
        tally.add(self.slot(now), cost.billionths());
        tally
    }

    fn refund(&self, mut tally: Tally, now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Tally> {
        tally.subtract(self.slot(charged_at), cost.billionths());
        self.advance(Some(tally), now)
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
        let slot = after.and_then(|tally| tally.slot_to_leave(room));
        Wait::from_nanos(slot.map_or(0, |slot| self.until_left(slot, now)))
    }

    fn reset_after(&self, after: Option<&Tally>, now: Nanos) -> Duration {
        let newest = after.and_then(Tally::newest);
        duration_from_nanos(newest.map_or(0, |slot| self.until_left(slot, now)))
    }
}
