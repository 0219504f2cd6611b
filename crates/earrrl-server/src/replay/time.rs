//! Points in time as logs write them, as nanoseconds since the Unix epoch.
//!
//! Only 1970 to 2499 is believed: anything else is a damaged line, not a request.

use super::decimal;

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Seconds from 1970 to the start of 2500, the first time that is not believed.
const END_SECONDS: u64 = 16_725_225_600;

/// Length of a time in the common log format, `17/May/2015:10:05:03 +0000`.
const COMMON_LEN: usize = 26;

/// Parses the common log format's times, remembering the last one: busy logs repeat it.
#[derive(Debug, Clone)]
pub(crate) struct CommonTime {
    text: [u8; COMMON_LEN],
    nanos: u64,
}

impl CommonTime {
    /// Nothing remembered yet.
    pub(crate) fn new() -> Self {
        Self { text: [0; COMMON_LEN], nanos: 0 }
    }

    /// The time that `text` starts with, if a `]` follows it.
    #[inline]
    pub(crate) fn parse(&mut self, text: &[u8]) -> Option<u64> {
        let (time, rest) = text.split_first_chunk::<COMMON_LEN>()?;
        if rest.first() != Some(&b']') {
            return None;
        }
        if *time != self.text {
            self.nanos = parse_common(time)?;
            self.text = *time;
        }
        Some(self.nanos)
    }
}

/// Parses `17/May/2015:10:05:03 +0000`, whole.
pub(crate) fn parse_common(text: &[u8]) -> Option<u64> {
    let text: &[u8; COMMON_LEN] = text.try_into().ok()?;
    let marks = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if marks.iter().any(|&(at, mark)| text[at] != mark) {
        return None;
    }
    let day = digits(&text[..2])?;
    let month = month(&text[3..6])?;
    let year = digits(&text[7..11])?;
    let seconds = clock(&text[12..20])?;
    let local = civil(year, month, day)? + i64::from(seconds);
    nanos(local - offset(&text[21..])?, 0)
}

/// Parses `2015-05-17T10:05:03.25+02:00` (a space for the `T`, and no zone for UTC, will do).
pub(crate) fn parse_iso(text: &[u8]) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let (&separator, rest) = rest.split_first()?;
    if date[4] != b'-' || date[7] != b'-' || !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let (time, rest) = rest.split_at_checked(8)?;
    let days = civil(digits(&date[..4])?, digits(&date[5..7])?, digits(&date[8..])?)?;
    let (fraction, zone) = match rest.split_first() {
        Some((b'.' | b',', rest)) => {
            let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            (decimal::fraction(&rest[..len])?, &rest[len..])
        }
        _ => (0, rest),
    };
    let zone = match zone {
        b"" | b"Z" | b"z" => 0,
        _ => offset(zone.strip_prefix(b" ").unwrap_or(zone))?,
    };
    nanos(days + i64::from(clock(time)?) - zone, fraction)
}

/// Parses seconds since the epoch, exactly to the nanosecond (further digits are cut off).
pub(crate) fn parse_seconds(text: &[u8]) -> Option<u64> {
    let nanos = decimal::parse(text, 9)?;
    u64::try_from(nanos).ok().filter(|&t| t < END_SECONDS * SECOND)
}

/// Parses a count since the epoch whose unit (s, ms, µs, ns) its size tells.
pub(crate) fn parse_epoch(text: &[u8]) -> Option<u64> {
    let nanos = decimal::parse(text, 9)?;
    let unit = match nanos / i128::from(SECOND) {
        seconds if seconds < 100_000_000_000 => 1,
        millis if millis < 100_000_000_000_000 => 1_000,
        micros if micros < 100_000_000_000_000_000 => 1_000_000,
        _ => 1_000_000_000,
    };
    u64::try_from(nanos / unit).ok().filter(|&t| t < END_SECONDS * SECOND)
}

/// Month, day and second of day of a syslog line's `Dec 10 06:55:46` or `Dec  1 06:55:46`.
pub(crate) fn parse_syslog(text: &[u8; 15]) -> Option<(u32, u32, u32)> {
    if text[3] != b' ' || text[6] != b' ' {
        return None;
    }
    let day = if text[4] == b' ' { digits(&text[5..6]) } else { digits(&text[4..6]) };
    Some((month(&text[..3])?, day?, clock(&text[7..])?))
}

/// The time of a date and a second of the day in UTC.
pub(crate) fn at(year: u32, month: u32, day: u32, second: u32) -> Option<u64> {
    nanos(civil(year, month, day)? + i64::from(second), 0)
}

/// The year in which `time` lies.
pub(crate) fn year_of(time: u64) -> u32 {
    let days = time / SECOND / 86_400;
    // The estimate is a year too late at most.
    let guess = 1970 + u32::try_from(days / 365).unwrap_or(u32::MAX - 1970);
    (guess.saturating_sub(2)..=guess).rev().find(|&y| start_of(y) <= days).unwrap_or(guess)
}

/// A time as people read it: `2015-05-17 10:05:03`, in UTC.
pub(crate) fn written(time: u64) -> String {
    let (days, second) = (time / SECOND / 86_400, time / SECOND % 86_400);
    let year = year_of(time);
    let of_year = u32::try_from(days - start_of(year)).unwrap_or(0);
    let start = |month| civil(year, month, 1).map_or(0, |s| s / 86_400 - start_of(year) as i64);
    let starts = (1..=12).map(|month| (month, u32::try_from(start(month)).unwrap_or(0)));
    let (month, first) = starts.rev().find(|(_, first)| *first <= of_year).unwrap_or((1, 0));
    let (day, minute) = (of_year - first + 1, second / 60);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}", minute / 60, minute % 60, second % 60)
}

