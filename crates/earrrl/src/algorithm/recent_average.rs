//! Recent average: the estimated average recent request rate (EARRRL).
//!
//! A client's rate is the sum of its past requests, each weighted by its age:
//! `r = λ·Σ cᵢ·e^(-λ(now-tᵢ))`, with `λ = ln 2 / half-life`. Because an exponential decays all of
//! the past by the same factor, one decayed count `N` at one time `T` is enough. Because `N` decays
//! exponentially too, a single instant is enough: `V = T + ln(N)/λ`, at which the count will have
//! decayed to 1.
//!
//! * A request is denied if `N > B`, with `B = L/λ`. This is one comparison, `V > now + ln(B)/λ`.
//! * A request of cost `c` is the state `now + ln(c)/λ`. Storing it merges two states,
//!   `V = max + ln(1 + e^(-λ|V₁-V₂|))/λ`, which needs no clock. Counts of several nodes are merged
//!   in the same way.
//!
//! Under strict, a client whose requests are denied has places in a queue; see `places.rs`. While there are any, the
//! lowest bits of the instant are the number of the last place, and the lowest one is 1. So the state is still one
//! instant, which is then precise to 2^-13 ns. Other instants are even.
//!
//! Source: "EARRRL – the Estimated Average Recent Request Rate Limiter" and its companion
//! "Teaching abusive users a lesson with recent average rate limiters" (CEWMA).

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use super::contract::moments_are_words;
use super::places::{Places, waits_text};
use super::{Algorithm, Moment, Policy, Waits, Word};
use crate::arithmetic::{CELLS, exp, ln, ln_1p, softplus_of_cells, ticks_as_f64};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::duration;
use crate::error::RuleError;
use crate::grammar::RuleWords;
use crate::parameter::{self, Rate};

/// Ticks per nanosecond. Whole nanoseconds would be too coarse: a request moves the state by about
/// `c/r` seconds, and its rounding error adds up over `r/λ` requests.
const TICKS_PER_NANO: i128 = STEP << 20;
/// The ticks between two instants without a place. All computed ticks are whole steps.
const STEP: i128 = 2;
const STEPS_PER_SEC: f64 = 1e9 * (TICKS_PER_NANO / STEP) as f64;
/// The number of lowest bits that have a place: 1, and seven bits of its number.
const PLACE_BITS: u32 = 8;
/// The relative tolerance of comparisons with the limit, so that rounding does not deny the last
/// request of a whole limit.
const TOLERANCE: f64 = 1e-9;

/// A limit of `rate`, averaged over the recent past. Strict by default.
///
/// ```
/// use earrrl::{Cost, Limit, Mode, Nanos, Rate};
/// use earrrl::algorithm::RecentAverage;
/// use std::time::Duration;
/// let limit = Limit::from(RecentAverage::with_half_life(Rate::per_second(1)?, Duration::from_secs(10))?);
/// let (state, first) = limit.decide(None, Nanos::from_secs(0), Cost::ONE, Mode::Check);
/// assert!(first.allowed);
/// assert_eq!(first.rate, Some(0.0)); // measured before this request was counted
/// assert_eq!(first.remaining, 14);   // 10 s / ln 2 = 14.4 at once, and the one that goes over
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecentAverage {
    rate: Rate,
    averaging: Averaging,
    policy: Policy,
    waits: Waits,
    /// The queue of denied requests. Its field `most` is the greatest count that is allowed: `B · (1 + TOLERANCE)`.
    places: Places,
    /// `λ` per tick. The two periods below are the e-folding time `1/λ`, in steps and in seconds.
    lambda: f64,
    /// `λ` per tick, in cells of the table of increments (see `arithmetic/softplus.rs`).
    cells: f64,
    period_steps: f64,
    period_secs: f64,
    /// The threshold `ln(most)/λ`, in ticks: a state farther ahead of the present is over the
    /// limit.
    threshold: i128,
    /// The ticks from the instant at which the count has decayed to 1 to the instant at which the
    /// rate is a hundredth of the limit.
    reset: i128,
}

