//! The algorithms that can enforce a `rate_limit` of envoyproxy/ratelimit.

use earrrl::{Rule, RuleError};

use super::file::{Amount, LimitConfig};
use crate::protobuf::ratelimit::Unit;

/// The algorithm of limits that do not name an algorithm themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EnvoyAlgorithm {
    /// Counts requests from zero in each unit of time, as envoyproxy/ratelimit does.
    #[default]
    FixedWindow,
    /// Counts requests from zero in each week, month and year of the calendar in UTC, and in each shorter unit.
    Calendar,
    /// Counts the requests of the last unit of time, in fifty parts.
    SlidingWindow,
    /// Allows the requests of one unit at once, and then one at a time at the limit's rate.
    Gcra,
    /// Estimates the rate of the requests over about one unit of time.
    RecentAverage,
}

impl EnvoyAlgorithm {
    /// All algorithms, in the order in which errors list them.
    pub const ALL: [Self; 5] = [
        Self::FixedWindow,
        Self::Calendar,
        Self::SlidingWindow,
        Self::Gcra,
        Self::RecentAverage,
    ];

    /// Returns the name of the algorithm: that of the rule grammar, or `calendar`.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::Calendar => "calendar",
            Self::SlidingWindow => "sliding-window",
            Self::Gcra => "gcra",
            Self::RecentAverage => "recent-average",
        }
    }

    /// Returns the algorithm for limits that requests bring. These are compared with a count, so it is
    /// one that counts: where the configured one does not, it is the one that lets no more pass.
    pub fn that_counts(self) -> Self {
        match self {
            Self::FixedWindow | Self::Calendar => self,
            Self::SlidingWindow | Self::Gcra | Self::RecentAverage => Self::SlidingWindow,
        }
    }

    /// Returns the rule that allows this number of requests per unit of time; `None` if the number
    /// is zero.
    ///
    /// # Errors
    /// Returns an error if the algorithm cannot enforce this rate.
    pub fn rule(self, requests: u32, unit: Unit) -> Result<Option<Rule>, RuleError> {
        if requests == 0 {
            return Ok(None);
        }
        let name = self.name();
        let secs = unit.duration().as_secs();
        let text = match self {
            Self::FixedWindow => format!("{name} {requests}/{secs}s"),
            Self::Calendar => format!("fixed-window {requests}/{}", unit.name()),
            Self::SlidingWindow => format!("{name} {requests}/{secs}s sub-windows=50"),
            Self::Gcra => format!("{name} {requests}/{secs}s burst={requests}"),
            Self::RecentAverage => format!("{name} {requests}/{secs}s period={secs}s"),
        };
        text.parse().map(Some)
    }
}

impl LimitConfig {
    /// Returns the rule that enforces a limit; `None` if the limit allows everything or nothing.
    ///
    /// # Errors
    /// Returns an error if the algorithm cannot enforce the limit's rate.
    pub fn rule(&self, algorithm: EnvoyAlgorithm) -> Result<Option<Rule>, RuleError> {
        let rule = match (&self.limit, self.amount) {
            (Some(limit), _) => Some(Rule::from(**limit)),
            (None, Amount::PerUnit(requests, unit)) => algorithm.rule(requests, unit)?,
            (None, _) => None,
        };
        rule.map(|rule| rule.with_action(self.action)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_has_a_rule_for_every_unit() {
        let units = [
            Unit::Second,
            Unit::Minute,
            Unit::Hour,
            Unit::Day,
            Unit::Week,
            Unit::Month,
            Unit::Year,
        ];
        for algorithm in EnvoyAlgorithm::ALL {
            assert_eq!(algorithm.rule(0, Unit::Day).unwrap(), None);
            for unit in units {
                for requests in [1, 7, 1_000_000] {
                    assert!(algorithm.rule(requests, unit).unwrap().is_some());
                }
            }
        }
    }
}
