//! The command `CL.THROTTLE` of redis-cell: each call has its own parameters, and the state belongs
//! to a key.
//!
//! The state is the theoretical arrival time of GCRA, which is the time at which the key's bucket
//! is full again. It is stored in units of 2^-16 nanoseconds since the Unix epoch, whatever the
//! parameters are, so that calls for the same key may have different parameters.

use std::fmt;
use std::sync::Arc;

use earrrl::internal::table::{Change, KeyHash, KeyHasher, Table, Word};
use earrrl::{Clock, EngineError};

/// The logarithm to base 2 of the number of time units in a nanosecond.
const UNITS_SHIFT: u32 = 16;
/// The number of time units in a second.
const SECOND: i128 = 1_000_000_000 << UNITS_SHIFT;
/// The longest time, in time units, in which an empty bucket may become full: 2000 years.
const SLOWEST: i128 = 2000 * 366 * 86_400 * SECOND;

/// The validated parameters of a call of `CL.THROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number of time units between two requests at the steady rate.
    interval: i128,
    /// The number of requests that may pass at once: `max_burst` + 1.
    limit: i64,
    /// The number of requests that this call stands for.
    quantity: i64,
}

/// The five integers of the reply to `CL.THROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// True if the call is limited.
    pub limited: bool,
    /// The number of requests that may pass at once: `max_burst` + 1.
    pub limit: i64,
    /// The number of requests that could still pass at once.
    pub remaining: i64,
    /// The time until the call would pass, in whole seconds, rounded up; -1 if the call passed or
    /// can never pass.
    pub retry_after: i64,
    /// The time until the bucket is full again, in whole seconds, rounded up.
    pub reset_after: i64,
}

/// The error for an invalid parameter of `CL.THROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The named parameter is not a whole number between these two bounds.
    Parameter(&'static str, i64, i64),
    /// The bucket would take over 2000 years to fill.
    Slow,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(name, least, most) => {
                write!(f, "{name}: expected a whole number from {least} to {most}")
            }
            Self::Slow => f.write_str("max_burst, count, period: takes over 2000 years to fill"),
        }
    }
}

impl Call {
    /// Validates the parameters of a call; `period` is in seconds.
    ///
    /// # Errors
    /// Returns [`CallError`] if a parameter is out of bounds, or the rate is zero.
    #[inline]
    pub fn new(max_burst: i64, count: i64, period: i64, quantity: i64) -> Result<Self, CallError> {
        within("max_burst", max_burst, 0, i64::MAX - 1)?;
        within("count", count, 1, i64::MAX)?;
        within("period", period, 1, i64::MAX)?;
        within("quantity", quantity, 0, i64::MAX)?;
        let limit = max_burst + 1;
        let interval = interval(count, period).ok_or(CallError::Slow)?;
        let full = interval.checked_mul(limit.into()).ok_or(CallError::Slow)?;
        if full > SLOWEST {
            Err(CallError::Slow)
        } else {
            Ok(Self {
                interval,
                limit,
                quantity,
            })
        }
    }

    /// Returns true if the call has a quantity of zero, so that it changes no state.
    pub fn only_asks(self) -> bool {
        self.quantity == 0
    }

    /// Returns two durations in time units: by how much the call advances the arrival time of its
    /// key, and how far ahead of the present the advanced time may be.
    pub(crate) fn shift(self) -> (Word, Word) {
        let full = self.interval * Word::from(self.limit);
        // A call for more requests than a full bucket holds never passes.
        let by = if self.quantity > self.limit {
            full + 1
        } else {
            self.interval * Word::from(self.quantity)
        };
        (by, full)
    }

    /// Returns the reply to a call for a key whose bucket is full at `full_at`.
    pub(crate) fn answer(self, now: Word, full_at: Option<Word>) -> Throttled {
        self.judge(now, full_at).1
    }

    /// Returns the reply that a policy gives without a state: if `allowed`, all requests pass, and
    /// otherwise none passes for a second.
    pub(crate) fn answer_by_fiat(self, allowed: bool) -> Throttled {
        let untouched = Self {
            quantity: 0,
            ..self
        }
        .judge(0, None)
        .1;
        if allowed || self.quantity == 0 {
            return untouched;
        }
        Throttled {
            limited: true,
            remaining: 0,
            retry_after: 1,
            reset_after: 1,
            ..untouched
        }
    }

    /// Decides a call, and returns the new state of the key and the reply.
    #[inline]
    fn judge(self, now: Word, full_at: Option<Word>) -> (Change, Throttled) {
        let full = self.interval * Word::from(self.limit);
        let full_at = full_at.map_or(now, |full_at| full_at.max(now));
        // A call for more requests than a full bucket holds never passes, so larger quantities are
        // reduced to the smallest such quantity.
        let quantity = self.quantity.min(self.limit.saturating_add(1));
        let after = full_at + self.interval * Word::from(quantity);
        let limited = self.quantity > 0 && after > now + full;
        let (change, left_at) = match limited || self.quantity == 0 {
            true => (Change::Keep, full_at),
            false => (Change::Store(after), after),
        };
        let never = self.quantity > self.limit;
        let throttled = Throttled {
            limited,
            limit: self.limit,
            remaining: quotient((full - (left_at - now)).max(0), self.interval),
            retry_after: if limited && !never {
                seconds(after - now - full)
            } else {
                -1
            },
            reset_after: seconds(left_at - now),
        };
        (change, throttled)
    }
}

