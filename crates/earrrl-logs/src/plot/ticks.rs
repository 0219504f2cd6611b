//! The positions and texts of the ticks on an axis: of numbers, of powers of ten, and of times in UTC.

use jiff::civil::{DateTime, date};
use jiff::tz::Offset;
use jiff::{Span, Timestamp};

/// The kind of values that the ticks of an axis show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ticks {
    /// The positions on the axis are the values.
    Numbers,
    /// The positions on the axis are decimal logarithms of the values.
    Powers,
    /// The positions on the axis are times, in seconds since the epoch.
    Calendar,
}

impl Ticks {
    /// Returns the position and text of each tick between two ends, at most `most` of them.
    pub(super) fn within(self, (from, to): (f64, f64), most: usize) -> Vec<(f64, String)> {
        match self {
            Self::Numbers => numbers(from, to, most),
            Self::Powers => powers(from, to, most),
            Self::Calendar => calendar(from.floor() as i64, to.ceil() as i64, most)
                .into_iter()
                .map(|(at, text)| (at as f64, text))
                .filter(|(at, _)| (from..=to).contains(at))
                .collect(),
        }
    }
}

/// Returns ticks at the multiples of 1, 2 or 5 times a power of ten.
fn numbers(from: f64, to: f64, most: usize) -> Vec<(f64, String)> {
    let least = (to - from) / most.max(1) as f64;
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= least);
    let step = step.unwrap_or(10.0 * power);
    let nths = (from / step).ceil() as i64..=(to / step).floor() as i64;
    nths.map(|nth| (nth as f64 * step, short(nth as f64 * step)))
        .collect()
}

/// Returns ticks at powers of ten, and at their multiples by 2 and 5 if there is room for these.
fn powers(from: f64, to: f64, most: usize) -> Vec<(f64, String)> {
    let low = from.floor() as i32;
    let high = to.ceil() as i32;
    let step = ((high - low) as usize).div_ceil(most.max(1)).max(1);
    let fine = (high - low) as usize * 3 <= most;
    let factors: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let values = (low..=high)
        .step_by(step)
        .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
    values
        .map(|value| (value.log10(), short(value)))
        .filter(|(at, _)| (from..=to).contains(at))
        .collect()
}

/// Writes a number without superfluous digits.
pub(super) fn short(value: f64) -> String {
    if value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e6) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "-0" => "0".into(),
        text => text.into(),
    }
}

// Times.

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;

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

/// The possible distances of ticks that are a month or more apart, in months.
const MONTHS: [i64; 10] = [1, 3, 6, 12, 24, 60, 120, 240, 600, 1200];

/// The first Monday after the Unix epoch, in seconds; ticks that are weeks apart start there.
const MONDAY: i64 = 4 * DAY;

/// Returns at most `most` ticks between two times: the position of each in seconds since the epoch,
/// and its text.
fn calendar(from: i64, to: i64, most: usize) -> Vec<(i64, String)> {
    let fits = |count: i64| usize::try_from(count).is_ok_and(|count| count <= most.max(1));
    if let Some(step) = SECONDS.into_iter().find(|step| fits((to - from) / step)) {
        let start = if step >= WEEK { MONDAY } else { 0 };
        let first = start + (from - start + step - 1).div_euclid(step) * step;
        let ticks = (first..=to).step_by(step as usize);
        return ticks.map(|at| (at, text(at, step))).collect();
    }
    let fits = |step: &i64| fits((to - from) / (30 * DAY) / step);
    let step = MONTHS.into_iter().find(fits).unwrap_or(1200);
    let year = utc(from).year();
    let first = date(year - year % (step / 12).max(1) as i16, 1, 1);
    let ticks = first.series(Span::new().months(step)).map(|day| {
        let at = Offset::UTC.to_timestamp(day.at(0, 0, 0, 0));
        let text = if day.month() == 1 { "%Y" } else { "%b" };
        let at = at.map_or(i64::MAX, Timestamp::as_second);
        (at, day.strftime(text).to_string())
    });
    ticks
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

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.25, "0.25"),
            (100.0, "100"),
            (1e-9, "1e-9"),
            (2e6, "2e6"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn powers_of_ten() {
        let texts = |from, to, most| -> Vec<String> {
            Ticks::Powers
                .within((from, to), most)
                .into_iter()
                .map(|(_, text)| text)
                .collect()
        };
        assert_eq!(
            texts(-1.0, 1.0, 8),
            ["0.1", "0.2", "0.5", "1", "2", "5", "10"]
        );
        assert_eq!(texts(-1.2, 2.1, 8), ["0.1", "1", "10", "100"]);
    }

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
            let found = calendar(START, START + length, most);
            let found: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
            assert_eq!(found, texts, "{length}");
        }
        assert_eq!(calendar(0, 2, 9).len(), 3);
    }

    #[test]
    fn days_are_named_once() {
        assert_eq!(days(START, START + 60), "2015-05-17, UTC");
        assert_eq!(days(START, START + DAY), "2015-05-17 to 2015-05-18, UTC");
    }
}
