//! The figures of the source articles, drawn by the production code.

mod credit_pool;
mod exponential;
mod tracking;
mod windows;

use clap::ValueEnum;
use earrrl::RuleError;

use crate::plot::Figure;

/// A figure of an article.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// The estimates of three clients that start, keep their rate, and stop; half-life 10 s
    Tracking,
    /// The same with a half-life of 1 s: it follows faster, and trembles more
    TrackingShort,
    /// Fixed windows forgive a greedy client at every window; recent-average once it slows down
    WindowedVsRecent,
    /// Twice the quota within a minute, on both sides of the edge of a fixed window
    DoubledWindow,
    /// A pool of credits that regenerate: cheap and expensive requests
    CreditPool,
    /// An exponential average measures a burst, a steady client and a rare one
    Exponential,
}

/// Draws a figure.
///
/// # Errors
/// None, since its rules and clients are right; but they are text.
pub(crate) fn draw(name: Name) -> Result<Figure, RuleError> {
    match name {
        Name::Tracking => tracking::figure(10),
        Name::TrackingShort => tracking::figure(1),
        Name::WindowedVsRecent => windows::windowed_vs_recent(),
        Name::DoubledWindow => windows::doubled_window(),
        Name::CreditPool => credit_pool::figure(),
        Name::Exponential => exponential::figure(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_can_be_drawn() {
        for &name in Name::value_variants() {
            let svg = crate::plot::svg(&draw(name).unwrap(), None).unwrap();
            assert!(svg.contains("seconds") || svg.contains("minutes"));
        }
    }
}
