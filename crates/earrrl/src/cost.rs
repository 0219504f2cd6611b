//! Costs, quotas and balances in whole billionths of a unit, so that sums are exact.

use alloc::format;
use core::fmt;
use core::str::FromStr;

use crate::arithmetic::count_as_f64;
use crate::decimal;
use crate::error::RuleError;

/// An amount of cost: a whole number of billionths of a unit, at most 10^18 units.
///
/// ```
/// use earrrl::Cost;
/// let tenth: Cost = "0.1".parse()?;
/// assert_eq!(tenth + tenth + tenth, "0.3".parse()?);
/// assert!(Cost::try_from(f64::NAN).is_err());
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cost(u128);

impl Cost {
    /// No cost: a request of this cost is judged, but never stored.
    pub const ZERO: Self = Self(0);
    /// The cost of a plain request.
    pub const ONE: Self = Self::from_units(1);
    /// The greatest cost: 10^18 units.
    pub const MAX: Self = Self::from_units(1_000_000_000_000_000_000);

    /// Returns a cost of `units` whole units, at most [`Cost::MAX`].
    ///
    /// ```
    /// # use earrrl::Cost;
    /// assert_eq!(Cost::from_units(3), "3".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn from_units(units: u64) -> Self {
        const GREATEST: u64 = 1_000_000_000_000_000_000;
        let units = if units > GREATEST { GREATEST } else { units };
        Self(units as u128 * 1_000_000_000)
    }

    /// Returns a cost of `billionths` billionths of a unit, at most [`Cost::MAX`].
    ///
    /// ```
    /// # use earrrl::Cost;
    /// assert_eq!(Cost::from_billionths(2_500_000_000), "2.5".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn from_billionths(billionths: u128) -> Self {
        if billionths > Self::MAX.0 {
            Self::MAX
        } else {
            Self(billionths)
        }
    }

    /// Returns the cost in billionths of a unit.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// assert_eq!("2.5".parse::<Cost>()?.billionths(), 2_500_000_000);
    /// # Ok::<(), earrrl::RuleError>(())
    /// ```
    #[inline]
    pub const fn billionths(self) -> u128 {
        self.0
    }

    /// Returns the cost in units, rounded to the nearest double.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// assert_eq!("2.5".parse::<Cost>()?.as_f64(), 2.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn as_f64(self) -> f64 {
        if self.0 == Self::ONE.0 {
            1.0
        } else {
            count_as_f64(self.0) / 1e9
        }
    }

    /// Returns this cost less `other`, and 0 if `other` is greater.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// assert_eq!(Cost::ONE.saturating_sub(Cost::from_units(2)), Cost::ZERO);
    /// ```
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns true if the cost is 0.
    ///
    /// ```
    /// # use earrrl::Cost;
    /// assert!(Cost::ZERO.is_zero() && !Cost::ONE.is_zero());
    /// ```
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl core::ops::Add for Cost {
    type Output = Self;
    /// Adds two costs; the sum is at most [`Cost::MAX`].
    fn add(self, other: Self) -> Self {
        Self::from_billionths(self.0.saturating_add(other.0))
    }
}

impl FromStr for Cost {
    type Err = RuleError;

    /// Parses a decimal with an optional fraction and exponent. The cost is exact.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        if let Some(units) = decimal::short_whole(text) {
            return Ok(Self::from_units(units));
        }
        let decimal = decimal::parse(text).ok_or_else(|| {
            RuleError::syntax(format!("`{text}` is not a decimal number from 0 to 1e18"))
        })?;
        let billionths = decimal
            .scaled(9)
            .filter(|billionths| *billionths <= Self::MAX.0);
        billionths.map(Self).ok_or_else(|| {
            RuleError::syntax(format!(
                "`{text}` is not a whole multiple of 1e-9 up to 1e18"
            ))
        })
    }
}

impl TryFrom<f64> for Cost {
    type Error = RuleError;

    /// Converts `units`, rounded to the nearest billionth.
    fn try_from(units: f64) -> Result<Self, RuleError> {
        if !(0.0..=1e18).contains(&units) {
            return Err(RuleError::out_of_range(format!(
                "`{units}` is not a number from 0 to 1e18"
            )));
        }
        Ok(Self::from_billionths((units * 1e9 + 0.5) as u128))
    }
}

impl fmt::Display for Cost {
    /// Writes the shortest exact decimal, without an exponent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0 / 1_000_000_000;
        let fraction = self.0 % 1_000_000_000;
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{fraction:09}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn decimals_are_exact_and_printed_back() {
        for (text, billionths, printed) in [
            ("1", 1_000_000_000, "1"),
            ("0.1", 100_000_000, "0.1"),
            ("1e-9", 1, "0.000000001"),
            ("12.50", 12_500_000_000, "12.5"),
            (
                "1e15",
                1_000_000_000_000_000_000_000_000,
                "1000000000000000",
            ),
            ("0", 0, "0"),
        ] {
            let cost: Cost = text.parse().unwrap();
            assert_eq!(cost.billionths(), billionths, "{text}");
            assert_eq!(cost.to_string(), printed);
        }
    }

    #[test]
    fn what_is_no_cost_is_refused() {
        for text in [
            "",
            "-1",
            "NaN",
            "inf",
            "1e-10",
            "1e19",
            "0x10",
            "1,5",
            ".",
            "1e",
            "1e999999999",
        ] {
            assert!(text.parse::<Cost>().is_err(), "{text}");
        }
        for number in [-1.0, f64::NAN, f64::INFINITY, 1e19] {
            assert!(Cost::try_from(number).is_err(), "{number}");
        }
        assert_eq!(Cost::try_from(0.3).unwrap(), "0.3".parse().unwrap());
    }
}
