//! The figures of the source articles, drawn by the production code.

mod credit_pool;
mod exponential;
mod tracking;
mod windows;

use std::str::FromStr;

use earrrl::RuleError;

use crate::plot::Figure;

/// A figure of an article.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
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

impl Name {
    /// Every figure with its name on the command line.
    const ALL: [(&str, Self); 6] = [
        ("tracking", Self::Tracking),
        ("tracking-short", Self::TrackingShort),
        ("windowed-vs-recent", Self::WindowedVsRecent),
        ("doubled-window", Self::DoubledWindow),
        ("credit-pool", Self::CreditPool),
        ("exponential", Self::Exponential),
    ];
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        found.map(|(_, figure)| figure).ok_or_else(|| format!("expected {}", names()))
    }
}

/// Draws a figure.
///
/// # Errors
/// None, since its rules and clients are right; but they are text.
pub fn draw(name: Name) -> Result<Figure, RuleError> {
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
        for (_, name) in Name::ALL {
            let svg = crate::plot::svg(&draw(name).unwrap(), None).unwrap();
            assert!(svg.contains("seconds") || svg.contains("minutes"));
        }
    }
}
