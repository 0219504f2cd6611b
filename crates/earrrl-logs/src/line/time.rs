//! Parsing of the times in logs, as nanoseconds since the Unix epoch.
//!
//! Only times from 1970 to 2499 are accepted: a line with any other time is damaged.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;

/// The number of nanoseconds in a second.
///
/// ```
/// assert_eq!(earrrl_logs::line::time::SECOND, 1_000_000_000);
/// ```
pub const SECOND: u64 = 1_000_000_000;

/// The start of the year 2500, in seconds since 1970. Times from then on are rejected.
const END_SECONDS: u64 = 16_725_225_600;

/// The start of the year 2000, in nanoseconds since 1970.
const YEAR_2000: u64 = 946_684_800 * SECOND;

/// The length of a time in the common log format, `17/May/2015:10:05:03 +0000`, in bytes.
const COMMON_LEN: usize = 26;

/// A time in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds since the Unix epoch.
    pub nanos: u64,
    /// True if the text names its zone, or counts from the epoch. A time without a zone is read as UTC, and
    /// may be local.
    pub has_zone: bool,
}

impl Stamp {
    /// Returns the time that `parse` finds in a text.
    ///
    /// ```
    /// use earrrl_logs::line::time::{Stamp, parse_iso};
    ///
    /// let zoned = Stamp::of(parse_iso, b"2023-11-14T23:13:20+01:00").ok_or("no time")?;
    /// assert_eq!((zoned.nanos, zoned.has_zone), (1_700_000_000_000_000_000, true));
    /// # Ok::<(), &str>(())
    /// ```
    pub fn of(parse: impl FnOnce(&[u8]) -> Option<u64>, text: &[u8]) -> Option<Self> {
        let nanos = parse(text)?;
        let has_zone = has_zone(text);
        Some(Self { nanos, has_zone })
    }

    /// Returns a time that is known to be in UTC.
    pub fn utc(nanos: u64) -> Self {
        Self {
            nanos,
            has_zone: true,
        }
    }
}

/// Returns true if a time counts from the epoch, or has a zone behind its 19 or 20 bytes of date and
/// time of day.
fn has_zone(text: &[u8]) -> bool {
    let zone = |byte: &u8| matches!(byte, b'+' | b'-' | b'Z' | b'z');
    text.get(19..).is_some_and(|tail| tail.iter().any(zone)) || !text.contains(&b':')
}

/// Checks a time format in the notation of strptime.
///
/// ```
/// use earrrl_logs::line::time::check_notation;
///
/// assert!(check_notation("%Y-%m-%d %H:%M:%S").is_ok());
/// assert!(check_notation("%!").is_err());
/// ```
///
/// # Errors
/// Returns a description of the problem if the format is invalid.
pub fn check_notation(notation: &str) -> Result<(), String> {
    let epoch = Timestamp::UNIX_EPOCH.to_zoned(jiff::tz::TimeZone::UTC);
    let written = jiff::fmt::strtime::format(notation, &epoch);
    written.map(drop).map_err(|error| error.to_string())
}

/// Parses times in the common log format. It remembers the last one, since busy logs repeat it.
///
/// ```
/// use earrrl_logs::line::time::CommonTime;
///
/// let mut times = CommonTime::default();
/// assert_eq!(times.parse(b"14/Nov/2023:22:13:20 +0000] \"GET /"), Some(1_700_000_000_000_000_000));
/// ```
#[derive(Debug, Clone, Default)]
pub struct CommonTime {
    text: [u8; COMMON_LEN],
    nanos: u64,
}

impl CommonTime {
    /// Returns the time at the start of `text`; `None` if no `]` follows it.
    #[inline]
    pub fn parse(&mut self, text: &[u8]) -> Option<u64> {
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

/// Parses a time such as `17/May/2015:10:05:03 +0000`. The seconds may have a fraction; without a
/// zone, the time is in UTC.
///
/// ```
/// # use earrrl_logs::line::time::parse_common;
/// assert_eq!(parse_common(b"14/Nov/2023:22:13:20 +0000"), Some(1_700_000_000_000_000_000));
/// ```
pub fn parse_common(text: &[u8]) -> Option<u64> {
    let (time, rest) = text.split_first_chunk::<20>()?;
    let marks = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':')];
    if marks.iter().any(|&(at, mark)| time[at] != mark) {
        return None;
    }
    let date = (
        digits(&time[7..11])?,
        month(&time[3..6])?,
        digits(&time[..2])?,
    );
    let (fraction, zone) = fraction_and_zone(rest)?;
    instant(date, clock(&time[12..20])?, fraction, zone)
}

