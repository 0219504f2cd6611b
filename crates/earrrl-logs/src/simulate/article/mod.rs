//! The figures of the articles about the algorithms, drawn with the library's own limiters.

mod credit_pool;
mod exponential;
mod tracking;
mod windows;

use std::str::FromStr;

use earrrl::RuleError;

use crate::plot::Figure;

/// The name of a figure of the articles.
///
/// ```
/// use earrrl_logs::simulate::FigureName;
///
/// assert_eq!("tracking".parse(), Ok(FigureName::Tracking));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureName {
    /// The estimated rates of three clients that start, keep their rate and stop; half-life 10 s.
    Tracking,
    /// The same clients with a half-life of 1 s: the estimates adapt faster but fluctuate more.
    TrackingShort,
    /// Fixed windows admit a client above its limit again in every window; recent-average admits it
    /// only once it slows down.
    WindowedVsRecent,
    /// A client gets twice its quota within a minute, on both sides of a fixed window's edge.
    DoubledWindow,
    /// A pool of credits that regenerate, with cheap and expensive requests.
    CreditPool,
    /// An exponential average of a client with a burst, a steady client and one that rarely sends.
    Exponential,
}

impl FigureName {
    /// The command line name of every figure.
    const ALL: [(&str, Self); 6] = [
        ("tracking", Self::Tracking),
        ("tracking-short", Self::TrackingShort),
        ("windowed-vs-recent", Self::WindowedVsRecent),
        ("doubled-window", Self::DoubledWindow),
        ("credit-pool", Self::CreditPool),
        ("exponential", Self::Exponential),
    ];
}

impl FromStr for FigureName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        found
            .map(|(_, figure)| figure)
            .ok_or_else(|| format!("expected {}", names()))
    }
}

/// Draws a figure.
///
/// ```
/// use earrrl_logs::simulate::{FigureName, draw};
///
/// let figure = draw(FigureName::Tracking)?;
/// assert!(earrrl_logs::plot::svg(&figure, None)?.starts_with("<svg"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if a rule or client of the figure is invalid, which would be a bug in this
/// module.
pub fn draw(name: FigureName) -> Result<Figure, RuleError> {
    match name {
        FigureName::Tracking => tracking::figure(10),
        FigureName::TrackingShort => tracking::figure(1),
        FigureName::WindowedVsRecent => windows::windowed_vs_recent(),
        FigureName::DoubledWindow => windows::doubled_window(),
        FigureName::CreditPool => credit_pool::figure(),
        FigureName::Exponential => exponential::figure(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_can_be_drawn() {
        for (_, name) in FigureName::ALL {
            let svg = crate::plot::svg(&draw(name).unwrap(), None).unwrap();
            assert!(svg.contains("seconds") || svg.contains("minutes"));
        }
    }
}
