//! What a `rate_limit` of this many requests in a unit means.

use earrrl::{Rule, RuleError};

use super::file::{Amount, LimitConfig};
use super::unit::Unit;

/// The algorithm for all limits that don't say their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnvoyAlgorithm {
    /// The peer's: a count that starts again at every multiple of the unit.
    #[default]
    FixedWindow,
    /// A unit that ends now, in fifty parts.
    SlidingWindow,
    /// All requests of a unit at once, then one by one at its rate.
    Gcra,
    /// A running estimate of the rate over a unit.
    RecentAverage,
}

impl EnvoyAlgorithm {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::FixedWindow, Self::SlidingWindow, Self::Gcra, Self::RecentAverage];

    /// Its name in the rule grammar.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::Gcra => "gcra",
            Self::RecentAverage => "recent-average",
        }
    }

    /// The algorithm of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// The rule for this many requests in each unit; `None` for no request at all.
    ///
    /// # Errors
    /// A rate that the algorithm can't have.
    pub fn rule(self, requests: u32, unit: Unit) -> Result<Option<Rule>, RuleError> {
        if requests == 0 {
            return Ok(None);
        }
        let (name, secs) = (self.name(), unit.duration().as_secs());
        let options = match self {
            Self::FixedWindow => String::new(),
            Self::SlidingWindow => " sub-windows=50".to_owned(),
            Self::Gcra => format!(" burst={requests}"),
            Self::RecentAverage => format!(" period={secs}s"),
        };
        format!("{name} {requests}/{secs}s{options}").parse().map(Some)
    }
}

impl LimitConfig {
    /// The rule that decides it; `None` where everything or nothing is allowed.
    ///
    /// # Errors
    /// A rate that the algorithm can't have.
    pub fn rule(&self, algorithm: EnvoyAlgorithm) -> Result<Option<Rule>, RuleError> {
        let rule = match (&self.limit, self.amount) {
            (Some(limit), _) => Some(Rule::from(*limit)),
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
        let units = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Year];
        for algorithm in EnvoyAlgorithm::ALL {
            assert_eq!(EnvoyAlgorithm::parse(algorithm.name()), Some(algorithm));
            assert_eq!(algorithm.rule(0, Unit::Day).unwrap(), None);
            for unit in units {
                for requests in [1, 7, 1_000_000] {
                    assert!(algorithm.rule(requests, unit).unwrap().is_some());
                }
            }
        }
    }
}