/// The averaging time in the form in which it was given; `period = half-life / ln 2`.
///
/// ```
/// use earrrl::Rate;
/// use earrrl::algorithm::{RecentAverage, recent_average::Averaging};
/// use std::time::Duration;
///
/// let ten = Duration::from_secs(10);
/// let limit = RecentAverage::with_half_life(Rate::per_second(1)?, ten)?;
/// assert_eq!(limit.averaging(), Averaging::HalfLife(ten));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Averaging {
    /// The time after which a request counts half.
    HalfLife(Duration),
    /// The e-folding time: a request then counts 1/e of its cost.
    Period(Duration),
}

impl RecentAverage {
    /// Returns a limit of `rate` with a half-life of 1 ms to ten years, the time after which a
    /// request counts half. Strict by default.
    ///
    /// ```
    /// # use earrrl::Rate;
    /// # use earrrl::algorithm::RecentAverage;
    /// # use std::time::Duration;
    /// let limit = RecentAverage::with_half_life(Rate::per_second(1)?, Duration::from_secs(10))?;
    /// assert!((limit.period_secs() - 14.427).abs() < 0.001); // 10 s / ln 2
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the half-life is out of these bounds.
    pub fn with_half_life(rate: Rate, half_life: Duration) -> Result<Self, RuleError> {
        Self::new(rate, Averaging::HalfLife(half_life))
    }

    /// Returns a limit of `rate` with an averaging period (`half-life / ln 2`) of 1 ms to ten
    /// years. Strict by default.
    ///
    /// ```
    /// # use earrrl::Rate;
    /// # use earrrl::algorithm::RecentAverage;
    /// # use std::time::Duration;
    /// let limit = RecentAverage::with_period(Rate::per_second(1)?, Duration::from_secs(60))?;
    /// assert_eq!(limit.period_secs(), 60.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the period is out of these bounds.
    pub fn with_period(rate: Rate, period: Duration) -> Result<Self, RuleError> {
        Self::new(rate, Averaging::Period(period))
    }

    fn new(rate: Rate, averaging: Averaging) -> Result<Self, RuleError> {
        let period_secs = match averaging {
            Averaging::HalfLife(time) => {
                parameter::span("half-life", time)? as f64 / 1e9 / core::f64::consts::LN_2
            }
            Averaging::Period(time) => parameter::span("period", time)? as f64 / 1e9,
        };
        let limit = rate.per_second_f64();
        let most = limit * period_secs * (1.0 + TOLERANCE);
        let period_steps = period_secs * STEPS_PER_SEC;
        let period_ticks = period_steps * STEP as f64;
        Ok(Self {
            rate,
            averaging,
            policy: Policy::Strict,
            waits: Waits::Queue,
            places: Places::new(limit, most, period_secs * 1e9),
            lambda: 1.0 / period_ticks,
            cells: CELLS / period_ticks,
            period_steps,
            period_secs,
            threshold: (ln(most) * period_steps) as i128 * STEP,
            reset: (ln(100.0 / (period_secs * limit)) * period_steps) as i128 * STEP,
        })
    }