/// Returns the number of time units between two requests at the steady rate, rounded up.
#[inline]
fn interval(count: i64, period: i64) -> Option<i128> {
    // For any sensible rate the period fits in 64 bits, and 128-bit division is slow.
    match u64::try_from(Word::from(period).checked_mul(SECOND)?) {
        Ok(period) => Some(period.div_ceil(count.unsigned_abs()).into()),
        Err(_) => {
            let period = Word::from(period) * SECOND;
            let count = Word::from(count);
            Some(period / count + Word::from(period % count != 0))
        }
    }
}

#[inline]
fn within(name: &'static str, value: i64, least: i64, most: i64) -> Result<(), CallError> {
    let good = (least..=most).contains(&value);
    if good {
        Ok(())
    } else {
        Err(CallError::Parameter(name, least, most))
    }
}

/// Converts time units to whole seconds, rounded up.
#[inline]
fn seconds(units: Word) -> i64 {
    quotient(units + (SECOND - 1), SECOND)
}

/// Divides with 64 bits where both numbers fit, which is several times faster than with 128 bits.
#[inline]
fn quotient(dividend: Word, divisor: Word) -> i64 {
    match (u64::try_from(dividend), u64::try_from(divisor)) {
        (Ok(dividend), Ok(divisor)) if divisor > 0 => (dividend / divisor) as i64,
        _ => (dividend / divisor) as i64,
    }
}

/// The states of `CL.THROTTLE` keys, in a bounded table that no rule shares.
pub struct Throttle {
    table: Table,
    hasher: KeyHasher,
    clock: Arc<dyn Clock>,
}

impl Throttle {
    /// Creates a table for `capacity` active keys. It takes memory only once the command is used.
    ///
    /// # Errors
    /// Returns an error if memory, or randomness for the hash function, is not available.
    pub fn new(capacity: usize, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let unavailable = |why: &dyn fmt::Display| EngineError::Unavailable(why.to_string());
        Ok(Self {
            table: Table::reserved(capacity).map_err(|error| unavailable(&error))?,
            hasher: KeyHasher::random().map_err(|error| unavailable(&error))?,
            clock,
        })
    }

    /// Decides a call for a key at the present time of the clock.
    #[inline]
    pub fn throttle(&self, key: KeyHash, call: Call) -> Throttled {
        let now = Word::from(self.clock.now().get()) << UNITS_SHIFT;
        self.table
            .update(key, || now, |full_at| call.judge(now, full_at))
    }

    /// Deletes a key's state. Returns true if the key was not as good as new.
    pub fn delete(&self, key: KeyHash) -> bool {
        let now = Word::from(self.clock.now().get()) << UNITS_SHIFT;
        self.table.update(
            key,
            || now,
            |state| (Change::Remove, state.is_some_and(|at| at > now)),
        )
    }

    /// Replies according to the state that a key has in Redis, where the time is `there`. The state
    /// is also stored in this table at the time of this clock, so that the key continues from it
    /// while Redis is unavailable.
    pub(crate) fn follow(
        &self,
        key: KeyHash,
        call: Call,
        there: Word,
        full_at: Option<Word>,
    ) -> Throttled {
        let (change, answer) = call.judge(there, full_at);
        let after = match change {
            Change::Store(after) => Some(after),
            Change::Keep => full_at,
            Change::Remove => None,
        };
        let here = Word::from(self.clock.now().get()) << UNITS_SHIFT;
        let change = || match after.filter(|after| *after > there) {
            Some(after) => Change::Store(after - there + here),
            None => Change::Remove,
        };
        self.table.update(key, || here, |_| (change(), ()));
        answer
    }