/// Parses a time such as `2015-05-17T10:05:03.25+02:00`. A blank may replace the `T`, and slashes
/// the hyphens; without a zone, the time is in UTC.
///
/// ```
/// # use earrrl_logs::line::time::parse_iso;
/// assert_eq!(parse_iso(b"2023-11-14T23:13:20.5+01:00"), Some(1_700_000_000_500_000_000));
/// ```
pub fn parse_iso(text: &[u8]) -> Option<u64> {
    let (date, rest) = text.split_first_chunk::<10>()?;
    let (&separator, rest) = rest.split_first()?;
    let hyphens = date[4] == date[7] && matches!(date[4], b'-' | b'/');
    if !hyphens || !matches!(separator, b'T' | b't' | b' ') {
        return None;
    }
    let (time, rest) = rest.split_at_checked(8)?;
    let date = (
        digits(&date[..4])?,
        digits(&date[5..7])?,
        digits(&date[8..])?,
    );
    let (fraction, zone) = fraction_and_zone(rest)?;
    instant(date, clock(time)?, fraction, zone)
}

/// Parses a fraction and a zone such as `.25+02:00`. Returns nanoseconds, and the zone's seconds
/// east of Greenwich.
fn fraction_and_zone(text: &[u8]) -> Option<(u32, i32)> {
    let (fraction, zone) = match text.split_first() {
        Some((b'.' | b',', rest)) => {
            let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            (fraction(&rest[..len]).filter(|_| len > 0)?, &rest[len..])
        }
        _ => (0, text),
    };
    let zone = match zone {
        b"" | b"Z" | b"z" => 0,
        _ => offset(zone.strip_prefix(b" ").unwrap_or(zone))?,
    };
    Some((fraction, zone))
}

/// Returns a decimal number times a billion, cut to a whole number. A number with an exponent is read as the
/// double that its writer had.
fn billionths(text: &[u8]) -> Option<u128> {
    let point = text.iter().position(|&byte| byte == b'.');
    let (whole, digits) = text.split_at(point.unwrap_or(text.len()));
    let digits = digits.get(1..).unwrap_or_default();
    let is_empty = whole.is_empty() && digits.is_empty();
    if let (Some(whole), Some(nanos), false) = (number(whole), fraction(digits), is_empty) {
        return Some(u128::from(whole) * u128::from(SECOND) + u128::from(nanos));
    }
    if !text.iter().any(|byte| matches!(byte, b'e' | b'E')) {
        return None;
    }
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number >= 0.0).then_some((number * 1e9).round() as u128)
}

/// Returns the value of decimal digits; 0 if there are none.
fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
        sum.checked_mul(10)?.checked_add(digit?)
    })
}

/// Returns the nanoseconds that the digits after a decimal point stand for; further digits are cut off.
fn fraction(digits: &[u8]) -> Option<u32> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |place| u32::from(digits.get(place).map_or(0, |digit| digit - b'0'));
    Some((0..9).fold(0, |nanos, place| nanos * 10 + digit(place)))
}

/// Parses a number of seconds, milliseconds, microseconds or nanoseconds since the epoch. The size
/// of the number determines the unit.
///
/// ```
/// # use earrrl_logs::line::time::parse_epoch;
/// assert_eq!(parse_epoch(b"1700000000"), parse_epoch(b"1700000000000"));
/// ```
pub fn parse_epoch(text: &[u8]) -> Option<u64> {
    let nanos = billionths(text)?;
    let unit = match nanos / u128::from(SECOND) {
        seconds if seconds < 100_000_000_000 => 1,
        millis if millis < 100_000_000_000_000 => 1_000,
        micros if micros < 100_000_000_000_000_000 => 1_000_000,
        _ => 1_000_000_000,
    };
    u64::try_from(nanos / unit)
        .ok()
        .filter(|&t| t < END_SECONDS * SECOND)
}

/// Parses a time in any of the notations that logs use.
///
/// ```
/// # use earrrl_logs::line::time::parse_any;
/// assert_eq!(parse_any(b"2023-11-14T22:13:20Z"), parse_any(b"1700000000"));
/// assert_eq!(parse_any(b"yesterday"), None);
/// ```
pub fn parse_any(text: &[u8]) -> Option<u64> {
    parse_iso(text)
        .or_else(|| parse_common(text))
        .or_else(|| parse_epoch(text))
        .or_else(|| parse_as("%a %b %d %H:%M:%S%.f %Y", text))
}

/// Parses a time from a field that may also contain a duration: numbers that would be times before
/// the year 2000 are rejected.
///
/// ```
/// # use earrrl_logs::line::time::parse_recent;
/// assert!(parse_recent(b"1700000000").is_some());
/// assert_eq!(parse_recent(b"0.125"), None); // a duration
/// ```
pub fn parse_recent(text: &[u8]) -> Option<u64> {
    // A number takes longer to be read than the others to be ruled out.
    let number = || parse_epoch(text).filter(|&time| time >= YEAR_2000);
    parse_iso(text)
        .or_else(|| parse_common(text))
        .or_else(number)
}

