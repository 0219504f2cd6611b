//! The algorithms that a `rate_limit` of envoyproxy/ratelimit can stand for.

use earrrl::{Rule, RuleError};

use super::file::{Amount, LimitConfig};
use super::unit::Unit;

/// The algorithm of limits that name none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EnvoyAlgorithm {
    /// A count that starts again at every multiple of the unit, as in envoyproxy/ratelimit.
    #[default]
    FixedWindow,
    /// A window of one unit that ends now, in fifty parts.
    SlidingWindow,
    /// All requests of a unit at once, then one by one at its rate.
    Gcra,
    /// A running estimate of the rate over a unit.
    RecentAverage,
}

impl EnvoyAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 4] =
        [Self::FixedWindow, Self::SlidingWindow, Self::Gcra, Self::RecentAverage];

    /// Returns the algorithm's name in the rule grammar.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::Gcra => "gcra",
            Self::RecentAverage => "recent-average",
        }
    }

    /// Returns the algorithm of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Returns the rule for a number of requests per unit; `None` for zero requests.
    ///
    /// # Errors
    /// Fails if the algorithm cannot have the rate.
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
    /// Returns the rule of a limit; `None` if it allows everything or nothing.
    ///
    /// # Errors
    /// Fails if the algorithm cannot have the rate.
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
