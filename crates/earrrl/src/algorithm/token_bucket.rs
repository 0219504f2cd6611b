//! Token bucket = credit pool = GCRA: credits that come back at a steady rate, up to a cap.
//!
//! The balance regenerates lazily, `a = min(C, a + ρ·dt)`, and pays for what it can. What is stored
//! is one time, the `F` at which the pool is full again: a request of cost `c` moves it by `c/ρ`,
//! and is allowed iff `max(F, now) + c/ρ ≤ now + C/ρ`. That is GCRA, the generic cell rate
//! algorithm of ATM, whose theoretical arrival time `F` is.
//!
//! Times are counted in ticks of which a whole number makes one unit's refill wherever the rate's
//! numerator allows it, so that decisions are those of exact rational arithmetic. Elsewhere prices
//! round up and the pool rounds down; but a full pool pays its whole capacity.
//!
//! Source: Matt Nunogawa, "Weighted Credit Pools for API Rate Limiting"; ITU-T I.371.

use alloc::format;
use core::time::Duration;

use super::{Algorithm, Moment, OneTime, Policy};
use crate::arithmetic::{div_ceil, mul_div_ceil, mul_div_floor};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Wait, duration_from_nanos};
use crate::error::RuleError;
use crate::parameter::{self, Rate, greatest_common_divisor};

const BILLION: u128 = 1_000_000_000;
/// At most so many ticks a nanosecond.
const FINEST: u128 = 1 << 20;
/// The longest time to full that is accepted, in nanoseconds: 2000 years.
const SLOWEST: u128 = 2000 * 366 * 86_400 * 1_000_000_000;
/// States saturate here, where every request is denied: [`Moment`] has 88 bits.
const LATEST: i128 = (1 << 87) - 1;

/// A pool of `capacity` credits, refilled at `refill`. Denied requests change nothing.
///
/// ```
/// use earrrl::{Cost, Limit, Nanos, Rate, Mode, TokenBucket};
/// // The article's table: 100 credits, one a minute.
/// let pool = Limit::from(TokenBucket::new(Cost::from_units(100), Rate::per_minute(1)?)?);
/// let (mut state, mut left) = (None, vec![]);
/// for (minute, cost) in [(10, 20), (10, 20), (10, 20), (20, 2)] {
///     let now = Nanos::from_secs(minute * 60);
///     let (after, decision) = pool.decide(state, now, Cost::from_units(cost), Mode::Check);
///     state = after;
///     left.push(decision.remaining);
/// }
/// assert_eq!(left, [80, 60, 40, 48]);
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    capacity: Cost,
    refill: Rate,
    ticks_per_nano: u64,
    /// Ticks that refill one unit, as a fraction.
    unit: (u128, u128),
    /// Ticks that refill one unit, rounded up: what a plain request costs.
    one: i128,
    /// Ticks that fill the whole pool, rounded down.
    full: i128,
}

impl TokenBucket {
    /// A pool of `capacity` that refills at `refill`; it must fill up within 2000 years.
    pub fn new(capacity: Cost, refill: Rate) -> Result<Self, RuleError> {
        let capacity = parameter::quota("capacity", capacity)?;
        let refill = parameter::rate("refill", refill)?;
        let (n, d) = refill.lowest_terms();
        // With a numerator of up to 2^20, N·m ticks a nanosecond make D·m of them a unit, and where
        // there is a fitting m a whole number of them a billionth of a unit too.
        let (ticks_per_nano, unit) = match FINEST / n {
            0 => (FINEST, (d * FINEST, n)),
            m => {
                let divisor = BILLION / greatest_common_divisor(d, BILLION);
                let m = if divisor <= m { m - m % divisor } else { m };
                (n * m, (d * m, 1))
            }
        };
        let full = mul_div_floor(capacity.billionths(), unit.0, unit.1 * BILLION)
            .filter(|full| full / ticks_per_nano <= SLOWEST)
            .ok_or_else(|| {
                RuleError::new(format!("{capacity} at {refill} takes over 2000 years to fill"))
                    .of("capacity")
            })?;
        let mut bucket = Self {
            capacity,
            refill,
            ticks_per_nano: ticks_per_nano as u64,
            unit,
            one: 0,
            full: full as i128,
        };
        bucket.one = bucket.ticks_of(Cost::ONE);
        Ok(bucket)
    }

    /// The most that can be saved up.
    pub fn capacity(&self) -> Cost {
        self.capacity
    }

    /// The rate at which credits come back.
    pub fn refill(&self) -> Rate {
        self.refill
    }

    /// Ticks a nanosecond, the unit of a [`Moment`]; see the module.
    pub fn ticks_per_nano(&self) -> i128 {
        self.ticks_per_nano.into()
    }

