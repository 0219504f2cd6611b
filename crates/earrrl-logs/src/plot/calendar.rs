//! Ticks of a time axis, placed at whole seconds, minutes, hours, days, months or years in UTC.

use jiff::Timestamp;
use jiff::civil::{DateTime, date};
use jiff::tz::Offset;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// The possible distances of ticks up to some days, in seconds.
const SECONDS: [i64; 21] = [
    1,
    2,
    5,
    10,
    15,
    30,
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    WEEK,
    2 * WEEK,
];

const WEEK: i64 = 7 * DAY;

/// The possible distances of ticks that are a month or more apart, in months.
const MONTHS: [i64; 10] = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200];

/// The first Monday after the Unix epoch, in seconds; ticks that are weeks apart start there.
const MONDAY: i64 = 4 * DAY;

/// Returns at most `most` ticks between two times: the position of each in seconds since the epoch,
/// and its text.
pub(super) fn ticks(from: i64, to: i64, most: usize) -> Vec<(i64, String)> {
    let fits = |count: i64| usize::try_from(count).is_ok_and(|count| count <= most.max(1));
    match SECONDS.into_iter().find(|step| fits((to - from) / step)) {
        Some(step) => {
            let start = if step >= WEEK { MONDAY } else { 0 };
            let first = start + (from - start + step - 1).div_euclid(step) * step;
            (first..=to)
                .step_by(step as usize)
                .map(|at| (at, text(at, step)))
                .collect()
        }
        None => {
            let months = |seconds: i64| seconds / (30 * DAY);
            let step = MONTHS
                .into_iter()
                .find(|step| fits(months(to - from) / step));
            by_months(from, to, step.unwrap_or(1200))
        }
    }
}

fn by_months(from: i64, to: i64, step: i64) -> Vec<(i64, String)> {
    let start = utc(from);
    let first = i64::from(start.year()) * 12 + i64::from(start.month()) - 1;
    let starts = (0i64..).map(|nth| {
        let month = (first.div_euclid(step) + nth) * step;
        let year = month.div_euclid(12) as i16;
        let start = date(year, (month.rem_euclid(12) + 1) as i8, 1).at(0, 0, 0, 0);
        let text = if start.month() == 1 { "%Y" } else { "%b" };
        let at = Offset::UTC
            .to_timestamp(start)
            .map_or(i64::MAX, Timestamp::as_second);
        (at, start.strftime(text).to_string())
    });
    starts
        .skip_while(|(at, _)| *at < from)
        .take_while(|(at, _)| *at <= to)
        .collect()
}

/// Returns the text of a tick at the second `at`: the time of day, or the date if the tick is at
/// midnight. If ticks are a day or more apart, the first day of a year shows the year instead.
fn text(at: i64, step: i64) -> String {
    let time = utc(at);
    let format = match (at % DAY, step) {
        (0, DAY..) if time.day_of_year() == 1 => "%Y",
        (0, _) => "%-d %b",
        (_, ..MINUTE) => "%H:%M:%S",
        _ => "%H:%M",
    };
    time.strftime(format).to_string()
}

/// Returns the date or dates between two times, given in seconds since the epoch, for the label of
/// an axis.
pub(crate) fn days(from: i64, to: i64) -> String {
    let [from, to] = [from, to].map(|at| utc(at).strftime("%Y-%m-%d").to_string());
    if from == to {
        format!("{from}, UTC")
    } else {
        format!("{from} to {to}, UTC")
    }
}

fn utc(seconds: i64) -> DateTime {
    Offset::UTC.to_datetime(Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time 2015-05-17 10:05:03 UTC, in seconds since the epoch.
    const START: i64 = 1_431_857_103;

    #[test]
    fn ticks_are_those_of_a_calendar() {
        for (length, most, texts) in [
            (20, 6, &["10:05:05", "10:05:10", "10:05:15", "10:05:20"][..]),
            (300, 6, &["10:06", "10:07", "10:08", "10:09", "10:10"]),
            (DAY, 5, &["12:00", "18:00", "18 May", "06:00"]),
            (4 * DAY, 5, &["18 May", "19 May", "20 May", "21 May"]),
            (
                30 * DAY,
                5,
                &["18 May", "25 May", "1 Jun", "8 Jun", "15 Jun"],
            ),
            (365 * DAY, 5, &["Jul", "Oct", "2016", "Apr"]),
            (2000 * DAY, 6, &["2016", "2017", "2018", "2019", "2020"]),
            (
                40_000 * DAY,
                6,
                &["2020", "2040", "2060", "2080", "2100", "2120"],
            ),
        ] {
            let found = ticks(START, START + length, most);
            let found: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
            assert_eq!(found, texts, "{length}");
        }
        assert_eq!(ticks(0, 2, 9).len(), 3);
    }

    #[test]
    fn days_are_named_once() {
        assert_eq!(days(START, START + 60), "2015-05-17, UTC");
        assert_eq!(days(START, START + DAY), "2015-05-17 to 2015-05-18, UTC");
    }
}
