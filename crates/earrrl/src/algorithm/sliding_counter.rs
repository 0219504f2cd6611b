//! Two-window sliding counter: the last window fades out as the present one fills.
//!
//! What Cloudflare, Kong and Upstash run. With `e` gone of the present window, the last one counts
//! by the share of it that the sliding window still covers: allow iff
//! `prev·(w-e) + (cur+c)·w ≤ q·w`, in integers. It can admit almost twice the quota in one window's
//! time at worst, since it takes the last window's requests as spread evenly.
//!
//! Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains".

use core::time::Duration;

use super::{Algorithm, Policy};
use crate::arithmetic::{mul_div_floor, product_at_most};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::parameter;

/// At most about `quota` in any `window`. Leaky.
///
/// ```
/// use earrrl::{Cost, Limit, Nanos, SlidingCounter, Mode};
/// use std::time::Duration;
/// let limit = Limit::from(SlidingCounter::new(Cost::from_units(5), Duration::from_secs(1))?);
/// let three = Cost::from_units(3);
/// let (state, _) = limit.decide(None, Nanos::new(0), three, Mode::Check);
/// let edge = limit.decide(state, Nanos::from_secs(1), Cost::ZERO, Mode::Peek).1;
/// assert_eq!(edge.remaining, 2); // all three still count at the edge
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingCounter {
    quota: Cost,
    window: u64,
    policy: Policy,
}

/// The counts of a window and of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Windows since the Unix epoch.
    pub window: u64,
    /// Billionths of a unit in it.
    pub current: u128,
    /// Billionths of a unit in the one before.
    pub previous: u128,
}

impl SlidingCounter {
    /// `quota` in about any `window` of 1 ms to ten years.
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

    /// What is left of the present window: `w - e`.
    fn left(&self, now: Nanos) -> u64 {
        self.window - now.get() % self.window
    }

    /// `prev·(w-e)/w + cur`, its first term rounded up.
    fn sum(&self, counts: &Counts, now: Nanos) -> u128 {
        let (left, window) = (u128::from(self.left(now)), u128::from(self.window));
        let faded = crate::arithmetic::mul_div_ceil(counts.previous, left, window);
        faded.unwrap_or(u128::MAX).saturating_add(counts.current)
    }

    /// How much of a window must be left, at most, for `faded·left ≤ room·window`.
    fn left_for(&self, faded: u128, room: u128) -> i128 {
        let left = mul_div_floor(room, u128::from(self.window), faded);
        left.and_then(|left| i128::try_from(left).ok()).unwrap_or(i128::MAX).min(self.window.into())
    }

    /// The state under these parameters: the sum goes on in the present window.
    pub(super) fn convert(&self, old: &Self, state: Counts, now: Nanos) -> Option<Counts> {
        let state = old.advance(Some(state), now)?;
        if old.window == self.window {
            return Some(state);
        }
        Some(Counts { window: self.index(now), current: old.sum(&state, now), previous: 0 })
    }
}

impl Algorithm for SlidingCounter {
    type State = Counts;

    fn policy(&self) -> Policy {
        self.policy
    }

    fn limit(&self) -> f64 {
        parameter::per_second(self.quota.billionths(), self.window)
    }

    fn advance(&self, state: Option<Counts>, now: Nanos) -> Option<Counts> {
        let (state, window) = (state?, self.index(now));
        match window.saturating_sub(state.window) {
            0 => Some(state),
            1 if state.current > 0 => Some(Counts { window, current: 0, previous: state.current }),
            _ => None,
        }
    }

    fn allows(&self, before: Option<&Counts>, now: Nanos, cost: Cost) -> bool {
        let (current, previous) = before.map_or((0, 0), |counts| (counts.current, counts.previous));
        let asked = current.saturating_add(cost.billionths());
        self.quota.billionths().checked_sub(asked).is_some_and(|room| {
            product_at_most((previous, self.left(now).into()), (room, self.window.into()))
        })
    }

    fn charge(&self, before: Option<Counts>, now: Nanos, cost: Cost) -> Counts {
        let counts = before.unwrap_or(Counts { window: self.index(now), current: 0, previous: 0 });
        Counts { current: counts.current.saturating_add(cost.billionths()), ..counts }
    }

    fn refund(&self, counts: Counts, now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Counts> {
        let (mut counts, cost) = (counts, cost.billionths());
        match counts.window.checked_sub(self.index(charged_at)) {
            Some(0) => counts.current = counts.current.saturating_sub(cost),
            Some(1) => counts.previous = counts.previous.saturating_sub(cost),
            _ => {}
        }
        let empty = counts.current == 0 && counts.previous == 0;
        if empty { None } else { self.advance(Some(counts), now) }
    }

    fn counted(&self, after: Option<&Counts>, now: Nanos) -> Option<f64> {
        let (w, left) = (self.window as f64, self.left(now) as f64);
        Some(after.map_or(0.0, |c| (c.previous as f64 * (left / w) + c.current as f64) / w))
    }

    fn remaining(&self, after: Option<&Counts>, now: Nanos) -> u64 {
        let sum = after.map_or(0, |counts| self.sum(counts, now));
        parameter::whole_units(self.quota.billionths().saturating_sub(sum))
    }

    fn retry_after(&self, after: Option<&Counts>, now: Nanos, cost: Cost) -> Wait {
        let Some(room) = self.quota.billionths().checked_sub(cost.billionths()) else {
            return Wait::Never;
        };
        let Some(counts) = after.filter(|_| !self.allows(after, now, cost)) else {
            return Wait::NONE;
        };
        let left = i128::from(self.left(now));
        Wait::from_nanos(match room.checked_sub(counts.current) {
            Some(room) => left - self.left_for(counts.previous, room),
            None => left + i128::from(self.window) - self.left_for(counts.current, room),
        })
    }

    fn reset_after(&self, after: Option<&Counts>, now: Nanos) -> Duration {
        let windows = after.map_or(0, |counts| if counts.current > 0 { 2 } else { 1 });
        let end = i128::from(self.left(now)) + i128::from(self.window) * (windows - 1);
        duration_from_nanos(if windows == 0 { 0 } else { end })
    }
}
