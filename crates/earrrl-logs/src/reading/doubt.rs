//! Warnings about log files that were probably misread.

use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::Offset;

use crate::format::{Format, Hints, mostly};

/// Nanoseconds in a minute.
const MINUTE: u64 = 60_000_000_000;

/// The most backward steps by an hour that count as ends of summer time: one a year, and one to
/// spare.
const MOST_STEPS: u64 = 2;

/// The number of lines from which on the share of malformed lines is meaningful.
const MANY: u64 = 20;

/// The number of bytes of malformed lines that are kept of a file.
const MALFORMED: usize = 64 * 1024;

/// Returns a fingerprint of a log's first bytes if they have enough lines to identify it.
pub(super) fn fingerprint(start: &[u8], hasher: &RandomState) -> Option<u64> {
    let lines = memchr::memchr_iter(b'\n', start).count() as u64;
    (lines >= MANY).then(|| hasher.hash_one(start))
}

/// The least time by which two lines in a row are late in a night in which summer time ends, in
/// nanoseconds. Servers that log the start of a request write its line when it ends.
const LATE: u64 = 2 * MINUTE;

/// Detects whether the times in a file go back by an hour, as at the end of summer time. If the log
/// pauses around that hour, they go back by less, and only the night of the year tells it from lines
/// out of order.
#[derive(Debug, Default)]
pub(super) struct HourWatch {
    /// The latest time so far in nanoseconds since the epoch, less the detected steps.
    latest: u64,
    steps: u64,
    /// The number of the line at which time first went back by an hour.
    line: u64,
    /// The number of the last line that was late in a night in which summer time ends.
    late: u64,
    /// The number of the first line of two in a row that were late in such a night.
    paused: Option<u64>,
}

impl HourWatch {
    /// Records the time of the line with this number.
    #[inline]
    pub(super) fn see(&mut self, time: u64, line: u64) {
        if time < self.latest {
            self.step(self.latest - time, line);
        } else {
            self.latest = time;
        }
    }

    #[cold]
    fn step(&mut self, back: u64, line: u64) {
        if (50 * MINUTE..=61 * MINUTE).contains(&back) {
            self.steps += 1;
            if self.steps == 1 {
                self.line = line;
            }
            // Later times are compared with the time after the step, so that each step counts once.
            self.latest -= back;
        } else if (LATE..50 * MINUTE).contains(&back) && summer_time_may_end(self.latest) {
            if line == self.late + 1 {
                self.paused.get_or_insert(self.late);
            }
            self.late = line;
        }
    }

    /// Returns a warning if local time probably went back by an hour in the file.
    pub(super) fn doubt(&self) -> Option<String> {
        let (by, line) = match self.steps {
            0 => ("", self.paused?),
            1..=MOST_STEPS => (" by an hour", self.line),
            _ => return None,
        };
        Some(format!(
            "time goes back{by} at line {line}, as local time does at the end of summer time: what is before \
             and after is mixed; log in UTC, or with the zone"
        ))
    }
}

/// Returns true if summer time ends in the hours around a local time somewhere: in Europe on a
/// Sunday of October, in America of November, in Australia and New Zealand of April, before 4
/// o'clock.
fn summer_time_may_end(time: u64) -> bool {
    let time = Timestamp::from_nanosecond(i128::from(time)).unwrap_or_default();
    let time = Offset::UTC.to_datetime(time);
    matches!(time.month(), 4 | 10 | 11) && time.weekday() == Weekday::Sunday && time.hour() < 4
}

/// The first malformed lines of a file, by which their format is found.
#[derive(Debug, Default)]
pub(super) struct MalformedLines(Vec<u8>);

impl MalformedLines {
    /// Adds a line, unless there are many.
    #[cold]
    pub(super) fn add(&mut self, line: &[u8]) {
        if self.0.len() < MALFORMED {
            self.0.extend_from_slice(line);
            self.0.push(b'\n');
        }
    }