/// Parses a time in a strptime format; a time without a zone is in UTC.
///
/// ```
/// # use earrrl_logs::line::time::parse_as;
/// let time = parse_as("%d.%m.%Y %H:%M:%S", b"14.11.2023 22:13:20");
/// assert_eq!(time, Some(1_700_000_000_000_000_000));
/// ```
pub fn parse_as(format: &str, text: &[u8]) -> Option<u64> {
    let time = jiff::fmt::strtime::BrokenDownTime::parse(format, text).ok()?;
    let instant = time
        .to_timestamp()
        .or_else(|_| Offset::UTC.to_timestamp(time.to_datetime()?));
    believed(instant.ok()?)
}

/// Parses the time of a syslog line, such as `Dec 10 06:55:46` or `Dec  1 06:55:46`. Returns the
/// month, the day, and the second of the day.
///
/// ```
/// # use earrrl_logs::line::time::parse_syslog;
/// assert_eq!(parse_syslog(b"Dec  1 00:01:30"), Some((12, 1, 90)));
/// ```
pub fn parse_syslog(text: &[u8; 15]) -> Option<(u32, u32, u32)> {
    if text[3] != b' ' || text[6] != b' ' {
        return None;
    }
    let day = if text[4] == b' ' {
        digits(&text[5..6])
    } else {
        digits(&text[4..6])
    };
    Some((month(&text[..3])?, day?, clock(&text[7..])?))
}

/// Returns the time of a date and a second of that day, in UTC.
///
/// ```
/// # use earrrl_logs::line::time::{at, written};
/// assert_eq!(at(2023, 11, 14, 80_000).map(written).as_deref(), Some("2023-11-14 22:13:20"));
/// ```
pub fn at(year: u32, month: u32, day: u32, second: u32) -> Option<u64> {
    instant((year, month, day), second, 0, 0)
}

/// Returns the year of `time` in UTC.
///
/// ```
/// # use earrrl_logs::line::time::year_of;
/// assert_eq!(year_of(1_700_000_000_000_000_000), 2023);
/// ```
pub fn year_of(time: u64) -> u32 {
    utc(time).year().unsigned_abs().into()
}

