//! Exponential rate limiting: a moving average in which a rare request counts with its full cost.
//!
//! With `i`, the time since the last request in periods, a request of cost `c` moves the average
//! `R` to `r = (1-e^-i)·c/i + e^-i·R`, at least `c`. It is denied if `r` is above the limit `L`.
//! The first term is the rate of `c` spread over the interval, so that fast requests count one by
//! one, and steady requests by their rate.
//!
//! The wait in the source, `p·ln(r/L)`, ignores the cost of the retry: a client that retries then
//! is denied again. This module solves for the instant at which the retry is allowed.
//!
//! Source: Tony Finch, "Exponential Rate Limiting" (2024), and Exim's `ratelimit` ACL.

use alloc::format;
use alloc::string::String;
use core::num::NonZeroU64;
use core::time::Duration;

use super::places::{Places, waits_text};
use super::{Algorithm, ClientState, Policy, Waits};
use crate::arithmetic::{exp, exp_m1, ln, ln_1p};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::duration;
use crate::error::RuleError;
use crate::grammar::RuleWords;
use crate::parameter;

/// The shortest interval between requests, in periods. It keeps `c/i` finite.
const SHORTEST: f64 = 1e-10;
/// The relative tolerance of the comparison with the limit, so that rounding does not deny the last
/// request of a whole limit.
const TOLERANCE: f64 = 1e-12;
/// The average, in requests, at which a client counts as reset: a request of cost 1 then measures
/// at most 1.01.
const RESET: f64 = 1.01;

/// A limit of `limit` cost units per `period`, measured as an exponentially weighted average. Leaky
/// by default.
///
/// ```
/// use earrrl::{Cost, Limit, Mode, Nanos};
/// use earrrl::algorithm::Exponential;
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
    waits: Waits,
    /// The queue of denied requests.
    places: Places,
    /// The greatest average that is allowed: `limit · (1 + TOLERANCE)`.
    most: f64,
    /// `ln(1 - SHORTEST · most)`, from which the remaining quota follows.
    exhausted: f64,
}

/// The time of a client's last stored request, and its average rate then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The time of the last request that was stored.
    pub at: Nanos,
    /// The average rate at that time, in cost units per period.
    pub rate: f64,
    /// The number of the last place in the queue that a denied request got under [`Waits::Queue`].
    pub place: Option<NonZeroU64>,
}

impl ClientState for Measured {}

impl Exponential {
    /// Returns a limit of `limit` units (at most 10^9) in every `period` (1 ms to ten years).
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::Exponential;
    /// # use std::time::Duration;
    /// let limit = Exponential::new(Cost::from_units(60), Duration::from_secs(60))?;
    /// assert_eq!(limit.quota(), Cost::from_units(60));
    /// assert_eq!(limit.period(), Duration::from_secs(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the limit is 0, or the limit or the period is out of these bounds.
    pub fn new(limit: Cost, period: Duration) -> Result<Self, RuleError> {
        let limit = parameter::quota("limit", limit)?;
        if limit > Cost::from_units(1_000_000_000) {
            return Err(RuleError::out_of_range(format!("{limit} is above 1e9")).of("limit"));
        }
        let period = parameter::span("period", period)?;
        let per_second = limit.as_f64() / (period as f64 / 1e9);
        let most = limit.as_f64() * (1.0 + TOLERANCE);
        Ok(Self {
            limit,
            period,
            policy: Policy::Leaky,
            waits: Waits::Queue,
            places: Places::new(per_second, most, period as f64),
            most,
            exhausted: ln_1p(-SHORTEST * most),
        })
    }

    /// Sets the policy for denied requests; [`Policy::Leaky`] by default.
    ///
    /// ```
    /// # use earrrl::{Cost, Policy};
    /// # use earrrl::algorithm::Exponential;
    /// # use std::time::Duration;
    /// let limit = Exponential::new(Cost::from_units(500), Duration::from_secs(86_400))?;
    /// let strict = limit.with_policy(Policy::Strict);
    /// # let _ = strict;
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Sets the waits that denied requests are told under [`Policy::Strict`]; [`Waits::Queue`] by default. Under
    /// [`Policy::Leaky`] they are always [`Waits::First`].
    pub fn with_waits(self, waits: Waits) -> Self {
        Self { waits, ..self }
    }

