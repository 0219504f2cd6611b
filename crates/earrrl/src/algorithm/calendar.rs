//! Calendar periods as windows: days, ISO weeks, months and years in a time zone.
//!
//! A period begins at the first instant whose local date is its first date, and ends where the next one
//! begins. So a day has 23 or 25 hours where daylight saving time begins or ends, and the arithmetic of dates
//! is that of the proleptic Gregorian calendar: the days since 1970-01-01, in integers.

use alloc::format;
use alloc::string::String;

use super::time_zone::TimeZone;
use crate::clock::Nanos;
use crate::error::RuleError;
use crate::grammar::{RuleWords, Word};

const DAY_SECONDS: i64 = 86_400;
const SECOND_NANOS: i128 = 1_000_000_000;
/// The days from Monday 1969-12-29, from which days and weeks are counted, to the epoch.
const DAYS_TO_EPOCH: i64 = 3;
/// The year from which months and years are counted. No number of a period since the epoch is below zero.
const FIRST_YEAR: i64 = 1968;
/// The mean length of a year in the Gregorian calendar.
const MEAN_YEAR_SECONDS: u64 = 31_556_952;

/// The unit of a calendar's periods.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Unit {
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    fn named(name: &str) -> Option<Self> {
        let units = [Self::Day, Self::Week, Self::Month, Self::Year];
        units.into_iter().find(|unit| unit.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

/// Successive periods of the calendar in a time zone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Calendar {
    unit: Unit,
    /// The month from 0 to 11 and the day from 1 to 31 with which a year begins, or the day with which a month
    /// begins. A shorter month's last day stands for a day that it lacks.
    from: (i64, i64),
    zone: TimeZone,
}

impl Calendar {
    /// Parses the options `tz=` and `from=` of a quota in each `period`. Returns `None` if that is a duration.
    /// A day without a time zone is one, since every day of UTC has 24 hours.
    pub(super) fn read(
        period: Word<'_>,
        words: &mut RuleWords<'_>,
    ) -> Result<Option<Self>, RuleError> {
        let (zone, from) = (words.option("tz")?, words.option("from")?);
        let Some(unit) = Unit::named(period.text) else {
            return match zone.or(from) {
                Some(word) => Err(word.error(format!(
                    "`tz` and `from` need a calendar period, not {}: day, week, month or year, as in \
                     `fixed-window 1000/day tz=Europe/Berlin`",
                    period.quoted()
                ))),
                None => Ok(None),
            };
        };
        let zone = zone.map_or(Ok(TimeZone::UTC), TimeZone::read)?;
        let from = from.map_or(Ok((0, 1)), |word| unit.read_start(word))?;
        let is_duration = unit == Unit::Day && zone == TimeZone::UTC;
        Ok((!is_duration).then_some(Self { unit, from, zone }))
    }

    /// Returns the text after the quota: the unit, and the options that are not the default.
    pub(super) fn text(&self) -> String {
        let mut text = String::from(self.unit.name());
        match (self.unit, self.from) {
            (_, (0, 1)) => {}
            (Unit::Year, (month, day)) => text += &format!(" from={:02}-{day:02}", month + 1),
            (_, (_, day)) => text += &format!(" from={day}"),
        }
        if self.zone != TimeZone::UTC {
            text += &format!(" tz={}", self.zone.name());
        }
        text
    }

    /// Returns the mean length of a period in nanoseconds.
    pub(super) fn mean_nanos(&self) -> u64 {
        1_000_000_000
            * match self.unit {
                Unit::Day => DAY_SECONDS as u64,
                Unit::Week => 7 * DAY_SECONDS as u64,
                Unit::Month => MEAN_YEAR_SECONDS / 12,
                Unit::Year => MEAN_YEAR_SECONDS,
            }
    }

    /// Returns a number that tells calendars apart and is the same on every machine; never 0.
    pub(super) fn meaning(&self) -> u64 {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.text().bytes().fold(0xcbf2_9ce4_8422_2325, hash) | 1
    }

    /// Returns the number of the period that contains `now`. Where clocks are set back over midnight, a
    /// period that has begun does not end again.
    #[cold]
    #[inline(never)]
    pub(super) fn number(&self, now: Nanos) -> u64 {
        let seconds = (now.get() / 1_000_000_000) as i64;
        let local = seconds + self.zone.offset_at(seconds);
        let number = self.number_of(local.div_euclid(DAY_SECONDS));
        let next_has_begun = self.begins_second(number + 1) <= seconds;
        (number + i64::from(next_has_begun)) as u64
    }

    /// Returns the nanosecond since the epoch at which a period begins.
    #[cold]
    #[inline(never)]
    pub(super) fn begins(&self, number: u64) -> i128 {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        // Numbers of damaged files name years that no clock reaches.
        i128::from(self.begins_second(number.min(1 << 20))) * SECOND_NANOS
    }

    fn begins_second(&self, number: i64) -> i64 {
        self.zone
            .first_instant(self.first_day(number) * DAY_SECONDS)
    }

    /// Returns the number of the period to which a date belongs, in days since the epoch.
    fn number_of(&self, day: i64) -> i64 {
        let days = day + DAYS_TO_EPOCH;
        let months = match self.unit {
            Unit::Day => return days,
            Unit::Week => return days.div_euclid(7),
            Unit::Month => 1,
            Unit::Year => 12,
        };
        let (year, month) = year_and_month(day);
        let number = ((year - FIRST_YEAR) * 12 + month - self.from.0).div_euclid(months);
        number - i64::from(self.first_day(number) > day)
    }

    /// Returns the first date of a period, in days since the epoch.
    fn first_day(&self, number: i64) -> i64 {
        let month = match self.unit {
            Unit::Day => return number - DAYS_TO_EPOCH,
            Unit::Week => return number * 7 - DAYS_TO_EPOCH,
            Unit::Month => number,
            Unit::Year => number * 12 + self.from.0,
        };
        let (first, next) = (first_of_month(month), first_of_month(month + 1));
        (first + self.from.1 - 1).min(next - 1)
    }
}

impl Unit {
    /// Parses the day with which months begin, such as `15`, or the date with which years begin, such as `04-06`.
    fn read_start(self, word: Word<'_>) -> Result<(i64, i64), RuleError> {
        let number = |text: &str, most: i64| {
            let digits = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| digits);
            number.filter(|number| (1..=most).contains(number))
        };
        match self {
            Self::Day | Self::Week => Err(word.error(format!(
                "`from` is for months and years; a {} begins at midnight{}",
                self.name(),
                if self == Self::Week { " of Monday" } else { "" }
            ))),
            Self::Month => number(word.text, 31)
                .map(|day| (0, day))
                .ok_or_else(|| word.expected("a day of the month from 1 to 31")),
            Self::Year => {
                let date = word.text.split_once('-');
                let date =
                    date.and_then(|(month, day)| Some((number(month, 12)?, number(day, 31)?)));
                // 1972 has a 29th of February.
                let is_date = |&(month, day): &(i64, i64)| {
                    day <= first_of_month(4 * 12 + month) - first_of_month(4 * 12 + month - 1)
                };
                date.filter(is_date)
                    .map(|(month, day)| (month - 1, day))
                    .ok_or_else(|| word.expected("a month and a day of it, such as 04-06"))
            }
        }
    }
}

