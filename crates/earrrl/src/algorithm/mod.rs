//! The algorithms, one file each: pure functions of (limit, state, now, cost).
//!
//! Each file holds a limit's parameters (validated when built), the state of one client, and an
//! implementation of [`Algorithm`]: which requests are allowed, how a request changes the state,
//! and the figures after a decision. [`Limit::decide`] holds the common part: judge the request,
//! then store it.
//!
//! Time must not go back between calls on one state; see [`crate::Clock`].

use crate::error::RuleError;
use crate::grammar::RuleWords;

mod calendar;
pub mod concurrent;
mod contract;
pub mod exponential;
pub mod fixed_window;
mod limit;
mod list;
mod places;
pub mod recent_average;
pub mod sliding_counter;
pub mod sliding_log;
pub mod sliding_window;
mod tally;
mod time_zone;
pub mod token_bucket;
mod two_counts;
mod window_words;
mod windowed;

list::algorithms! {
    /// The estimated average recent request rate.
    RecentAverage recent_average,
    /// Exponential rate limiting.
    Exponential exponential,
    /// Token bucket, also known as credit pool or gcra.
    TokenBucket token_bucket,
    /// Fixed window.
    FixedWindow fixed_window,
    /// Sliding window log.
    SlidingLog sliding_log,
    /// Hybrid sliding window, which counts in sub-windows.
    SlidingWindow sliding_window,
    /// Two-window sliding counter.
    SlidingCounter sliding_counter,
    /// Concurrency limit, which counts the reservations that are live at a time.
    Concurrent concurrent,
}

pub use crate::policy::{Mode, Policy, Replenishment, Waits};
pub use contract::{Algorithm, ClientState, Moment, Word};
#[cfg(feature = "std")]
pub(crate) use contract::{Judged, figures, judge};
pub(crate) use limit::parse;
#[cfg(feature = "std")]
pub(crate) use list::in_words;
pub use tally::Tally;
