//! The value of the `date` header, which each thread formats at most once a second.

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderValue;
use httpdate::fmt_http_date;

thread_local! {
    static LAST: RefCell<(u64, Option<HeaderValue>)> = const { RefCell::new((0, None)) };
}

/// Returns the present time as the value of a `date` header.
pub(super) fn now() -> Option<HeaderValue> {
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    LAST.with_borrow_mut(|last| {
        if last.1.is_none() || last.0 != second {
            *last = (second, HeaderValue::try_from(fmt_http_date(now)).ok());
        }
        last.1.clone()
    })
}