/// Returns a time as text such as `2015-05-17 10:05:03`, in UTC.
///
/// ```
/// # use earrrl_logs::line::time::written;
/// assert_eq!(written(1_700_000_000_000_000_000), "2023-11-14 22:13:20");
/// ```
pub fn written(time: u64) -> String {
    utc(time).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Returns the date and the time of day of `time`, in UTC.
pub(crate) fn utc(time: u64) -> DateTime {
    let instant = Timestamp::from_nanosecond(time.into()).unwrap_or(Timestamp::UNIX_EPOCH);
    Offset::UTC.to_datetime(instant)
}

/// Returns the time of a date, a second of that day, a fraction in nanoseconds, and a zone in
/// seconds east of Greenwich; `None` if the date does not exist.
fn instant(
    (year, month, day): (u32, u32, u32),
    second: u32,
    fraction: u32,
    zone: i32,
) -> Option<u64> {
    let date = Date::new(
        year.try_into().ok()?,
        month.try_into().ok()?,
        day.try_into().ok()?,
    );
    let midnight = Offset::UTC
        .to_timestamp(date.ok()?.at(0, 0, 0, 0))
        .ok()?
        .as_second();
    let seconds = midnight + i64::from(second) - i64::from(zone);
    believed(Timestamp::new(seconds, fraction.try_into().ok()?).ok()?)
}

fn believed(instant: Timestamp) -> Option<u64> {
    u64::try_from(instant.as_nanosecond())
        .ok()
        .filter(|&t| t < END_SECONDS * SECOND)
}

/// Returns the second of the day for a time such as `10:05:03`. A leap second counts as the first
/// second of the next minute.
fn clock(text: &[u8]) -> Option<u32> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = *text else {
        return None;
    };
    let hour = digits(&[h1, h2])?;
    let minute = digits(&[m1, m2])?;
    let second = digits(&[s1, s2])?;
    (hour < 24 && minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
}

/// Returns the seconds east of Greenwich for a zone such as `+0200`, `+02:00` or `+02`.
fn offset(text: &[u8]) -> Option<i32> {
    let (sign, h, m) = match *text {
        [sign, h1, h2, m1, m2] | [sign, h1, h2, b':', m1, m2] => (sign, [h1, h2], [m1, m2]),
        // PostgreSQL omits minutes that are 0.
        [sign, h1, h2] => (sign, [h1, h2], *b"00"),
        _ => return None,
    };
    let hours = digits(&h)?;
    let minutes = digits(&m)?;
    let seconds = (hours * 3600 + minutes * 60) as i32;
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

/// Returns the value of a few decimal digits.
fn digits(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0, |sum, &b| {
        b.is_ascii_digit().then(|| sum * 10 + u32::from(b - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_log_times() {
        let cases: [(&str, Option<u64>); 10] = [
            ("17/May/2015:10:05:03", Some(1_431_857_103)),
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
            assert_eq!(
                parse_common(text.as_bytes()),
                seconds.map(|s| s * SECOND),
                "{text}"
            );
        }
    }

    #[test]
    fn the_remembered_time_is_only_used_for_the_same_text() {
        let mut time = CommonTime::default();
        assert_eq!(
            time.parse(b"01/Jan/1970:00:00:07 +0000] x"),
            Some(7 * SECOND)
        );
        assert_eq!(time.parse(b"01/Jan/1970:00:00:07 +0000]"), Some(7 * SECOND));
        assert_eq!(time.parse(b"01/Jan/1970:00:00:08 +0000]"), Some(8 * SECOND));
        assert_eq!(time.parse(b"01/Jan/1970:00:00:08 +0000 "), None);
        assert_eq!(time.parse(b"31/Feb/1970:00:00:08 +0000]"), None);
    }

    #[test]
    fn zones() {
        for text in [
            "2015-05-17T10:05:03Z",
            "2015-05-17 10:05:03.25+00",
            "2015-05-17 10:05:03,123 -0700",
            "17/May/2015:10:05:03 +0000",
            "1431857103.25",
            "1431857103250",
        ] {
            assert!(has_zone(text.as_bytes()), "{text}");
        }
        for text in [
            "2015-05-17T10:05:03",
            "2015/05/17 10:05:03.25",
            "17/May/2015:10:05:03",
            "Sun May 17 10:05:03.25 2015",
            "May 17 10:05:03",
        ] {
            assert!(!has_zone(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn iso_times() {
        let cases: [(&str, Option<u64>); 10] = [
            ("2015-05-17T10:05:03Z", Some(1_431_857_103_000_000_000)),
            ("2015-05-17 10:05:03.25+00", Some(1_431_857_103_250_000_000)),
            ("2015-05-17 03:05:03-07", Some(1_431_857_103_000_000_000)),
            ("2015-05-17 03:05:03-7", None),
            (
                "2015-05-17T12:05:03.25+02:00",
                Some(1_431_857_103_250_000_000),
            ),
            (
                "2015-05-17 10:05:03,123456789123 +0000",
                Some(1_431_857_103_123_456_789),
            ),
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
    fn numbers_are_exact() {
        for (text, nanos) in [
            ("1111111111.123456789", Some(1_111_111_111_123_456_789)),
            ("0.1", Some(100_000_000)),
            (".5", Some(500_000_000)),
            ("5.", Some(5_000_000_000)),
            ("1.5e9", Some(1_500_000_000_000_000_000)),
            ("1.5E-1", Some(150_000_000)),
            ("0.0000000019", Some(1)),
            ("-2", None),
            ("1e300", None),
            (".", None),
            ("", None),
            ("1e", None),
            ("1.2.3", None),
            ("NaN", None),
        ] {
            assert_eq!(parse_epoch(text.as_bytes()), nanos, "{text}");
        }
    }

    #[test]
    fn ctime_times() {
        let cases: [(&str, Option<u64>); 5] = [
            ("Sun May 17 10:05:03 2015", Some(1_431_857_103_000_000_000)),
            (
                "Sun May 17 10:05:03.25 2015",
                Some(1_431_857_103_250_000_000),
            ),
            (
                "Fri May  1 10:05:03.250000 2015",
                Some(1_430_474_703_250_000_000),
            ),
            ("Sun May 17 10:05:03", None),
            ("Sun May 32 10:05:03 2015", None),
        ];
        for (text, time) in cases {
            assert_eq!(parse_any(text.as_bytes()), time, "{text}");
        }
    }

    #[test]
    fn epoch_units_are_distinguished_by_size() {
        for text in [
            "1431857103.25",
            "1431857103250",
            "1431857103250000",
            "1431857103250000000",
        ] {
            assert_eq!(
                parse_epoch(text.as_bytes()),
                Some(1_431_857_103_250_000_000),
                "{text}"
            );
        }
        assert_eq!(parse_epoch(b"-1"), None);
    }

    #[test]
    fn years() {
        for (year, month, day) in [(1970, 1, 1), (2000, 2, 29), (2016, 12, 31), (2499, 12, 31)] {
            let time = at(year, month, day, 86_399).unwrap();
            assert_eq!(year_of(time), year);
            assert_eq!(
                written(time),
                format!("{year}-{month:02}-{day:02} 23:59:59")
            );
        }
    }
}