    /// Sets the policy for denied requests; [`Policy::Strict`] by default.
    ///
    /// ```
    /// # use earrrl::{Policy, Rate};
    /// # use earrrl::algorithm::RecentAverage;
    /// # use std::time::Duration;
    /// let limit = RecentAverage::with_half_life(Rate::per_second(1)?, Duration::from_secs(10))?;
    /// let leaky = limit.with_policy(Policy::Leaky);
    /// # let _ = leaky;
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Sets the waits that denied requests are told under [`Policy::Strict`]; [`Waits::Queue`] by default. Under
    /// [`Policy::Leaky`] they are always [`Waits::First`].
    ///
    /// ```
    /// # use earrrl::{Policy, Rate};
    /// # use earrrl::algorithm::{Algorithm, RecentAverage, Waits};
    /// # use std::time::Duration;
    /// let limit = RecentAverage::with_half_life(Rate::per_second(1)?, Duration::from_secs(10))?;
    /// assert_eq!(limit.waits(), Waits::Queue);
    /// assert_eq!(limit.with_waits(Waits::First).waits(), Waits::First);
    /// assert_eq!(limit.with_policy(Policy::Leaky).waits(), Waits::First);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn with_waits(self, waits: Waits) -> Self {
        Self { waits, ..self }
    }

    /// Returns the allowed rate.
    ///
    /// ```
    /// # use earrrl::Rate;
    /// # use earrrl::algorithm::RecentAverage;
    /// # use std::time::Duration;
    /// let limit = RecentAverage::with_half_life(Rate::per_second(1)?, Duration::from_secs(10))?;
    /// assert_eq!(limit.rate(), Rate::per_second(1)?);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the averaging time in the form in which it was given.
    pub fn averaging(&self) -> Averaging {
        self.averaging
    }

    /// Returns the e-folding time `1/λ` in seconds, which is the half-life divided by ln 2.
    pub fn period_secs(&self) -> f64 {
        self.period_secs
    }

    /// Returns one less than the number of requests of cost 1 that an idle client can send at once:
    /// `B = L/λ`.
    ///
    /// ```
    /// # use earrrl::Rate;
    /// # use earrrl::algorithm::RecentAverage;
    /// # use std::time::Duration;
    /// let limit = RecentAverage::with_period(Rate::per_second(2)?, Duration::from_secs(30))?;
    /// assert_eq!(limit.burst(), 60.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn burst(&self) -> f64 {
        self.rate.per_second_f64() * self.period_secs
    }

    /// Merges two states of one client into one. Counts of several nodes add up exactly.
    ///
    /// ```
    /// # use earrrl::{Nanos, Rate};
    /// # use earrrl::algorithm::RecentAverage;
    /// # use std::time::Duration;
    /// # let limit = RecentAverage::with_period(Rate::per_second(2)?, Duration::from_secs(30))?;
    /// let at = |count| limit.state_with_count(count, Nanos::ZERO);
    /// if let (Some(one), Some(other)) = (at(10.0), at(20.0)) {
    ///     let both = limit.merge(one, other);
    ///     assert!((limit.count(Some(&both), Nanos::ZERO) - 30.0).abs() < 1e-6);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn merge(&self, a: Moment, b: Moment) -> Moment {
        let apart = ticks_as_f64(a.0 - b.0).abs() * self.cells;
        let increment = round_to_steps(softplus_of_cells(apart) * self.period_steps);
        Moment(a.0.max(b.0) + increment * STEP)
    }

    /// Returns the state that follows on `before` after a request at `now`, with the places that are still ahead.
    #[cold]
    #[inline(never)]
    fn keep_place(&self, before: Moment, after: Moment, now: Nanos) -> Moment {
        let after = Moment(after.0 & -STEP);
        let [earlier, later] = [before, after].map(|state| self.earliest(state));
        let last = self.last_place(before);
        let kept = last.and_then(|last| self.places.kept(last, now, earlier, later));
        kept.map_or(after, |place| with_place(after, place))
    }

    #[cold]
    #[inline(never)]
    fn charge_in_queue(&self, before: Moment, now: Nanos, cost: Cost) -> Moment {
        self.keep_place(before, self.merge(before, self.alone(now, cost)), now)
    }

    /// Returns the state with the last place in the queue, unless that is over.
    #[doc(hidden)]
    pub fn with_last_place(&self, state: Moment, last: u64) -> Moment {
        let ahead = self.places.ahead(last, self.earliest(state));
        ahead.map_or(state, |place| with_place(state, place))
    }

    /// Returns the state as another clock tells it, which is ahead by so many nanoseconds.
    #[doc(hidden)]
    pub fn moved(&self, state: Moment, nanos: i128) -> Moment {
        let moved = Moment((state.0 & -STEP) + nanos * TICKS_PER_NANO);
        let last = self.last_place(state);
        let last = last.map(|last| self.places.moved(last, nanos));
        last.map_or(moved, |last| self.with_last_place(moved, last))
    }

    /// Returns the nanoseconds between two places in the queue.
    #[doc(hidden)]
    pub fn spacing_nanos(&self) -> u64 {
        self.places.spacing
    }

    /// Returns the number of the last place that was given to the client.
    fn last_place(&self, state: Moment) -> Option<u64> {
        let has_place = has_place(state) && self.waits() == Waits::Queue;
        let bits = (state.0 >> 1) as u64;
        has_place.then(|| self.places.last(bits, self.earliest(state)))
    }

    /// Returns the first instant at which a request is allowed.
    #[inline]
    fn earliest(&self, state: Moment) -> Nanos {
        let nanos = nanos_up(state.0 - self.threshold);
        Nanos::new(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }

    /// Returns the state of a client that sent `cost` at `now` and nothing else.
    #[inline]
    fn alone(&self, now: Nanos, cost: Cost) -> Moment {
        let now = ticks(now);
        if cost == Cost::ONE {
            Moment(now)
        } else {
            self.alone_at(now, cost)
        }
    }

    /// Kept out of line, since a compiler otherwise computes the logarithm for every request before
    /// the cost is known.
    #[inline(never)]
    fn alone_at(&self, now: i128, cost: Cost) -> Moment {
        Moment(now + (ln(cost.as_f64()) * self.period_steps) as i128 * STEP)
    }

    /// Returns the state of a client whose count is `count` at `now`. The count is capped at 1e30;
    /// a count of 0 or less has no state.
    ///
    /// ```
    /// # use earrrl::{Nanos, Rate};
    /// # use earrrl::algorithm::RecentAverage;
    /// # use std::time::Duration;
    /// # let limit = RecentAverage::with_period(Rate::per_second(2)?, Duration::from_secs(30))?;
    /// let state = limit.state_with_count(42.0, Nanos::ZERO);
    /// assert!((limit.count(state.as_ref(), Nanos::ZERO) - 42.0).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn state_with_count(&self, count: f64, now: Nanos) -> Option<Moment> {
        let age = || (ln(count.min(1e30)) * self.period_steps) as i128 * STEP;
        (count > 0.0).then(|| Moment(ticks(now) + age()))
    }

    /// Returns the decayed count `N` at `now`.
    pub fn count(&self, state: Option<&Moment>, now: Nanos) -> f64 {
        state.map_or(0.0, |v| exp(ticks_as_f64(v.0 - ticks(now)) * self.lambda))
    }

    #[inline]
    fn is_over(&self, state: Option<&Moment>, now: Nanos) -> bool {
        state.is_some_and(|v| v.0 > ticks(now) + self.threshold)
    }
}

