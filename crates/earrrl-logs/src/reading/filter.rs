//! Selects the requests that `--where`, `--since` and `--until` ask for.

use std::fmt;
use std::sync::Arc;

use crate::format::Record;
use crate::line::{Skip, time};

/// A condition on parsed records, such as that of `--where`.
pub trait RecordCondition: fmt::Debug + Send + Sync {
    /// Returns true if the record meets the condition.
    fn holds(&self, record: &Record<'_>) -> bool;

    /// Returns the first field that the condition needs and that is not in `known`, the fields of a
    /// format.
    fn missing(&self, known: &[&str]) -> Option<String>;
}

/// A consumer of the selected records. If there is one, the reader's caller gets no requests.
pub trait RecordSink: fmt::Debug + Send + Sync {
    /// Receives a selected record.
    fn take(&self, record: &Record<'_>);
}

/// The conditions that requests must meet. All others are counted as skipped.
///
/// ```
/// use earrrl_logs::reading::{Filter, parse_bound};
///
/// let now = 1_700_000_000_000_000_000;
/// let filter = Filter { since: Some(parse_bound("2023-11-14T00:00:00Z", now)?), ..Filter::default() };
/// # let _ = filter;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// The condition of `--where`, if it was given.
    pub condition: Option<Arc<dyn RecordCondition>>,
    /// The start of the selected time in nanoseconds since the epoch, inclusive.
    pub since: Option<u64>,
    /// The end of the selected time in nanoseconds since the epoch, exclusive.
    pub until: Option<u64>,
    /// The consumer of the selected records, instead of the reader's caller.
    pub sink: Option<Arc<dyn RecordSink>>,
}

impl Filter {
    /// Returns true if the filter selects every request and has no sink.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            condition,
            since,
            until,
            sink,
        } = self;
        condition.is_none() && since.is_none() && until.is_none() && sink.is_none()
    }

    /// Returns the first field that the condition needs and that is not in `known`, the fields of a
    /// format.
    pub(super) fn missing(&self, known: &[&str]) -> Option<String> {
        self.condition
            .as_ref()
            .and_then(|condition| condition.missing(known))
    }

    /// Checks that a record is selected, and passes it to the sink if there is one.
    ///
    /// # Errors
    /// Returns the reason for which the record is skipped; a record that the sink took counts as
    /// filtered.
    pub(super) fn check(&self, record: &Record<'_>) -> Result<(), Skip> {
        let time = record.time();
        if self.since.is_some_and(|since| time < since)
            || self.until.is_some_and(|until| time >= until)
        {
            return Err(Skip::OtherTime);
        }
        if self
            .condition
            .as_ref()
            .is_some_and(|condition| !condition.holds(record))
        {
            return Err(Skip::Filtered);
        }
        match &self.sink {
            Some(sink) => {
                sink.take(record);
                Err(Skip::Filtered)
            }
            None => Ok(()),
        }
    }
}

/// Parses the value of `--since` or `--until` into nanoseconds since the epoch. It is an age before
/// `now` such as `2h`, a date, or a date and a time, which is in UTC unless it names a zone.
///
/// ```
/// # use earrrl_logs::reading::parse_bound;
/// let now = 1_700_000_000_000_000_000;
/// assert_eq!(parse_bound("20s", now)?, now - 20_000_000_000);
/// assert_eq!(parse_bound("2023-11-14T22:13:20Z", now)?, now);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns a sentence about the expected forms if the text has none of them.
pub fn parse_bound(text: &str, now: u64) -> Result<u64, String> {
    if let Ok(age) = earrrl::parse_duration(text) {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        return Ok(now.saturating_sub(age));
    }
    let midnight = || time::parse_iso(format!("{text}T00:00:00").as_bytes());
    time::parse_iso(text.as_bytes()).or_else(midnight).ok_or_else(|| {
        "expected a time such as 2024-01-31T12:00:00Z, a date such as 2024-01-31, or an age such as 2h"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        let second = 1_000_000_000;
        let now = 1_706_702_400 * second; // 2024-01-31T12:00:00Z
        for (text, seconds) in [
            ("2h", Some(1_706_695_200)),
            ("1d", Some(1_706_616_000)),
            ("2024-01-31", Some(1_706_659_200)),
            ("2024-01-31T12:00:00Z", Some(1_706_702_400)),
            ("2024-01-31 14:00:00+02:00", Some(1_706_702_400)),
            ("35000d", Some(0)),
            ("2024-02-30", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(
                parse_bound(text, now).ok(),
                seconds.map(|s| s * second),
                "{text}"
            );
        }
    }
}
