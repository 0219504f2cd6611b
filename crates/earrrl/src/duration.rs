//! Durations as the rule grammar writes them: `250ms`, `30s`, `1m30s`, `1.5h`.

use alloc::format;
use core::fmt;
use core::time::Duration;

use crate::decimal;
use crate::error::RuleError;

/// The units of a duration, the largest first, with their nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// The units that a rate may name without a number.
pub(crate) const UNIT_NAMES: [&str; 10] = [
    "s", "m", "h", "d", "sec", "second", "min", "minute", "hour", "day",
];

/// Parses a unit without a number, such as `s`, `sec` or `second`. Returns its nanoseconds.
pub(crate) fn parse_unit(text: &str) -> Option<u64> {
    let unit = match text {
        "sec" | "second" => "s",
        "min" | "minute" => "m",
        "hour" => "h",
        "day" => "d",
        unit => unit,
    };
    UNITS
        .iter()
        .take(4)
        .find(|(name, _)| *name == unit)
        .map(|(_, nanos)| *nanos)
}

/// Reads a duration as rules write it: `250ms`, `30s`, `1m30s`, `1.5h`, `1d`.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(earrrl::internal::parse_duration("1m30s")?, Duration::from_secs(90));
/// assert!(earrrl::internal::parse_duration("90").is_err());
/// # Ok::<(), earrrl::RuleError>(())
/// ```
///
/// # Errors
/// Returns an error with an example if the text is no such duration.
pub fn parse_duration(text: &str) -> Result<Duration, RuleError> {
    let wrong = || {
        let shown: alloc::string::String =
            text.chars().take(40).flat_map(char::escape_debug).collect();
        RuleError::syntax(format!(
            "`{shown}` is not a duration such as 250ms, 30s, 1m30s, 1h, 1d"
        ))
    };
    parse(text).map(Duration::from_nanos).ok_or_else(wrong)
}

/// Parses numbers with units, the largest unit first and each unit at most once. Returns
/// nanoseconds; the sum must be a whole number of them.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0u64;
    let mut units = &UNITS[..];
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let place = units.iter().position(|(name, _)| *name == unit)?;
        total = total.checked_add(nanos(number, units[place].1)?)?;
        units = &units[place + 1..];
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

fn nanos(number: &str, unit: u64) -> Option<u64> {
    let billionths = decimal::parse(number)?
        .scaled(9)?
        .checked_mul(u128::from(unit))?;
    let whole = billionths % 1_000_000_000 == 0;
    whole
        .then(|| u64::try_from(billionths / 1_000_000_000).ok())
        .flatten()
}

/// A duration in nanoseconds, displayed in a form that [`parse`] reads back.
pub(crate) struct Text(pub(crate) u64);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        if rest == 0 {
            return f.write_str("0s");
        }
        for (name, nanos) in UNITS {
            if rest >= nanos {
                write!(f, "{}{name}", rest / nanos)?;
                rest %= nanos;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn durations_round_trip() {
        for (text, nanos) in [
            ("250ms", 250_000_000),
            ("30s", 30_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1d", 86_400_000_000_000),
            ("1us5ns", 1_005),
        ] {
            assert_eq!(parse(text), Some(nanos), "{text}");
            assert_eq!(Text(nanos).to_string(), text);
        }
        assert_eq!(parse("1.5s"), Some(1_500_000_000));
        assert_eq!(parse("0.0000000005s"), None);
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "s",
            "10",
            "1s1s",
            "1s1m",
            "1x",
            "-1s",
            "1e3s",
            "1 s",
            "99999999999d",
            "1.s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
