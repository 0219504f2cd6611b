//! Parameters of rules, with their bounds: what is built here is valid for good.

use alloc::format;
use core::fmt;
use core::time::Duration;

use crate::arithmetic::count_as_f64;
use crate::cost::Cost;
use crate::error::RuleError;

/// Ten years, leap days and all: the longest span, and the slowest rate.
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
    /// `amount` in every `per`: from one in ten years to 10^9 a second.
    ///
    /// # Errors
    /// What is out of these bounds.
    pub fn new(amount: Cost, per: Duration) -> Result<Self, RuleError> {
        let nanos = u64::try_from(per.as_nanos()).unwrap_or(u64::MAX);
        if nanos == 0 || per > LONGEST {
            return Err(RuleError::out_of_range(format!(
                "{per:?} is not a time from 1ns to 3660d"
            )));
        }
        // Billionths a nanosecond are units a second.
        let (n, d) = (amount.billionths(), u128::from(nanos));
        if n > d * 1_000_000_000 || n * u128::from(LONGEST.as_secs()) < d {
            let problem =
                format!("{amount} per {per:?} is not from 1 in ten years to 1e9 a second");
            return Err(RuleError::out_of_range(problem));
        }
        Ok(Self { amount, per: nanos, per_second: per_second(amount.billionths(), nanos) })
    }

    /// Whole units a second.
    ///
    /// # Errors
    /// As [`Rate::new`].
    pub fn per_second(units: u64) -> Result<Self, RuleError> {
        Self::new(Cost::from_units(units), Duration::from_secs(1))
    }

    /// Whole units a minute.
    ///
    /// # Errors
    /// As [`Rate::new`].
    pub fn per_minute(units: u64) -> Result<Self, RuleError> {
        Self::new(Cost::from_units(units), Duration::from_secs(60))
    }

    /// Cost units a second.
    #[inline]
    pub fn per_second_f64(self) -> f64 {
        self.per_second
    }

    /// As it was given: the amount, and the time in which it is allowed.
    pub fn parts(self) -> (Cost, Duration) {
        (self.amount, Duration::from_nanos(self.per))
    }

    /// `N/D` in lowest terms: N units every D nanoseconds.
    pub(crate) fn lowest_terms(self) -> (u128, u128) {
        let (n, d) = (self.amount.billionths(), u128::from(self.per) * 1_000_000_000);
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
    /// As the rule grammar writes it.
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

/// Returns a rate that [`Rate::new`] made: valid already, named where it is not.
pub(crate) fn rate(field: &str, rate: Rate) -> Result<Rate, RuleError> {
    Rate::new(rate.amount, Duration::from_nanos(rate.per)).map_err(|error| error.of(field))
}

/// Returns a half-life, a period or a window, in nanoseconds.
pub(crate) fn span(field: &str, span: Duration) -> Result<u64, RuleError> {
    if span < SHORTEST || span > LONGEST {
        return Err(RuleError::out_of_range(format!(
            "{span:?} is not from 1ms to ten years (3660d)"
        ))
        .of(field));
    }
    Ok(span.as_nanos() as u64)
}

/// Returns a quota, a burst or a capacity: above zero.
pub(crate) fn quota(field: &str, quota: Cost) -> Result<Cost, RuleError> {
    if quota.is_zero() {
        return Err(RuleError::out_of_range(format!("{quota} is not above 0")).of(field));
    }
    Ok(quota)
}

/// Returns a count over a window, in units a second.
pub(crate) fn per_second(billionths: u128, window: u64) -> f64 {
    count_as_f64(billionths) / window as f64
}

/// Returns the whole units of an amount in billionths.
pub(crate) fn whole_units(billionths: u128) -> u64 {
    u64::try_from(billionths / 1_000_000_000).unwrap_or(u64::MAX)
}