/// Days from the epoch to the first of January.
fn start_of(year: u32) -> u64 {
    civil(year, 1, 1).map_or(u64::MAX, |seconds| u64::try_from(seconds / 86_400).unwrap_or(0))
}

fn nanos(seconds: i64, fraction: u32) -> Option<u64> {
    let seconds = u64::try_from(seconds).ok().filter(|&s| s < END_SECONDS)?;
    Some(seconds * SECOND + u64::from(fraction))
}

/// Seconds from the epoch to a day that exists.
fn civil(year: u32, month: u32, day: u32) -> Option<i64> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if day == 0 || day > length {
        return None;
    }
    // Years that start in March put the leap day last (Howard Hinnant's days_from_civil).
    let years = i64::from(year) - i64::from(month <= 2);
    let day_of_year = (153 * i64::from((month + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    let leap_days = years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400);
    Some((years * 365 + leap_days + day_of_year - 719_468) * 86_400)
}

/// Seconds of the day in `10:05:03`; a leap second is the next minute's first.
fn clock(text: &[u8]) -> Option<u32> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = *text else { return None };
    let (hour, minute, second) = (digits(&[h1, h2])?, digits(&[m1, m2])?, digits(&[s1, s2])?);
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

/// Seconds east of Greenwich in `+0200` or `+02:00`.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, h, m) = match *text {
        [sign, h1, h2, m1, m2] | [sign, h1, h2, b':', m1, m2] => (sign, [h1, h2], [m1, m2]),
        _ => return None,
    };
    let (hours, minutes) = (digits(&h)?, digits(&m)?);
    let seconds = i64::from(hours * 3600 + minutes * 60);
    match sign {
        _ if hours > 23 || minutes > 59 => None,
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn month(name: &[u8]) -> Option<u32> {
    Some(match name {
        b"Jan" => 1,
        b"Feb" => 2,
        b"Mar" => 3,
        b"Apr" => 4,
        b"May" => 5,
        b"Jun" => 6,
        b"Jul" => 7,
        b"Aug" => 8,
        b"Sep" => 9,
        b"Oct" => 10,
        b"Nov" => 11,
        b"Dec" => 12,
        _ => return None,
    })
}

/// A short run of decimal digits.
fn digits(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0, |sum, &b| b.is_ascii_digit().then(|| sum * 10 + u32::from(b - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_log_times() {
        let cases: [(&str, Option<u64>); 9] = [
            ("17/May/2015:10:05:03 +0000", Some(1_431_857_103)),
            ("01/Jul/1995:00:00:01 -0400", Some(804_571_201)),
            ("22/Dec/2016:22:32:31 +0300", Some(1_482_435_151)),
            ("29/Feb/2024:23:59:60 +0000", Some(1_709_251_200)),
            ("29/Feb/2023:00:00:00 +0000", None),
            ("01/Jan/1970:00:59:59 +0100", None),
            ("01/Jan/2500:00:00:00 +0000", None),
            ("17/May/2015:24:05:03 +0000", None),
            ("17/May/2015:10:05:03 *0000", None),
        ];
        for (text, seconds) in cases {
            assert_eq!(parse_common(text.as_bytes()), seconds.map(|s| s * SECOND), "{text}");
        }
    }

    #[test]
    fn the_remembered_time_is_only_used_for_the_same_text() {
        let mut time = CommonTime::new();
        assert_eq!(time.parse(b"01/Jan/1970:00:00:07 +0000] x"), Some(7 * SECOND));
        assert_eq!(time.parse(b"01/Jan/1970:00:00:07 +0000]"), Some(7 * SECOND));
        assert_eq!(time.parse(b"01/Jan/1970:00:00:08 +0000]"), Some(8 * SECOND));
        assert_eq!(time.parse(b"01/Jan/1970:00:00:08 +0000 "), None);
        assert_eq!(time.parse(b"31/Feb/1970:00:00:08 +0000]"), None);
    }

    #[test]
    fn iso_times() {
        let cases: [(&str, Option<u64>); 7] = [
            ("2015-05-17T10:05:03Z", Some(1_431_857_103_000_000_000)),
            ("2015-05-17T12:05:03.25+02:00", Some(1_431_857_103_250_000_000)),
            ("2015-05-17 10:05:03,123456789123 +0000", Some(1_431_857_103_123_456_789)),
            ("2015-05-17 10:05:03", Some(1_431_857_103_000_000_000)),
            ("2015-05-17T10:05:03.Z", None),
            ("2015-05-17T10:05:03x", None),
            ("2015-13-17T10:05:03Z", None),
        ];
        for (text, time) in cases {
            assert_eq!(parse_iso(text.as_bytes()), time, "{text}");
        }
    }

    #[test]
    fn epoch_units_are_told_by_size() {
        for text in ["1431857103.25", "1431857103250", "1431857103250000", "1431857103250000000"] {
            assert_eq!(parse_epoch(text.as_bytes()), Some(1_431_857_103_250_000_000), "{text}");
        }
        assert_eq!(parse_epoch(b"-1"), None);
        assert_eq!(parse_seconds(b"1431857103250"), None);
        assert_eq!(parse_seconds(b"1111111111.123456789"), Some(1_111_111_111_123_456_789));
    }

    #[test]
    fn years() {
        for (year, month, day) in [(1970, 1, 1), (2000, 2, 29), (2016, 12, 31), (2499, 12, 31)] {
            let time = at(year, month, day, 86_399).unwrap();
            assert_eq!(year_of(time), year);
            assert_eq!(written(time), format!("{year}-{month:02}-{day:02} 23:59:59"));
        }
    }
}
