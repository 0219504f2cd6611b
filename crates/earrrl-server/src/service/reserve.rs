//! Reservations: the decision on an estimate, and its correction to the actual cost.

use std::time::Duration;

use earrrl::{Actual, Charge, Cost, HoldId, HoldTerms, Mode, RuleId};
use smallvec::SmallVec;

use super::Service;
use super::answer::{AllCharged, Answer, Charged};
use super::ask::{Ask, charges_of};
use super::attributes::Attributes;
use super::error::AskError;
use super::rules::ActiveRules;

/// The answer to a reservation.
#[derive(Debug, Default)]
pub struct Reserved<'a> {
    /// The decision on the estimate.
    pub answer: Answer<'a>,
    /// The id for the commit; `None` if the request is denied, or no rule applies to it.
    pub id: Option<HoldId>,
    /// The granted cost of each charge.
    pub granted: SmallVec<[Cost; 1]>,
}

impl Reserved<'_> {
    /// Inserts the grants of charges whose client is exempt, so that the list has an item for each charge:
    /// the whole estimate, or nothing if the request is denied.
    fn grant_exempt(&mut self, asks: &[Ask<'_>]) {
        let is_denied = self.answer.is_over();
        let mut counted = std::mem::take(&mut self.granted).into_iter();
        let granted = asks.iter().map(|ask| match ask.charge() {
            Some(_) => counted.next().unwrap_or_default(),
            None if is_denied => Cost::ZERO,
            None => ask.cost,
        });
        self.granted = granted.collect();
    }
}

/// The actual costs of a reserved request, by the names of rules.
#[derive(Clone, Debug, PartialEq)]
pub enum ActualCosts<'a> {
    /// The same cost under every rule; `None` if it is the estimate.
    All(Option<Cost>),
    /// A cost for each of these rules. Other rules keep their estimates.
    ByRule(Vec<(&'a str, Cost)>),
}

impl Service {
    /// Reserves the estimates of a request under one or several rules: under all of them, or, if
    /// one denies it, under none. The answer has the quota that is left if `available` is true.
    ///
    /// # Errors
    /// Returns an [`AskError`] if a charge or the terms are invalid, there are too many charges, or
    /// as many reservations are live as are kept.
    pub async fn reserve<'a>(
        &self,
        asks: &[Ask<'a>],
        terms: HoldTerms,
        available: bool,
    ) -> Result<Reserved<'a>, AskError> {
        let (charged, charges) = charges_of(asks);
        let exempts = charges.len() < asks.len();
        let mut reserved = self.hold(charged, &charges, terms, available).await?;
        if exempts {
            reserved.grant_exempt(asks);
        }
        Ok(reserved)
    }

    /// Reserves under every rule that matches a request's attributes, at the cost that the rule
    /// sets. The answer has the quota that is left.
    ///
    /// # Errors
    /// Returns the errors of [`Service::reserve`].
    pub async fn reserve_matching<'a>(
        &self,
        rules: &'a ActiveRules,
        request: &Attributes<'_>,
        terms: HoldTerms,
    ) -> Result<Reserved<'a>, AskError> {
        let asks = match self.matched(rules.iter(), request, Mode::Check) {
            Ok(asks) => asks,
            Err(denial) => {
                return Ok(Reserved {
                    answer: *denial,
                    ..Reserved::default()
                });
            }
        };
        let (charged, charges) = charges_of(&asks);
        self.hold(charged, &charges, terms, true).await
    }

    pub(super) async fn hold<'a>(
        &self,
        charged: AllCharged<'a>,
        charges: &[Charge<'_>],
        terms: HoldTerms,
        available: bool,
    ) -> Result<Reserved<'a>, AskError> {
        if charges.is_empty() {
            terms.check()?;
            return Ok(Reserved::default());
        }
        let holding = self.engine.hold(charges, terms).await?;
        let mut answer = Answer::new(charged, holding.decision);
        self.count(&answer, charges, Mode::Check);
        if available {
            self.add_available(&mut answer, charges).await;
        }
        Ok(Reserved {
            answer,
            id: holding.id,
            granted: holding.granted().into(),
        })
    }

    /// Corrects a reservation to its actual costs. Returns the figures after it, and true if the
    /// reservation was committed before.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the reservation is unknown or expired, or a cost is too large or
    /// for a rule that is not part of the reservation.
    pub async fn commit<'a>(
        &self,
        rules: &'a ActiveRules,
        id: HoldId,
        costs: &ActualCosts<'_>,
    ) -> Result<(Answer<'a>, bool), AskError> {
        let by_rule = match costs {
            ActualCosts::ByRule(costs) => {
                by_rule(rules, &self.engine.reserved_rules(id).await?, costs)?
            }
            ActualCosts::All(_) => Vec::new(),
        };
        let actual = match costs {
            ActualCosts::All(Some(cost)) => Actual::All(*cost),
            _ => Actual::ByRule(&by_rule),
        };
        let committed = self.engine.commit(id, actual).await?;
        let mut decision = committed.decision;
        let deciding = committed
            .rules()
            .get(decision.rule)
            .and_then(|id| rules.of_id(*id));
        // Only the deciding rule is named; none if it was removed from the configuration meanwhile.
        let deciding = deciding.map(|(rule, limit)| Charged::new(rule, limit));
        decision.rule = 0;
        let answer = Answer::new(deciding.into_iter().collect(), decision);
        Ok((answer, committed.repeated))
    }

    /// Prolongs a live reservation: it then expires after `ttl` from now, or sooner if the timeout of
    /// one of its rules of concurrent is shorter.
    ///
    /// # Errors
    /// Returns an [`AskError`] if the reservation is unknown, expired or committed, or `ttl` is out
    /// of its bounds.
    pub async fn renew(&self, id: HoldId, ttl: Duration) -> Result<(), AskError> {
        Ok(self.engine.renew(id, ttl).await?)
    }
}