    /// Returns the cost that is allowed per period.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::Exponential;
    /// # use std::time::Duration;
    /// let limit = Exponential::new(Cost::from_units(500), Duration::from_secs(86_400))?;
    /// assert_eq!(limit.quota(), Cost::from_units(500));
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn quota(&self) -> Cost {
        self.limit
    }

    /// Returns the averaging period.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// # use earrrl::algorithm::Exponential;
    /// # use std::time::Duration;
    /// let limit = Exponential::new(Cost::from_units(500), Duration::from_secs(86_400))?;
    /// assert_eq!(limit.period(), Duration::from_secs(86_400));
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
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

    /// Returns the time since the state was stored, in periods.
    fn periods_since(&self, state: &Measured, now: Nanos) -> f64 {
        now.get().saturating_sub(state.at.get()) as f64 / self.period as f64
    }

    /// Returns the rate that a request would measure, in cost per period.
    fn measure(&self, before: Option<&Measured>, now: Nanos, cost: f64) -> f64 {
        before.map_or(cost, |state| {
            average(self.periods_since(state, now), cost, state.rate).max(cost)
        })
    }

    /// Returns the state with a cost stored in it at `now`.
    fn charged(&self, before: Option<Measured>, now: Nanos, cost: f64) -> Measured {
        Measured {
            at: before.map_or(now, |state| state.at.max(now)),
            rate: self.measure(before.as_ref(), now, cost),
            place: before.and_then(|state| state.place),
        }
    }

    /// Returns an instant close to the first one at which a request of `cost` is allowed, as Redis computes it too. The
    /// places begin there.
    fn about_earliest(&self, state: &Measured, cost: Cost) -> Nanos {
        let periods = ln(state.rate / self.most) + cost.as_f64() / self.most;
        let nanos = (periods * self.period as f64).max(0.0) as u64;
        Nanos::new(state.at.get().saturating_add(nanos))
    }

    /// Returns the state as another clock tells it, which is ahead by so many nanoseconds.
    #[doc(hidden)]
    pub fn moved(&self, state: Measured, nanos: i128) -> Measured {
        let at = (i128::from(state.at.get()) + nanos).max(0);
        Measured {
            at: Nanos::new(u64::try_from(at).unwrap_or(u64::MAX)),
            place: state
                .place
                .and_then(|last| NonZeroU64::new(self.places.moved(last.get(), nanos))),
            ..state
        }
    }

    /// Returns the nanoseconds between two places in the queue.
    #[doc(hidden)]
    pub fn spacing_nanos(&self) -> u64 {
        self.places.spacing
    }

    /// Returns the nanoseconds from `now` to the instant that is `x` periods after `state`.
    fn nanos_until(&self, x: f64, state: &Measured, now: Nanos) -> i128 {
        let since = now.get().saturating_sub(state.at.get());
        let until = x * self.period as f64;
        let whole = until as i128;
        whole + i128::from(until > whole as f64) - i128::from(since)
    }
}

/// Returns `(1-e^-x)·c/x + e^-x·R`: the average after a request of cost `c`, `x` periods after the
/// average was `R`.
fn average(x: f64, cost: f64, rate: f64) -> f64 {
    let x = x.max(SHORTEST);
    let gone = -exp_m1(-x);
    // For small x, computing 1 - e^-x from a rounded e^-x loses digits, and always in the same
    // direction; `exp_m1` does not.
    let kept = if x < 0.5 {
        rate - gone * rate
    } else {
        exp(-x) * rate
    };
    gone * cost / x + kept
}

