//! The `date` header, written once a second by each thread.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderValue;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

thread_local! {
    static LAST: RefCell<(i64, Option<HeaderValue>)> = const { RefCell::new((0, None)) };
}

/// Returns the present time for a `date` header; none for a time that the format cannot express.
pub(super) fn now() -> Option<HeaderValue> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let second = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    LAST.with_borrow_mut(|last| {
        if last.1.is_none() || last.0 != second {
            *last = (second, at(second));
        }
        last.1.clone()
    })
}

fn at(second: i64) -> Option<HeaderValue> {
    let time = Timestamp::from_second(second).ok()?;
    let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok()?;
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_http_demands() {
        assert_eq!(at(784_111_777).unwrap(), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(now().is_some());
    }
}
