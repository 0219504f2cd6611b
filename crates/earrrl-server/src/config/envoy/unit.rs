//! The units of time in which the limits of envoyproxy/ratelimit are given.

use std::time::Duration;

/// A unit of time. A limit's windows begin at multiples of the unit since the Unix epoch, so a week
/// begins on a Thursday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
    /// Seven days.
    Week,
}

/// Every unit with its name, its number in protobuf messages and its length in seconds.
const UNITS: [(Unit, &str, i32, u64); 7] = [
    (Unit::Second, "second", 1, 1),
    (Unit::Minute, "minute", 2, 60),
    (Unit::Hour, "hour", 3, 3600),
    (Unit::Day, "day", 4, 86_400),
    (Unit::Month, "month", 5, 30 * 86_400),
    (Unit::Year, "year", 6, 365 * 86_400),
    (Unit::Week, "week", 7, 7 * 86_400),
];

impl Unit {
    /// Returns the unit of this name, ignoring upper and lower case.
    pub fn parse(name: &str) -> Option<Self> {
        UNITS.iter().find(|unit| unit.1.eq_ignore_ascii_case(name)).map(|unit| unit.0)
    }

    /// Returns the unit of this number in protobuf messages.
    pub fn from_number(number: i32) -> Option<Self> {
        UNITS.iter().find(|unit| unit.2 == number).map(|unit| unit.0)
    }

    /// Returns the unit that is this many seconds long.
    pub fn from_secs(secs: u64) -> Option<Self> {
        UNITS.iter().find(|unit| unit.3 == secs).map(|unit| unit.0)
    }

    /// Returns the name of the unit.
    pub fn name(self) -> &'static str {
        UNITS[self as usize].1
    }

    /// Returns the number of the unit in protobuf responses.
    pub fn number(self) -> i32 {
        UNITS[self as usize].2
    }

    /// Returns the length of the unit as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs(UNITS[self as usize].3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_seconds_belong_together() {
        for (unit, name, number, secs) in UNITS {
            assert_eq!(Unit::parse(&name.to_uppercase()), Some(unit));
            assert_eq!(Unit::from_number(number), Some(unit));
            assert_eq!(Unit::from_secs(secs), Some(unit));
            assert_eq!(
                (unit.name(), unit.number(), unit.duration().as_secs()),
                (name, number, secs)
            );
        }
        assert_eq!((Unit::parse("unknown"), Unit::from_number(0)), (None, None));
    }
}
