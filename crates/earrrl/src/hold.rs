//! The terms of a reservation, and the answers to a reservation and to its commit.

use alloc::format;
use core::time::Duration;

use smallvec::SmallVec;

use crate::cost::Cost;
use crate::decision::Decision;
use crate::error::RuleError;
use crate::hold_id::HoldId;
use crate::rule_id::RuleId;

/// The longest time for which a reservation can be live.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The terms of a reservation: live for at most five minutes by default, for the whole estimate.
///
/// ```
/// use earrrl::HoldTerms;
/// use std::time::Duration;
///
/// let terms = HoldTerms::default().ttl(Duration::from_secs(30)).at_most();
/// assert!(terms.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldTerms {
    /// The time after which the reservation expires: 1 ms to one day.
    pub ttl: Duration,
    /// True if less than the estimate may be granted: the remaining quota, in whole units.
    pub at_most: bool,
    /// The id that the caller chose for the reservation.
    pub id: Option<HoldId>,
}

impl Default for HoldTerms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(300),
            at_most: false,
            id: None,
        }
    }
}

impl HoldTerms {
    /// Sets the time after which the reservation expires.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Permits a grant of less than the estimate.
    #[must_use]
    pub fn at_most(self) -> Self {
        Self {
            at_most: true,
            ..self
        }
    }

    /// Chooses the id of the reservation, so that the same request can be sent again if its answer is lost: it is
    /// charged once. Choose 32 random digits for each reservation. The answer's id differs in the first eight, which
    /// show that the engine made it.
    ///
    /// ```
    /// use earrrl::{Charge, Cost, HoldId, HoldTerms, MemoryEngine};
    ///
    /// let engine = MemoryEngine::new(1000)?;
    /// let rule = engine.prepare_with("tokens", &"fixed-window 1000/1d".parse()?, 1000)?;
    /// let charge = Charge { rule, key: b"alice", cost: Cost::from_units(100) };
    /// let terms = HoldTerms::default().id("5b0ece9a00112233445566778899aabb".parse()?);
    /// let first = engine.hold(&[charge], terms, None)?;
    /// let again = engine.hold(&[charge], terms, None)?;
    /// assert_eq!((first.id, again.decision.remaining), (again.id, 900));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn id(self, id: HoldId) -> Self {
        Self {
            id: Some(id),
            ..self
        }
    }

    /// Returns an error if the time to live is out of its bounds.
    ///
    /// ```
    /// # use earrrl::HoldTerms;
    /// # use std::time::Duration;
    /// assert!(HoldTerms::default().check().is_ok());
    /// assert!(HoldTerms::default().ttl(Duration::ZERO).check().is_err());
    /// ```
    ///
    /// # Errors
    /// Returns an error if `ttl` is below 1 ms or above one day.
    pub fn check(&self) -> Result<(), RuleError> {
        if (Duration::from_millis(1)..=LONGEST).contains(&self.ttl) {
            return Ok(());
        }
        let problem = format!("{:?} is not from 1ms to 24h", self.ttl);
        Err(RuleError::out_of_range(problem).of("ttl"))
    }
}

/// The answer to a reservation.
///
/// ```
/// use earrrl::{Charge, Cost, HoldTerms, MemoryEngine};
///
/// let engine = MemoryEngine::new(1000)?;
/// let rule = engine.prepare_with("tokens", &"fixed-window 1000/1d".parse()?, 1000)?;
/// let charge = Charge { rule, key: b"alice", cost: Cost::from_units(4096) };
/// // The estimate is above the quota; the terms permit a grant of less.
/// let holding = engine.hold(&[charge], HoldTerms::default().at_most(), None)?;
/// assert_eq!(holding.granted(), [Cost::from_units(1000)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Holding {
    /// The decision on the estimate.
    pub decision: Decision,
    /// The id for the commit; `None` if the request was denied.
    pub id: Option<HoldId>,
    granted: SmallVec<[Cost; 1]>,
}

impl Holding {
    /// Returns an answer, for engines outside of this crate.
    #[must_use]
    pub fn new(
        decision: Decision,
        id: Option<HoldId>,
        granted: impl IntoIterator<Item = Cost>,
    ) -> Self {
        Self {
            decision,
            id,
            granted: granted.into_iter().collect(),
        }
    }

    /// Returns the granted cost of each charge, in the order of the request; 0 if the request was
    /// denied. Several charges to one client of one rule are granted as one, the first.
    #[must_use]
    pub fn granted(&self) -> &[Cost] {
        &self.granted
    }
}

/// The actual cost of a reserved request.
///
/// ```
/// use earrrl::{Actual, Cost, RuleId};
///
/// let (requests, tokens) = (RuleId(0), RuleId(1));
/// let same = Actual::All(Cost::ONE);
/// let each = [(requests, Cost::ONE), (tokens, Cost::from_units(731))];
/// let different = Actual::ByRule(&each);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Actual<'a> {
    /// The same cost under every rule.
    All(Cost),
    /// A cost for each of these rules. The estimates of other rules become their actual costs.
    ByRule(&'a [(RuleId, Cost)]),
}

impl Actual<'_> {
    /// Returns the actual cost under a rule whose estimate was `estimate`.
    ///
    /// ```
    /// # use earrrl::{Actual, Cost, RuleId};
    /// let (requests, tokens) = (RuleId(0), RuleId(1));
    /// let costs = [(tokens, Cost::from_units(731))];
    /// let actual = Actual::ByRule(&costs);
    /// assert_eq!(actual.under(tokens, Cost::from_units(4096)), Cost::from_units(731));
    /// assert_eq!(actual.under(requests, Cost::ONE), Cost::ONE); // as estimated
    /// ```
    #[must_use]
    pub fn under(&self, rule: RuleId, estimate: Cost) -> Cost {
        match self {
            Self::All(cost) => *cost,
            Self::ByRule(costs) => {
                let found = costs.iter().find(|(known, _)| *known == rule);
                found.map_or(estimate, |(_, cost)| *cost)
            }
        }
    }
}

impl Actual<'_> {
    /// Returns a rule with a cost for which `is_part` is false; `None` if there is none.
    #[doc(hidden)]
    pub fn unknown(&self, is_part: impl Fn(RuleId) -> bool) -> Option<RuleId> {
        let Self::ByRule(costs) = self else {
            return None;
        };
        let mut rules = costs.iter().map(|(rule, _)| *rule);
        rules.find(|rule| !is_part(*rule))
    }
}

/// The answer to a commit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Committed {
    /// The decision that a request of cost 1 would get now.
    pub decision: Decision,
    rules: SmallVec<[RuleId; 4]>,
    /// True if the reservation was committed before. Nothing was changed this time.
    pub repeated: bool,
}

impl Committed {
    /// Returns an answer, for engines outside of this crate.
    #[must_use]
    pub fn new(
        decision: Decision,
        rules: impl IntoIterator<Item = RuleId>,
        repeated: bool,
    ) -> Self {
        Self {
            decision,
            rules: rules.into_iter().collect(),
            repeated,
        }
    }

    /// Returns the rules of the reservation; [`Decision::rule`] is a place among them.
    #[must_use]
    pub fn rules(&self) -> &[RuleId] {
        &self.rules
    }
}
