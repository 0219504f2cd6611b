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

/// A unit with its name, its number in protobuf messages and its length in seconds.
struct UnitProperties {
    unit: Unit,
    name: &'static str,
    number: i32,
    secs: u64,
}

const fn unit(unit: Unit, name: &'static str, number: i32, secs: u64) -> UnitProperties {
    UnitProperties {
        unit,
        name,
        number,
        secs,
    }
}

/// The properties of every unit, in the order of the units.
const UNITS: [UnitProperties; 7] = [
    unit(Unit::Second, "second", 1, 1),
    unit(Unit::Minute, "minute", 2, 60),
    unit(Unit::Hour, "hour", 3, 3600),
    unit(Unit::Day, "day", 4, 86_400),
    unit(Unit::Month, "month", 5, 30 * 86_400),
    unit(Unit::Year, "year", 6, 365 * 86_400),
    unit(Unit::Week, "week", 7, 7 * 86_400),
];

impl Unit {
    /// Returns the unit of this name, ignoring upper and lower case.
    pub fn parse(name: &str) -> Option<Self> {
        UNITS
            .iter()
            .find(|unit| unit.name.eq_ignore_ascii_case(name))
            .map(|unit| unit.unit)
    }

    /// Returns the unit of this number in protobuf messages.
    pub fn from_number(number: i32) -> Option<Self> {
        UNITS
            .iter()
            .find(|unit| unit.number == number)
            .map(|unit| unit.unit)
    }

    /// Returns the unit that is this many seconds long.
    pub fn from_secs(secs: u64) -> Option<Self> {
        UNITS
            .iter()
            .find(|unit| unit.secs == secs)
            .map(|unit| unit.unit)
    }

    /// Returns the name of the unit.
    pub fn name(self) -> &'static str {
        UNITS[self as usize].name
    }

    /// Returns the number of the unit in protobuf responses.
    pub fn number(self) -> i32 {
        UNITS[self as usize].number
    }

    /// Returns the length of the unit as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_secs(UNITS[self as usize].secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_seconds_belong_together() {
        for UnitProperties {
            unit,
            name,
            number,
            secs,
        } in UNITS
        {
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
