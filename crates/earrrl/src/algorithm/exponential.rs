//! Exponential rate limiting: a moving average that counts rare requests in full.
//!
//! With `i` the time since the last request in periods, `r = (1-e^-i)·c/i + e^-i·R`, at least `c`;
//! denied iff `r > L`. The first term is what `c` spread over the interval amounts to, so that fast
//! requests count one by one, and steady ones by their rate.
//!
//! The source's wait, `p·ln(r/L)`, ignores what the retry itself adds: a client that obeys it is
//! denied again. Here the wait solves for the moment at which the retry is really allowed.
//!
//! Source: Tony Finch, "Exponential Rate Limiting" (2024), and Exim's `ratelimit` ACL.

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::{Algorithm, ClientState, Policy, Replenishment};
use crate::arithmetic::{exp, exp_m1, ln, ln_1p};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::duration;
use crate::error::RuleError;
use crate::grammar::Words;
use crate::parameter;

/// The shortest interval, in periods: what keeps `c/i` finite.
const SHORTEST: f64 = 1e-10;
/// A limit meant as whole is whole.
const TOLERANCE: f64 = 1e-12;
/// As good as new: the next request of cost 1 measures at most a hundredth more than its cost.
const RESET: f64 = 1.01;

/// At most `limit` per `period`, as an exponentially weighted average. Leaky.
///
/// ```
/// use earrrl::{Cost, Exponential, Limit, Nanos, Mode};
/// use std::time::Duration;
/// let limit = Limit::from(Exponential::new(Cost::from_units(60), Duration::from_secs(60))?);
/// let (_, decision) = limit.decide(None, Nanos::ZERO, Cost::ONE, Mode::Check);
/// assert_eq!((decision.rate, decision.remaining), (Some(1.0 / 60.0), 59));
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponential {
    limit: Cost,
    period: u64,
    policy: Policy,
    /// `L(1 + 1e-12)`.
    most: f64,
}

/// The last request that was stored, and the rate then, in cost per period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The time of the last request that was stored.
    pub at: Nanos,
    /// The average then, cost units a period.
    pub rate: f64,
}

impl ClientState for Measured {}

impl Exponential {
    /// `limit` (at most 10^9) in every `period` of 1 ms to ten years.
    ///
    /// # Errors
    /// What is out of these bounds, or a limit of 0.
    pub fn new(limit: Cost, period: Duration) -> Result<Self, RuleError> {
        let limit = parameter::quota("limit", limit)?;
        if limit > Cost::from_units(1_000_000_000) {
            return Err(RuleError::out_of_range(format!("{limit} is above 1e9")).of("limit"));
        }
        let period = parameter::span("period", period)?;
        Ok(Self { limit, period, policy: Policy::Leaky, most: limit.as_f64() * (1.0 + TOLERANCE) })
    }

    /// Denied attempts count, or do not (the default).
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Returns the most cost a period.
    pub fn quota(&self) -> Cost {
        self.limit
    }

    /// Returns the averaging period.
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// Returns the averaging period in nanoseconds.
    #[doc(hidden)]
    pub fn period_nanos(&self) -> u64 {
        self.period
    }

    fn period_secs(&self) -> f64 {
        self.period as f64 / 1e9
    }

    /// Time since the state was stored, in periods.
    fn periods_since(&self, state: &Measured, now: Nanos) -> f64 {
        now.get().saturating_sub(state.at.get()) as f64 / self.period as f64
    }

    /// Returns the rate that a request would measure, in cost per period.
    fn measure(&self, before: Option<&Measured>, now: Nanos, cost: f64) -> f64 {
        before.map_or(cost, |state| {
            average(self.periods_since(state, now), cost, state.rate).max(cost)
        })
    }

    /// Nanoseconds from `now` to the instant at which `x` periods have gone since `state`.
    fn nanos_until(&self, x: f64, state: &Measured, now: Nanos) -> i128 {
        let since = now.get().saturating_sub(state.at.get());
        let until = x * self.period as f64;
        let whole = until as i128;
        whole + i128::from(until > whole as f64) - i128::from(since)
    }
}

/// `(1-e^-x)·c/x + e^-x·R`: a request of cost `c`, `x` periods after the average was `R`.
fn average(x: f64, cost: f64, rate: f64) -> f64 {
    let x = x.max(SHORTEST);
    let gone = -exp_m1(-x);
    // Of small x the double next to e^-x knows less than 1 - e^-x does, and always errs alike.
    let kept = if x < 0.5 { rate - gone * rate } else { exp(-x) * rate };
    gone * cost / x + kept
}

/// Returns the least x with `average(x, cost, rate) ≤ most`, for cost ≤ most. The average falls and is convex:
/// Newton's steps from the left come ever closer, and never pass.
fn least_wait(cost: f64, rate: f64, most: f64) -> f64 {
    let mut x = ln(rate / most).max(0.0);
    for _ in 0..100 {
        let step = (most - average(x, cost, rate)) / slope(x.max(SHORTEST), cost, rate);
        if step.is_nan() || step <= x * f64::EPSILON {
            break;
        }
        x += step;
    }
    x
}

