//! Parameters of rules, with their bounds.

use alloc::format;
use core::fmt;
use core::time::Duration;

use crate::arithmetic::count_as_f64;
use crate::cost::Cost;
use crate::error::RuleError;

/// The longest half-life, period or window: ten years including leap days. The slowest rate is one
/// unit in this time.
const LONGEST: Duration = Duration::from_secs(3660 * 86_400);
/// The shortest half-life, period or window.
const SHORTEST: Duration = Duration::from_millis(1);

/// A rate: an amount of cost in a time. `60/1m` and `1/s` are equal rates.
///
/// ```
/// use earrrl::Rate;
/// assert_eq!(Rate::per_minute(60)?.per_second_f64(), 1.0);
/// assert!(Rate::per_second(0).is_err());
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    amount: Cost,
    per: u64,
    per_second: f64,
}

impl Rate {
    /// Returns the rate of `amount` units in every `per`.
    ///
    /// ```
    /// # use earrrl::{Cost, Rate};
    /// # use std::time::Duration;
    /// let rate = Rate::new(Cost::from_units(5), Duration::from_secs(10))?;
    /// assert_eq!(rate.per_second_f64(), 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if `per` is not from 1 ns to 3660 days, or the rate is not from one unit in
    /// ten years to 10^9 units per second.
    pub fn new(amount: Cost, per: Duration) -> Result<Self, RuleError> {
        let nanos = u64::try_from(per.as_nanos()).unwrap_or(u64::MAX);
        if nanos == 0 || per > LONGEST {
            return Err(RuleError::out_of_range(format!(
                "{per:?} is not a time from 1ns to 3660d"
            )));
        }
        // Billionths per nanosecond equal units per second, so the bounds need no division.
        let n = amount.billionths();
        let d = u128::from(nanos);
        if n > d * 1_000_000_000 || n * u128::from(LONGEST.as_secs()) < d {
            let problem =
                format!("{amount} per {per:?} is not from 1 in ten years to 1e9 a second");
            return Err(RuleError::out_of_range(problem));
        }
        Ok(Self {
            amount,
            per: nanos,
            per_second: per_second(amount.billionths(), nanos),
        })
    }

    /// Returns a rate of whole units per second.
    ///
    /// ```
    /// # use earrrl::Rate;
    /// assert_eq!(Rate::per_second(60)?.to_string(), "60/s");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Rate::new`].
    pub fn per_second(units: u64) -> Result<Self, RuleError> {
        Self::new(Cost::from_units(units), Duration::from_secs(1))
    }

    /// Returns a rate of whole units per minute.
    ///
    /// ```
    /// # use earrrl::Rate;
    /// assert_eq!(Rate::per_minute(60)?, Rate::per_second(1)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Rate::new`].
    pub fn per_minute(units: u64) -> Result<Self, RuleError> {
        Self::new(Cost::from_units(units), Duration::from_secs(60))
    }

    /// Returns the rate in cost units per second.
    ///
    /// ```
    /// assert_eq!(earrrl::Rate::per_minute(30)?.per_second_f64(), 0.5);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    #[inline]
    pub fn per_second_f64(self) -> f64 {
        self.per_second
    }

    /// Returns the amount and the time in which it is allowed, as they were given.
    ///
    /// ```
    /// # use earrrl::{Cost, Rate};
    /// # use std::time::Duration;
    /// assert_eq!(Rate::per_minute(60)?.parts(), (Cost::from_units(60), Duration::from_secs(60)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parts(self) -> (Cost, Duration) {
        (self.amount, Duration::from_nanos(self.per))
    }

    /// Returns the rate as a fraction in lowest terms: N units in every D nanoseconds.
    pub(crate) fn lowest_terms(self) -> (u128, u128) {
        let n = self.amount.billionths();
        let d = u128::from(self.per) * 1_000_000_000;
        let common = greatest_common_divisor(n, d);
        (n / common, d / common)
    }
}

impl PartialEq for Rate {
    fn eq(&self, other: &Self) -> bool {
        self.lowest_terms() == other.lowest_terms()
    }
}

pub(crate) fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl fmt::Display for Rate {
    /// Writes the rate in the syntax of the rule grammar, such as `60/m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.amount)?;
        match self.per {
            1_000_000_000 => f.write_str("s"),
            60_000_000_000 => f.write_str("m"),
            3_600_000_000_000 => f.write_str("h"),
            86_400_000_000_000 => f.write_str("d"),
            other => crate::duration::Text(other).fmt(f),
        }
    }
}

/// Checks that a half-life, period or window is within its bounds. Returns it in nanoseconds.
pub(crate) fn span(field: &str, span: Duration) -> Result<u64, RuleError> {
    if span < SHORTEST || span > LONGEST {
        return Err(RuleError::out_of_range(format!(
            "{span:?} is not from 1ms to ten years (3660d)"
        ))
        .of(field));
    }
    Ok(span.as_nanos() as u64)
}

/// Checks that a quota, burst or capacity is above zero.
pub(crate) fn quota(field: &str, quota: Cost) -> Result<Cost, RuleError> {
    if quota.is_zero() {
        return Err(RuleError::out_of_range(format!("{quota} is not above 0")).of(field));
    }
    Ok(quota)
}

/// Converts a count of billionths in a window of nanoseconds to units per second.
pub(crate) fn per_second(billionths: u128, window: u64) -> f64 {
    count_as_f64(billionths) / window as f64
}

/// Converts billionths to whole units, rounded down.
pub(crate) fn whole_units(billionths: u128) -> u64 {
    u64::try_from(billionths / 1_000_000_000).unwrap_or(u64::MAX)
}
