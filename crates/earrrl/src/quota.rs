//! The quota of a limit as the `RateLimit` headers report it.

use crate::algorithm::Limit;
use crate::decision::Decision;

/// A quota and its window, rounded to whole units and seconds for the `RateLimit` headers.
///
/// ```
/// use earrrl::{Quota, Rule};
/// let rule: Rule = "gcra 1/s burst=60".parse()?;
/// let quota = Quota::of(rule.limit());
/// assert_eq!((quota.units, quota.window), (60, Some(60)));
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The quota in whole cost units.
    pub units: u64,
    /// The window in whole seconds; `None` if it is shorter than a second, or the limit counts
    /// concurrent reservations.
    pub window: Option<u64>,
    /// True if the units are concurrent reservations.
    pub is_concurrent: bool,
}

impl Quota {
    /// Returns the quota of a limit.
    ///
    /// ```
    /// # use earrrl::{Quota, Rule};
    /// let rule: Rule = "fixed-window 100/1h".parse()?;
    /// let quota = Quota::of(rule.limit());
    /// assert_eq!((quota.units, quota.window), (100, Some(3600)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(limit: &Limit) -> Self {
        let (units, seconds) = limit.allowance();
        // A division may leave a whole number slightly below or above its exact value, so both
        // roundings allow for a relative error of 1e-12, though for at most a tenth of a unit.
        let units = (units + (units * 1e-12).min(0.1)) as u64;
        let below = (seconds * (1.0 - 1e-12)) as u64;
        let is_concurrent = limit.is_concurrent();
        let has_window = seconds >= 1.0 && !is_concurrent;
        Self {
            units,
            window: has_window.then_some(below + 1),
            is_concurrent,
        }
    }

    /// Returns the units that a decision under `limit` alone leaves to the client, with their fraction. They are whole
    /// under recent-average, exponential and concurrent, which tell how many requests of cost 1 would pass.
    ///
    /// ```
    /// # use earrrl::{Limit, Mode, Nanos, Quota, Rule};
    /// let rule: Rule = "fixed-window 5/1d".parse()?;
    /// let (_, decision) = rule.limit().decide(None, Nanos::ZERO, "0.000315".parse()?, Mode::Check);
    /// assert_eq!(decision.remaining, 4);
    /// assert!((Quota::left(rule.limit(), &decision) - 4.999685).abs() < 1e-9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn left(limit: &Limit, decision: &Decision) -> f64 {
        let (units, seconds) = limit.allowance();
        let used = match (limit, decision.rate) {
            (Limit::TokenBucket(_), _) => decision.reset_after.as_secs_f64() * limit.per_second(),
            (Limit::RecentAverage(_) | Limit::Exponential(_) | Limit::Concurrent(_), _)
            | (_, None) => return decision.remaining as f64,
            (_, Some(rate)) => rate * seconds,
        };
        (units - used).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Rule;

    #[test]
    fn every_algorithm_has_its_quota() {
        for (text, units, window) in [
            ("recent-average 1/s period=60s", 60, Some(60)),
            ("recent-average 0.01/s half-life=1s", 1, Some(2)),
            ("exponential 2.5/1m", 2, Some(60)),
            ("token-bucket 60 refill=1/s", 60, Some(60)),
            ("gcra 10/s burst=5", 5, None),
            ("gcra 3/s burst=10", 10, Some(4)),
            ("fixed-window 60/1m", 60, Some(60)),
            (
                "fixed-window 69120000000000/100d",
                69_120_000_000_000,
                Some(8_640_000),
            ),
            ("sliding-log 60/500ms", 60, None),
            ("sliding-window 600/1h", 600, Some(3600)),
            ("sliding-counter 60/90s", 60, Some(90)),
            ("concurrent 10 timeout=60s", 10, None),
        ] {
            let rule: Rule = text.parse().unwrap();
            let is_concurrent = text.starts_with("concurrent");
            let expected = Quota {
                units,
                window,
                is_concurrent,
            };
            assert_eq!(Quota::of(rule.limit()), expected, "{text}");
        }
    }
}