/// Returns the first day of a month, counted from January of [`FIRST_YEAR`], in days since the epoch.
///
/// A year is taken to begin in March, so that a leap day is its last day; five months of it have 153 days.
fn first_of_month(month: i64) -> i64 {
    let from_march = month + FIRST_YEAR * 12 - 2;
    let (year, month) = (from_march.div_euclid(12), from_march.rem_euclid(12));
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * month + 2) / 5 - DAYS_FROM_YEAR_0
}

/// The days from 1 March of year 0 to the epoch.
const DAYS_FROM_YEAR_0: i64 = 719_468;

/// Returns the year of a date in days since the epoch, and its month from 0 to 11.
fn year_and_month(day: i64) -> (i64, i64) {
    // The calendar is a few days ahead of months of mean length, or behind them.
    let months = (day * 4800).div_euclid(146_097) + (1970 - FIRST_YEAR) * 12;
    let has_begun = |month: &i64| first_of_month(*month) <= day;
    let month = [months + 1, months].into_iter().find(has_begun);
    let month = month.unwrap_or(months - 1);
    (month.div_euclid(12) + FIRST_YEAR, month.rem_euclid(12))
}

#[cfg(all(test, feature = "time-zones"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use jiff::{ToSpan, Zoned, civil::Weekday, tz::TimeZoneDatabase};
    use proptest::prelude::*;

    /// Returns the start of the period that contains `now`, by the arithmetic of jiff.
    fn start(unit: Unit, from: (i64, i64), now: &Zoned) -> Zoned {
        let of_month = |month: jiff::civil::Date| {
            let day = from.1.min(month.days_in_month().into()) as i8;
            month.with().day(day).build().unwrap()
        };
        let today = now.date();
        let january = |year: i16| jiff::civil::date(year, from.0 as i8 + 1, 1);
        let first = match unit {
            Unit::Day => today,
            Unit::Week => today
                .tomorrow()
                .and_then(|day| day.nth_weekday(-1, Weekday::Monday))
                .unwrap(),
            Unit::Month => [today, today.first_of_month() - 1.day()]
                .map(|day| of_month(day.first_of_month()))
                .into_iter()
                .find(|first| *first <= today)
                .unwrap(),
            Unit::Year => [today.year(), today.year() - 1]
                .map(|year| of_month(january(year)))
                .into_iter()
                .find(|first| *first <= today)
                .unwrap(),
        };
        first.to_zoned(now.time_zone().clone()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Clocks of no zone have been set back over midnight since 2012.
        #[test]
        fn periods_are_those_of_jiff(
            unit in prop::sample::select(vec![Unit::Day, Unit::Week, Unit::Month, Unit::Year]),
            month in 0..12_i64,
            day in 1..=31_i64,
            zone in any::<prop::sample::Index>(),
            second in 1_325_376_000..4_102_444_800_u64,
        ) {
            let database = TimeZoneDatabase::bundled();
            let names: Vec<_> = database.available().collect();
            let name = names[zone.index(names.len())].as_str();
            let zone = TimeZone::read(Word { text: name, column: 1 }).unwrap();
            let from = match unit {
                Unit::Day | Unit::Week => (0, 1),
                Unit::Month => (0, day),
                Unit::Year => (month, day.min(29)),
            };
            let calendar = Calendar { unit, from, zone };
            let now = jiff::Timestamp::from_second(second as i64).unwrap();
            let expected = start(unit, from, &now.to_zoned(database.get(name).unwrap()));
            let number = calendar.number(Nanos::from_secs(second));
            prop_assert_eq!(
                calendar.begins_second(number as i64),
                expected.timestamp().as_second(),
                "{:?} {} {}", calendar.text(), second, expected
            );
            prop_assert!(calendar.begins_second(number as i64 + 1) > second as i64);
        }
    }
}
