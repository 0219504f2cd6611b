//! The figures of the article that describes recent-average, drawn with the library's own limiters.

mod credit_pool;
mod exponential;
mod tracking;
mod windows;

use earrrl::RuleError;
use earrrl_logs::plot::Figure;

/// The colour of averages in all figures, that of windows, and that of buckets.
const AVERAGE: usize = 0;
const WINDOW: usize = 1;
const BUCKET: usize = 2;

/// Returns each figure with its name.
///
/// # Errors
/// Returns an error if a rule or client of a figure is invalid, which would be a bug in this module.
pub(crate) fn all() -> Result<[(&'static str, Figure); 6], RuleError> {
    Ok([
        // The estimated rates of three clients that start, keep their rate and stop.
        ("tracking", tracking::figure(10)?),
        // The same with a half-life of 1 s: the estimates adapt faster but fluctuate more.
        ("tracking-short", tracking::figure(1)?),
        // Fixed windows admit a client above its limit again in every window; recent-average admits it
        // only once it slows down.
        ("windowed-vs-recent", windows::windowed_vs_recent()?),
        // A client gets twice its quota within a minute, on both sides of a fixed window's edge.
        ("doubled-window", windows::doubled_window()?),
        // A pool of credits that regenerate, with cheap and expensive requests.
        ("credit-pool", credit_pool::figure()?),
        // An exponential average of a client with a burst, a steady client and one that rarely sends.
        ("exponential", exponential::figure()?),
    ])
}