/// Returns the time to live of a reservation, of which the number of seconds is given like a cost, exact
/// to 1e-9. `shown` is the text of it.
///
/// # Errors
/// Returns an error that shows the text if it is no number, or out of its bounds.
pub(crate) fn time_to_live(shown: &str, seconds: Option<Cost>) -> Result<Duration, AskError> {
    let nanos = seconds.and_then(|seconds| u64::try_from(seconds.billionths()).ok());
    let ttl = nanos.map(Duration::from_nanos);
    ttl.filter(|ttl| HoldTerms::default().ttl(*ttl).check().is_ok())
        .ok_or_else(|| {
            AskError::Invalid(format!(
                "ttl: {shown} is not a number of seconds from 0.001 to 86400"
            ))
        })
}

/// Returns the terms with the id that a client chose for its reservation, so that it can repeat its request.
///
/// # Errors
/// Returns an error if the text is no id.
pub(crate) fn with_id(terms: HoldTerms, text: &str) -> Result<HoldTerms, AskError> {
    Ok(terms.id(text.parse()?))
}

/// Returns the costs by the ids of the reservation's limits.
///
/// The limits of one rule are several if some clients of the reservation have overrides: the rule's cost
/// counts under each. A rule that exempts the client has no limit in the reservation, and the
/// configuration may have lost a rule meanwhile. The costs of both are ignored, so that a caller who
/// names the same rules in every commit can commit.
fn by_rule(
    rules: &ActiveRules,
    reserved: &[RuleId],
    costs: &[(&str, Cost)],
) -> Result<Vec<(RuleId, Cost)>, AskError> {
    let is_removed = |id: &RuleId| rules.of_id(*id).is_none();
    let mut all = Vec::with_capacity(costs.len());
    for (place, (name, cost)) in costs.iter().enumerate() {
        if costs[..place].iter().any(|(earlier, _)| earlier == name) {
            return Err(AskError::invalid(format!("costs: `{name}` is named twice")));
        }
        match rules.get(name.as_bytes()) {
            Some(rule) => {
                let ids = reserved.iter().filter(|id| rule.has_limit(**id));
                all.extend(ids.map(|id| (*id, *cost)));
            }
            None if reserved.iter().any(is_removed) => {}
            None => {
                return Err(AskError::invalid(format!(
                    "costs: no rule is named `{}`",
                    name.escape_debug()
                )));
            }
        }
    }
    Ok(all)
}