#[inline]
fn ticks(now: Nanos) -> i128 {
    i128::from(now.get()) * TICKS_PER_NANO
}

/// Converts ticks to nanoseconds, rounded up.
#[inline]
fn nanos_up(ticks: i128) -> i128 {
    (ticks + (TICKS_PER_NANO - 1)) >> TICKS_PER_NANO.trailing_zeros()
}

#[inline]
fn has_place(state: Moment) -> bool {
    state.0 & 1 == 1
}

/// Returns the nearest state that has the lowest bits of a place.
fn with_place(state: Moment, place: u64) -> Moment {
    const BITS: i128 = 1 << PLACE_BITS;
    let low = i128::from(place) << 1 | 1;
    let up = (low - state.0).rem_euclid(BITS);
    Moment(state.0 + up - if up > BITS / 2 { BITS } else { 0 })
}

/// Rounds to the nearest step. Most increments are at most ln 2 periods and fit 64 bits; requests
/// with a very large cost take the slower 128-bit conversion.
#[inline]
fn round_to_steps(increment: f64) -> i128 {
    if increment < 9e18 {
        (increment + 0.5) as i64 as i128
    } else {
        increment as i128
    }
}

impl Algorithm for RecentAverage {
    type State = Moment;

    const NAMES: &'static [&'static str] = &["recent-average"];

    fn can_delay(&self) -> bool {
        true
    }

    fn read(_name: &str, words: &mut RuleWords<'_>) -> Result<Self, RuleError> {
        let rate = words.next("expected a rate such as 1/s")?.rate()?;
        let half_life = words.option("half-life")?;
        let period = words.option("period")?;
        let limit = match (half_life, period) {
            (Some(word), None) => Self::with_half_life(rate, word.duration()?)
                .map_err(|error| error.at(word.column))?,
            (None, Some(word)) => {
                Self::with_period(rate, word.duration()?).map_err(|error| error.at(word.column))?
            }
            (None, None) => {
                let example = "recent-average 1/s half-life=10s";
                return Err(words.missing("half-life=10s or period=10s", example));
            }
            (Some(_), Some(word)) => {
                return Err(word.error("expected either half-life or period, not both".into()));
            }
        };
        let policy = words.policy(Policy::Strict)?;
        Ok(limit.with_policy(policy).with_waits(words.waits(policy)?))
    }

    fn write(&self) -> String {
        let (option, time) = match self.averaging {
            Averaging::HalfLife(time) => ("half-life", time),
            Averaging::Period(time) => ("period", time),
        };
        let name = Self::NAMES[0];
        let time = duration::Text(time.as_nanos() as u64);
        format!(
            "{name} {} {option}={time} {}{}",
            self.rate,
            self.policy.name(),
            waits_text(self.policy, self.waits)
        )
    }

    #[inline]
    fn policy(&self) -> Policy {
        self.policy
    }

    fn limit(&self) -> f64 {
        self.rate.per_second_f64()
    }

    fn allowance(&self) -> (f64, f64) {
        (self.burst().max(1.0), self.period_secs)
    }

    /// Returns the averaging period, and the version of the state. The allowed rate does not matter, since a
    /// state depends on the period alone.
    fn meaning(&self) -> [u64; 2] {
        [self.period_secs.to_bits(), 1]
    }

    #[inline]
    fn allows(&self, before: Option<&Moment>, now: Nanos, _cost: Cost) -> bool {
        !self.is_over(before, now)
    }

    #[inline]
    fn charge(&self, before: Option<Moment>, now: Nanos, cost: Cost) -> Moment {
        match before {
            Some(before) if has_place(before) => self.charge_in_queue(before, now, cost),
            Some(before) => self.merge(before, self.alone(now, cost)),
            None => self.alone(now, cost),
        }
    }

    #[cold]
    #[inline(never)]
    fn deny(&self, before: Option<Moment>, now: Nanos, cost: Cost) -> Moment {
        let alone = self.alone(now, cost);
        let after = before.map_or(alone, |before| self.merge(before, alone));
        if self.waits() == Waits::First {
            return Moment(after.0 & -STEP);
        }
        let before = before.unwrap_or(after);
        // Without a place, the request takes the first one.
        let last = self.last_place(before).unwrap_or(0);
        let [earlier, later] = [before, after].map(|state| self.earliest(state));
        let place = self.places.next(last, now, earlier, later, cost);
        with_place(after, place)
    }

    /// Subtracts `c·e^(-λ(now-t₀))` from the count. The new state does not depend on the present
    /// time.
    fn refund(&self, v: Moment, now: Nanos, charged_at: Nanos, cost: Cost) -> Option<Moment> {
        let apart = ticks_as_f64(v.0 - ticks(charged_at.min(now))) * self.lambda;
        let share = cost.as_f64() * exp(-apart);
        let moved = || (ln_1p(-share) * self.period_steps) as i128 * STEP;
        (share < 1.0 - 1e-12).then(|| self.keep_place(v, Moment(v.0 + moved()), Nanos::ZERO))
    }

    fn estimate(&self, before: Option<&Moment>, now: Nanos, _cost: Cost) -> Option<f64> {
        Some(self.count(before, now) / self.period_secs)
    }

    fn remaining(&self, after: Option<&Moment>, now: Nanos) -> u64 {
        if self.is_over(after, now) {
            return 0;
        }
        ((self.places.most - self.count(after, now)).max(0.0) as u64).saturating_add(1)
    }

    fn retry_after(&self, after: Option<&Moment>, now: Nanos, _cost: Cost) -> Wait {
        let over = after.map_or(0, |v| v.0 - self.threshold - ticks(now));
        Wait::from_nanos(nanos_up(over))
    }

    fn told(&self, after: Option<&Moment>, now: Nanos, _cost: Cost, shortest: Wait) -> Wait {
        match after.and_then(|after| Some((self.last_place(*after)?, *after))) {
            Some((last, after)) => self.places.told(last, self.earliest(after), now, shortest),
            None => shortest,
        }
    }

    fn waits(&self) -> Waits {
        self.waits.under(self.policy)
    }

    fn reset_after(&self, after: Option<&Moment>, now: Nanos) -> Duration {
        let left = after.map_or(0, |v| v.0 + self.reset - ticks(now));
        duration_from_nanos(nanos_up(left))
    }

    /// Returns the state with a rate of a hundredth of the limit.
    #[inline]
    fn idle(&self, now: Nanos) -> Word {
        ticks(now) - self.reset
    }

    moments_are_words!();
}
