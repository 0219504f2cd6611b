//! The algorithms: pure functions of (limit, state, now, cost), one file each.
//!
//! A file holds the parameters of a limit (validated when built), the state of one client, and an
//! [`Algorithm`]: what is allowed, what a request adds, what can be said afterwards. What is common
//! to all of them, judging first and then storing, is written once, in [`Limit::decide`].
//!
//! Time must not go back between calls on one state; see [`crate::Clock`].

use crate::clock::Nanos;
use crate::error::RuleError;
use crate::grammar::Words;

mod contract;
pub mod exponential;
pub mod fixed_window;
mod limit;
mod list;
pub mod recent_average;
pub mod sliding_counter;
pub mod sliding_log;
pub mod sliding_window;
mod tally;
pub mod token_bucket;
mod windowed;

list::algorithms! {
    /// Estimated average recent request rate.
    RecentAverage recent_average,
    /// Exponential rate limiting.
    Exponential exponential,
    /// Token bucket, credit pool, gcra.
    TokenBucket token_bucket,
    /// Fixed window.
    FixedWindow fixed_window,
    /// Sliding window log.
    SlidingLog sliding_log,
    /// Hybrid sliding window.
    SlidingWindow sliding_window,
    /// Two-window sliding counter.
    SlidingCounter sliding_counter,
}

pub use crate::policy::{Mode, Policy, Replenishment};
pub use contract::{Algorithm, ClientState, Moment};
#[cfg(feature = "std")]
pub(crate) use contract::{Judged, figures, judge};
pub(crate) use limit::parse;
pub use tally::Tally;