    /// Returns the hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash_bytes(key)
    }

    /// Prefetches the state of a key, and returns the key's hash.
    #[inline]
    pub fn prefetch(&self, key: &[u8]) -> KeyHash {
        let hash = self.hash(key);
        self.table.prefetch(hash);
        hash
    }

    /// Returns the table of states, for metrics.
    pub fn table(&self) -> &Table {
        &self.table
    }
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use earrrl::{ManualClock, Nanos};

    use super::*;

    fn throttle() -> (Throttle, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
        (Throttle::new(100, clock.clone()).unwrap(), clock)
    }

    fn answer(t: &Throttle, call: (i64, i64, i64, i64)) -> [i64; 5] {
        let call = Call::new(call.0, call.1, call.2, call.3).unwrap();
        let got = t.throttle(t.hash(b"k"), call);
        [
            got.limited.into(),
            got.limit,
            got.remaining,
            got.retry_after,
            got.reset_after,
        ]
    }

    /// The calls of the tests of throttled and redis-cell, each as `(ms, quantity)`, with 5
    /// requests at once and 1 a second.
    #[test]
    fn redis_cells_sequence() {
        let (throttle, clock) = throttle();
        let rows: [(u64, i64, [i64; 5]); 16] = [
            (0, 6, [1, 5, 5, -1, 0]),
            (0, 1, [0, 5, 4, -1, 1]),
            (0, 1, [0, 5, 3, -1, 2]),
            (0, 1, [0, 5, 2, -1, 3]),
            (0, 1, [0, 5, 1, -1, 4]),
            (0, 1, [0, 5, 0, -1, 5]),
            (0, 1, [1, 5, 0, 1, 5]),
            (3000, 1, [0, 5, 2, -1, 3]),
            (3100, 1, [0, 5, 1, -1, 4]),
            (4000, 1, [0, 5, 1, -1, 4]),
            (8000, 1, [0, 5, 4, -1, 1]),
            (9500, 1, [0, 5, 4, -1, 1]),
            (9500, 0, [0, 5, 4, -1, 1]),
            (9500, 2, [0, 5, 2, -1, 3]),
            (9500, 5, [1, 5, 2, 3, 3]),
            (15_000, 6, [1, 5, 5, -1, 0]),
        ];
        for (ms, quantity, expected) in rows {
            clock.set(Nanos::from_secs(1_800_000_000) + Duration::from_millis(ms));
            assert_eq!(
                answer(&throttle, (4, 1, 1, quantity)),
                expected,
                "{ms} {quantity}"
            );
        }
    }

    #[test]
    fn what_is_kept_elsewhere_goes_on_here() {
        let (throttle, clock) = throttle();
        let there = Word::from(clock.now().get() + 3_600_000_000_000) << UNITS_SHIFT;
        let call = Call::new(4, 1, 3600, 1).unwrap();
        let key = throttle.hash(b"k");
        let (by, _) = call.shift();
        assert!(
            !throttle
                .follow(key, call, there, Some(there + 3 * by))
                .limited
        );
        assert_eq!(answer(&throttle, (4, 1, 3600, 1)), [0, 5, 0, -1, 5 * 3600]);
        assert!(
            throttle
                .follow(key, call, there, Some(there + 5 * by))
                .limited
        );
        assert_eq!(
            answer(&throttle, (4, 1, 3600, 1)),
            [1, 5, 0, 3600, 5 * 3600]
        );
    }

    #[test]
    fn parameters_belong_to_the_call() {
        let (throttle, _) = throttle();
        assert_eq!(answer(&throttle, (0, 1, 2, 1)), [0, 1, 0, -1, 2]);
        assert_eq!(answer(&throttle, (0, 1, 2, 1)), [1, 1, 0, 2, 2]);
        assert_eq!(answer(&throttle, (9, 1, 1, 1)), [0, 10, 7, -1, 3]);
        assert_eq!(answer(&throttle, (0, 1, 2, 0)), [0, 1, 0, -1, 3]);
    }

    #[test]
    fn uneven_rates_admit_the_whole_burst() {
        let (throttle, clock) = throttle();
        for left in (0..60).rev() {
            assert_eq!(answer(&throttle, (59, 3, 1, 1))[..3], [0, 60, left]);
        }
        assert_eq!(answer(&throttle, (59, 3, 1, 1)), [1, 60, 0, 1, 20 + 1]);
        clock.advance(Duration::from_nanos(333_333_334));
        assert_eq!(answer(&throttle, (59, 3, 1, 1))[0], 0);
    }

    #[test]
    fn absurd_parameters_are_refused_and_large_ones_work() {
        for (call, error) in [
            (
                (-1, 1, 1, 1),
                CallError::Parameter("max_burst", 0, i64::MAX - 1),
            ),
            (
                (i64::MAX, 1, 1, 1),
                CallError::Parameter("max_burst", 0, i64::MAX - 1),
            ),
            ((1, 0, 1, 1), CallError::Parameter("count", 1, i64::MAX)),
            ((1, 1, 0, 1), CallError::Parameter("period", 1, i64::MAX)),
            ((1, 1, -5, 1), CallError::Parameter("period", 1, i64::MAX)),
            ((1, 1, 1, -1), CallError::Parameter("quantity", 0, i64::MAX)),
            ((4_294_967_295, 1, i64::MAX, 1), CallError::Slow),
            ((i64::MAX - 1, 1, i64::MAX, 1), CallError::Slow),
        ] {
            assert_eq!(
                Call::new(call.0, call.1, call.2, call.3),
                Err(error),
                "{call:?}"
            );
        }
        let (throttle, _) = throttle();
        let many = i64::MAX - 1;
        assert_eq!(
            answer(&throttle, (many, i64::MAX, 1, 1))[..2],
            [0, i64::MAX]
        );
        assert_eq!(answer(&throttle, (many, i64::MAX, 1, i64::MAX))[0], 1);
        let (throttle, _) = self::throttle();
        assert_eq!(
            answer(&throttle, (100_000, 1_000_000, 1, 100_001))[..3],
            [0, 100_001, 0]
        );
    }
}