    /// Returns the format of at least half of the lines, if they have one.
    fn format(&self, hints: &Hints) -> Option<Format> {
        mostly(&self.0, hints)
    }
}

/// Returns a warning if at least a quarter of a file's lines are not in the format of the others.
///
/// Where lines of other programs are normal, as in syslog, there is a warning only if `format` was
/// detected, and the other lines are requests in another format.
pub(super) fn mixed(
    (format, is_detected): (Format, bool),
    (malformed, lines): (u64, u64),
    sample: &MalformedLines,
    hints: &Hints,
) -> Option<String> {
    if lines < MANY || malformed * 4 < lines {
        return None;
    }
    let other = sample.format(hints).filter(|&other| other != format);
    if format.is_one_of_many() && (other.is_none() || !is_detected) {
        return None;
    }
    let format = format.name();
    let other = other.map_or(String::new(), |other| format!(" but {}", other.name()));
    Some(format!(
        "{malformed} of {lines} lines are not {format}{other}: split the file by format, or name one with --format"
    ))
}

/// Returns a warning if the files of a directory are in several formats, since the same
/// request may be in several of them.
pub(super) fn several_formats(formats: &[Format]) -> Option<String> {
    let names: Vec<&str> = formats.iter().map(|format| format.name()).collect();
    (names.len() > 1).then(|| {
        let names = names.join(", ");
        format!("its files are in several formats ({names}): one request may count in each of them")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(minutes: &[u64]) -> Option<u64> {
        let mut watch = HourWatch::default();
        for (line, minute) in (1..).zip(minutes) {
            watch.see(minute * MINUTE, line);
        }
        watch.doubt().map(|doubt| {
            let (_, rest) = doubt.split_once("line ").unwrap();
            rest.split(',').next().unwrap().parse().unwrap()
        })
    }

    #[test]
    fn the_end_of_summer_time_is_one_step_of_an_hour() {
        assert_eq!(watched(&[100, 159, 100, 101, 160, 170]), Some(3));
        assert_eq!(
            watched(&[100, 159, 158, 150, 160]),
            None,
            "lines out of order"
        );
        assert_eq!(
            watched(&[100, 159, 100, 160, 100, 160, 100]),
            None,
            "two files in one"
        );
    }

    #[test]
    fn a_pause_over_the_repeated_hour_is_seen_in_the_nights_of_a_change() {
        /// Midnight of Sunday, 29 October 2023, in minutes since the epoch.
        const SUNDAY: u64 = 28_308_960;
        let watched_on = |day: u64, minutes: &[u64]| {
            let minutes: Vec<u64> = minutes
                .iter()
                .map(|minute| SUNDAY + day * 1440 + minute)
                .collect();
            watched(&minutes)
        };
        // The log pauses after 2:50 and goes on at 2:30, which that night has twice: 40 minutes have
        // passed.
        let night = [100, 140, 170, 150, 155, 160, 190];
        assert_eq!(watched_on(0, &night), Some(4));
        assert_eq!(watched_on(7, &night), Some(4), "in America");
        assert_eq!(watched_on(1, &night), None, "on a Monday");
        assert_eq!(
            watched_on(0, &[600, 620, 610, 612, 630]),
            None,
            "at 10 o'clock"
        );
        assert_eq!(
            watched_on(0, &[100, 170, 165, 171, 166, 172]),
            None,
            "lines out of order"
        );
    }

    #[test]
    fn a_quarter_of_the_lines() {
        let doubt = |format, malformed, lines| {
            let sample = MalformedLines::default();
            mixed(
                (format, true),
                (malformed, lines),
                &sample,
                &Hints::default(),
            )
        };
        assert!(doubt(Format::Json, 25, 100).is_some());
        assert_eq!(doubt(Format::Json, 24, 100), None);
        assert_eq!(doubt(Format::Json, 5, 10), None);
        assert_eq!(doubt(Format::Sshd, 25, 100), None);
    }
}
