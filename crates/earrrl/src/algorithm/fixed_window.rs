//! Fixed window: a count that starts again at every multiple of the window since the Unix epoch.
//!
//! Known flaw, kept and shown: up to twice the quota in one window's time, half on each side of
//! a boundary.
//!
//! Source: "Rate limiting" notes after Figma's "An alternative approach to rate limiting".

use core::time::Duration;

use super::{Algorithm, Policy};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::parameter;

/// At most `quota` in each window. Leaky.
///
/// ```
/// use earrrl::{Cost, FixedWindow, Limit, Nanos, Mode};
/// use std::time::Duration;
/// let limit = Limit::from(FixedWindow::new(Cost::from_units(2), Duration::from_secs(60))?);
/// let (_, decision) = limit.decide(None, Nanos::from_secs(59), Cost::ONE, Mode::Check);
/// assert_eq!((decision.remaining, decision.reset_after), (1, Duration::from_secs(1)));
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedWindow {
    quota: Cost,
    window: u64,
    policy: Policy,
}

/// The window that was counted in, and its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Windows since the Unix epoch.
    pub window: u64,
    /// Billionths of a unit.
    pub count: u128,
}

impl FixedWindow {
    /// `quota` in every `window` of 1 ms to ten years.
    pub fn new(quota: Cost, window: Duration) -> Result<Self, RuleError> {
        let quota = parameter::quota("quota", quota)?;
        Ok(Self { quota, window: parameter::span("window", window)?, policy: Policy::Leaky })
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

    fn index(&self, now: Nanos) -> u64 {
        now.get() / self.window
    }

    fn until_next(&self, now: Nanos) -> i128 {
        i128::from(self.window - now.get() % self.window)
    }

    /// The state under these parameters: the count goes on in the present window.
    pub(super) fn convert(&self, old: &Self, state: Count, now: Nanos) -> Option<Count> {
        let state = old.advance(Some(state), now)?;
        Some(Count { window: self.index(now), ..state })
    }
}

fn counted(state: Option<&Count>) -> u128 {
    state.map_or(0, |state| state.count)
}

impl Algorithm for FixedWindow {
    type State = Count;

    fn policy(&self) -> Policy {
        self.policy
    }

    fn limit(&self) -> f64 {
        parameter::per_second(self.quota.billionths(), self.window)
    }

    fn advance(&self, state: Option<Count>, now: Nanos) -> Option<Count> {
        state.filter(|state| state.window >= self.index(now))
    }

    fn allows(&self, before: Option<&Count>, _now: Nanos, cost: Cost) -> bool {
        counted(before).saturating_add(cost.billionths()) <= self.quota.billionths()
    }

    fn charge(&self, before: Option<Count>, now: Nanos, cost: Cost) -> Count {
        let window = before.map_or(self.index(now), |state| state.window);
        Count { window, count: counted(before.as_ref()).saturating_add(cost.billionths()) }
    }

    fn refund(&self, state: Count, _now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Count> {
        if state.window != self.index(charged_at) {
            return Some(state);
        }
        let count = state.count.saturating_sub(cost.billionths());
        (count > 0).then_some(Count { count, ..state })
    }

    fn counted(&self, after: Option<&Count>, _now: Nanos) -> Option<f64> {
        Some(parameter::per_second(counted(after), self.window))
    }

    fn remaining(&self, after: Option<&Count>, _now: Nanos) -> u64 {
        parameter::whole_units(self.quota.billionths().saturating_sub(counted(after)))
    }

    fn retry_after(&self, after: Option<&Count>, now: Nanos, cost: Cost) -> Wait {
        if cost > self.quota {
            Wait::Never
        } else if self.allows(after, now, cost) {
            Wait::NONE
        } else {
            Wait::from_nanos(self.until_next(now))
        }
    }

    fn reset_after(&self, after: Option<&Count>, now: Nanos) -> Duration {
        duration_from_nanos(after.map_or(0, |_| self.until_next(now)))
    }
}