/// Returns the least x with `average(x, cost, rate) ≤ most`, for cost ≤ most. The average falls
/// with x and is convex, so Newton's method from the left approaches the solution and never passes
/// it.
fn least_wait(cost: f64, rate: f64, most: f64) -> f64 {
    let mut x = ln(rate / most).max(0.0);
    for _ in 0..100 {
        let at = x.max(SHORTEST);
        // One exponential for the average and its derivative.
        let (gone, kept) = if at < 0.5 {
            let gone = -exp_m1(-at);
            (gone, 1.0 - gone)
        } else {
            let kept = exp(-at);
            (1.0 - kept, kept)
        };
        let average = gone * cost / at + kept * rate;
        let spread = if at < 1e-4 {
            -0.5 + at / 3.0
        } else {
            (kept * (at + 1.0) - 1.0) / (at * at)
        };
        let step = (most - average) / (cost * spread - rate * kept);
        if step.is_nan() || step <= x * f64::EPSILON {
            break;
        }
        x += step;
    }
    x
}

impl Algorithm for Exponential {
    type State = Measured;

    const NAMES: &'static [&'static str] = &["exponential"];

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        let (word, quota, period) = words.quota()?;
        let limit = Self::new(quota, period).map_err(|error| error.at(word.column))?;
        let policy = words.policy(Policy::Leaky)?;
        Ok(limit.with_policy(policy).with_waits(words.waits(policy)?))
    }

    fn write(&self) -> String {
        let period = duration::Text(self.period);
        format!(
            "{} {}/{period} {}{}",
            Self::NAMES[0],
            self.limit,
            self.policy.name(),
            waits_text(self.policy, self.waits)
        )
    }

    fn policy(&self) -> Policy {
        self.policy
    }

    fn allowance(&self) -> (f64, f64) {
        (self.limit.as_f64(), self.period_secs())
    }

    fn limit(&self) -> f64 {
        self.limit.as_f64() / self.period_secs()
    }

    fn meaning(&self) -> [u64; 2] {
        [self.period, 1]
    }

    fn allows(&self, before: Option<&Measured>, now: Nanos, cost: Cost) -> bool {
        self.measure(before, now, cost.as_f64()) <= self.most
    }

    fn charge(&self, before: Option<Measured>, now: Nanos, cost: Cost) -> Measured {
        let after = self.charged(before, now, cost.as_f64());
        let Some((before, last)) = before.zip(after.place) else {
            return after;
        };
        let [earlier, later] = [before, after].map(|state| self.about_earliest(&state, cost));
        let kept = self.places.kept(last.get(), now, earlier, later);
        Measured {
            place: kept.and_then(NonZeroU64::new),
            ..after
        }
    }

    fn deny(&self, before: Option<Measured>, now: Nanos, cost: Cost) -> Measured {
        let after = self.charged(before, now, cost.as_f64());
        if self.waits() == Waits::First {
            return Measured {
                place: None,
                ..after
            };
        }
        let before = before.unwrap_or(after);
        let [earlier, later] = [before, after].map(|state| self.about_earliest(&state, cost));
        // Without a place, the request takes the first one.
        let last = after.place.map_or(0, NonZeroU64::get);
        let place = self.places.next(last, now, earlier, later, cost);
        Measured {
            place: NonZeroU64::new(place),
            ..after
        }
    }

    /// Returns an approximation, since the state does not tell how much of the average the request
    /// still makes up.
    fn refund(&self, s: Measured, _now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Measured> {
        let decay = s.at.get().saturating_sub(charged_at.get()) as f64 / self.period as f64;
        let rate = s.rate - cost.as_f64() * exp(-decay);
        (rate > 0.0).then_some(Measured { rate, ..s })
    }

    /// Charges the cost at `now`, decayed by the time since `charged_at`. An approximation, as a
    /// [`refund`](Self::refund) is.
    fn charge_past(
        &self,
        before: Option<Measured>,
        now: Nanos,
        charged_at: Nanos,
        cost: Cost,
    ) -> Option<Measured> {
        let age = now.get().saturating_sub(charged_at.get()) as f64 / self.period as f64;
        let decayed = cost.as_f64() * exp(-age);
        if decayed == 0.0 {
            return before;
        }
        Some(self.charged(before, now, decayed))
    }

    fn estimate(&self, before: Option<&Measured>, now: Nanos, cost: Cost) -> Option<f64> {
        Some(self.measure(before, now, cost.as_f64()) / self.period_secs())
    }

    /// Solves the recurrence `r' = c·(1-ε/2) + r·(1-ε)`, which requests at one instant follow, for
    /// the number of requests that fit.
    fn remaining(&self, after: Option<&Measured>, now: Nanos) -> u64 {
        let first = self.measure(after, now, 1.0);
        if first > self.most {
            return 0;
        }
        let more = (ln_1p(-SHORTEST * first) - self.exhausted) / SHORTEST;
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

    fn told(&self, after: Option<&Measured>, now: Nanos, cost: Cost, shortest: Wait) -> Wait {
        match after.and_then(|after| Some((after.place?.get(), after))) {
            Some((last, after)) => {
                let earliest = self.about_earliest(after, cost);
                self.places.told(last, earliest, now, shortest)
            }
            None => shortest,
        }
    }

    fn waits(&self) -> Waits {
        self.waits.under(self.policy)
    }

    fn reset_after(&self, after: Option<&Measured>, now: Nanos) -> Duration {
        duration_from_nanos(after.map_or(0, |state| {
            self.nanos_until(least_wait(1.0, state.rate, RESET), state, now)
        }))
    }
}

impl Exponential {
    /// Returns the least wait at which `average` is within the limit, searched around `wait`, which
    /// may be off in its last digits.
    fn settle(&self, state: &Measured, now: Nanos, cost: f64, wait: i128) -> i128 {
        let since = i128::from(now.get().saturating_sub(state.at.get()));
        let allows = |wait: i128| {
            let periods = (since + wait) as f64 / self.period as f64;
            average(periods, cost, state.rate) <= self.most
        };
        let mut low = wait;
        let mut high = wait;
        let mut step = 1;
        while !allows(high) && step < 1 << 60 {
            (low, high, step) = (high, high + step, step * 2);
        }
        step = 1;
        while low > 0 && allows(low) {
            (low, high, step) = ((low - step).max(0), low, step * 2);
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if allows(middle) {
                high = middle
            } else {
                low = middle
            }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Newton's method is off by some nanoseconds in part of the cases.
    #[test]
    fn the_wait_is_right_to_the_last_nanosecond() {
        let at = Nanos::from_secs(1_800_000_000);
        let mut random = Random::new(1);
        let mut corrected = 0;
        for (quota, secs) in [(3, 60), (10, 3600), (1000, 86_400), (7, 30 * 86_400)] {
            let period = Duration::from_secs(secs);
            let limit = Exponential::new(Cost::from_units(quota), period).unwrap();
            for _ in 0..500 {
                let rate = quota as f64 * (1.0 + 3.0 * random.unit());
                let state = Measured {
                    at,
                    rate,
                    place: None,
                };
                let now = at + Duration::from_nanos(random.below(1_000_000));
                let cost = Cost::from_units(1 + random.below(quota));
                let wait = limit.retry_after(Some(&state), now, cost);
                let wait = wait.duration().unwrap();
                let allows = |wait| limit.allows(Some(&state), now + wait, cost);
                assert!(allows(wait), "{cost} {rate}: denied after {wait:?}");
                let before = wait - Duration::from_nanos(1);
                assert!(!allows(before), "{cost} {rate}: allowed before {wait:?}");
                let x = least_wait(cost.as_f64(), rate, limit.most);
                let solved = limit.nanos_until(x, &state, now);
                corrected += usize::from(solved != wait.as_nanos() as i128);
            }
        }
        assert!(corrected > 0, "no case needs the last step");
    }
}