    /// Ticks from empty to full.
    pub fn full_ticks(&self) -> i128 {
        self.full
    }

    /// The time to fill up from empty, in seconds.
    pub fn fill_secs(&self) -> f64 {
        self.capacity.as_f64() / self.refill.per_second_f64()
    }

    /// Ticks that `cost` takes to refill, rounded up; what does not fit is more than any capacity.
    fn ticks_of(&self, cost: Cost) -> i128 {
        let ticks = mul_div_ceil(cost.billionths(), self.unit.0, self.unit.1 * BILLION);
        let ticks = ticks.and_then(|ticks| i128::try_from(ticks).ok());
        ticks.map_or(LATEST, |ticks| ticks.min(LATEST))
    }

    /// Ticks that `cost` takes to refill.
    #[inline]
    pub fn price(&self, cost: Cost) -> i128 {
        if cost == Cost::ONE { self.one } else { self.ticks_of(cost) }
    }

    #[inline]
    fn ticks(&self, now: Nanos) -> i128 {
        i128::from(now.get()) * i128::from(self.ticks_per_nano)
    }

    /// When the pool will be full, at the earliest now, in ticks.
    #[inline]
    fn full_at(&self, state: Option<&Moment>, now: Nanos) -> i128 {
        let now = self.ticks(now);
        state.map_or(now, |full_at| full_at.0.max(now))
    }

    /// What is missing from a full pool, in ticks.
    #[inline]
    fn missing(&self, state: Option<&Moment>, now: Nanos) -> i128 {
        self.full_at(state, now) - self.ticks(now)
    }

    /// The balance in units; below zero where delayed requests queue.
    pub fn balance(&self, state: Option<&Moment>, now: Nanos) -> f64 {
        let left = (self.full - self.missing(state, now)) as f64;
        left / (self.unit.0 as f64 / self.unit.1 as f64)
    }

    /// The state under these parameters of a client whose balance was kept under `old`.
    pub(super) fn convert(&self, old: &Self, state: Moment, now: Nanos) -> Option<Moment> {
        let balance = old.balance(Some(&state), now).min(self.capacity.as_f64());
        let missing =
            (self.capacity.as_f64() - balance) * (self.unit.0 as f64 / self.unit.1 as f64);
        Some(Moment(self.ticks(now) + (missing as i128).min(LATEST >> 1)))
    }

    fn wait(&self, ticks: i128) -> i128 {
        div_ceil(ticks, self.ticks_per_nano.into())
    }
}

/// Apart, so that a branch is taken instead of a detour of every decision.
#[cold]
fn latest() -> Moment {
    Moment(LATEST)
}

impl Algorithm for TokenBucket {
    type State = Moment;

    fn policy(&self) -> Policy {
        Policy::Leaky
    }

    fn limit(&self) -> f64 {
        self.refill.per_second_f64()
    }

    #[inline]
    fn advance(&self, state: Option<Moment>, _now: Nanos) -> Option<Moment> {
        state
    }

    #[inline]
    fn allows(&self, before: Option<&Moment>, now: Nanos, cost: Cost) -> bool {
        let full_at = self.full_at(before, now);
        let latest = self.ticks(now) + (self.full - self.price(cost));
        full_at <= latest || (full_at == self.ticks(now) && cost <= self.capacity)
    }

    #[inline]
    fn charge(&self, before: Option<Moment>, now: Nanos, cost: Cost) -> Moment {
        let full_at = self.full_at(before.as_ref(), now) + self.price(cost);
        if full_at > LATEST { latest() } else { Moment(full_at) }
    }

    fn refund(&self, full_at: Moment, now: Nanos, _at: Nanos, cost: Cost) -> Option<Moment> {
        let full_at = full_at.0 - self.price(cost);
        (full_at > self.ticks(now)).then_some(Moment(full_at))
    }

    fn remaining(&self, after: Option<&Moment>, now: Nanos) -> u64 {
        let missing = self.missing(after, now);
        let left = (self.full - missing).max(0) / self.one;
        let whole = missing == 0 && Cost::ONE <= self.capacity;
        u64::try_from(left).unwrap_or(u64::MAX).max(u64::from(whole))
    }

    fn retry_after(&self, after: Option<&Moment>, now: Nanos, cost: Cost) -> Wait {
        if cost > self.capacity {
            return Wait::Never;
        }
        let price = self.price(cost).min(self.full);
        Wait::from_nanos(self.wait(self.missing(after, now) + price - self.full))
    }

    fn reset_after(&self, after: Option<&Moment>, now: Nanos) -> Duration {
        duration_from_nanos(self.wait(self.missing(after, now)))
    }
}

impl OneTime for TokenBucket {
    /// Full by now.
    #[inline]
    fn idle(&self, now: Nanos) -> Moment {
        Moment(self.ticks(now))
    }
}