/// Returns the derivative of [`average`] in x.
fn slope(x: f64, cost: f64, rate: f64) -> f64 {
    let e = exp(-x);
    let spread = if x < 1e-4 { -0.5 + x / 3.0 } else { (e * (x + 1.0) - 1.0) / (x * x) };
    cost * spread - rate * e
}

impl Algorithm for Exponential {
    type State = Measured;

    const NAMES: &'static [&'static str] = &["exponential"];

    const EXAMPLES: &'static [&'static str] = &[
        "exponential 10/1m leaky",
        "exponential 10/1m strict",
        "exponential 600/1h leaky",
        "exponential 0.5/1s strict",
    ];

    fn read(_name: &str, words: &mut Words<'_>) -> Result<Self, RuleError> {
        let (word, quota, period) = words.quota()?;
        let limit = Self::new(quota, period).map_err(|error| error.at(word.column))?;
        Ok(limit.with_policy(words.policy(Policy::Leaky)?))
    }

    fn write(&self) -> String {
        let period = duration::Text(self.period);
        format!("{} {}/{period} {}", Self::NAMES[0], self.limit, self.policy.name())
    }

    fn policy(&self) -> Policy {
        self.policy
    }

    fn allowance(&self) -> (f64, f64) {
        (self.limit.as_f64(), self.period_secs())
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Steady
    }

    /// Returns the present rate stays.
    fn convert(&self, old: &Self, state: Measured, now: Nanos) -> Option<Measured> {
        let decayed = state.rate * exp(-old.periods_since(&state, now));
        Some(Measured { at: now, rate: decayed * (self.period as f64 / old.period as f64) })
    }

    fn limit(&self) -> f64 {
        self.limit.as_f64() / self.period_secs()
    }

    fn keeps_states_of(&self, old: &Self) -> bool {
        self.period == old.period
    }

    fn advance(&self, state: Option<Measured>, _now: Nanos) -> Option<Measured> {
        state
    }

    fn allows(&self, before: Option<&Measured>, now: Nanos, cost: Cost) -> bool {
        self.measure(before, now, cost.as_f64()) <= self.most
    }

    fn charge(&self, before: Option<Measured>, now: Nanos, cost: Cost) -> Measured {
        let rate = self.measure(before.as_ref(), now, cost.as_f64());
        Measured { at: before.map_or(now, |state| state.at.max(now)), rate }
    }

    /// Approximate: what the request added by now is not known any more. Never below zero.
    fn refund(&self, s: Measured, _now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Measured> {
        let decay = s.at.get().saturating_sub(charged_at.get()) as f64 / self.period as f64;
        let rate = s.rate - cost.as_f64() * exp(-decay);
        (rate > 0.0).then_some(Measured { rate, ..s })
    }

    fn estimate(&self, before: Option<&Measured>, now: Nanos, cost: Cost) -> Option<f64> {
        Some(self.measure(before, now, cost.as_f64()) / self.period_secs())
    }

    /// At one instant each request finds `r' = c·(1-ε/2) + r·(1-ε)`: solved for how many fit.
    fn remaining(&self, after: Option<&Measured>, now: Nanos) -> u64 {
        let first = self.measure(after, now, 1.0);
        if first > self.most {
            return 0;
        }
        let more = (ln_1p(-SHORTEST * first) - ln_1p(-SHORTEST * self.most)) / SHORTEST;
        1 + more as u64
    }

    fn retry_after(&self, after: Option<&Measured>, now: Nanos, cost: Cost) -> Wait {
        let cost = cost.as_f64();
        if cost > self.most {
            return Wait::Never;
        }
        let Some(state) = after.filter(|_| self.measure(after, now, cost) > self.most) else {
            return Wait::NONE;
        };
        let wait = self.nanos_until(least_wait(cost, state.rate, self.most), state, now);
        Wait::from_nanos(self.settle(state, now, cost, wait.max(1)))
    }

    fn reset_after(&self, after: Option<&Measured>, now: Nanos) -> Duration {
        duration_from_nanos(
            after.map_or(0, |state| {
                self.nanos_until(least_wait(1.0, state.rate, RESET), state, now)
            }),
        )
    }
}

impl Exponential {
    /// Returns the least wait at which the measure itself allows: the solution, but for the last digits.
    fn settle(&self, state: &Measured, now: Nanos, cost: f64, wait: i128) -> i128 {
        let since = i128::from(now.get().saturating_sub(state.at.get()));
        let allows = |wait: i128| {
            let periods = (since + wait) as f64 / self.period as f64;
            average(periods, cost, state.rate) <= self.most
        };
        let (mut low, mut high, mut step) = (wait, wait, 1);
        while !allows(high) && step < 1 << 60 {
            (low, high, step) = (high, high + step, step * 2);
        }
        step = 1;
        while low > 0 && allows(low) {
            (low, high, step) = ((low - step).max(0), low, step * 2);
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if allows(middle) { high = middle } else { low = middle }
        }
        high
    }
}
