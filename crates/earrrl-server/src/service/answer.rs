//! The answer to a request under one rule or several rules.

use std::ops::Range;
use std::time::Duration;

use earrrl::{Action, Decision, EngineError, Nanos, Outcome};
use earrrl_tower::headers::Available;
use smallvec::SmallVec;

use super::error::AskError;
use super::limit::PreparedLimit;
use super::rule::NamedRule;
use crate::metrics::PassReason;

/// The answer to a request under one rule or several rules.
#[derive(Clone, Debug, Default)]
pub struct Answer<'a> {
    /// The decision on the request; `None` if no rule applies or no rule could be judged. Its `rule` is an
    /// index into `charged`. Its `over` has the first charges only; all are in [`Charged::is_over`].
    pub decision: Option<Decision>,
    /// The charges of the request.
    pub charged: AllCharged<'a>,
    /// A rule that could not be judged. If several rules could not be judged, this is one that
    /// denies on errors, if there is any.
    pub unjudged: Option<Unjudged<'a>>,
}

/// The charges of a request, in their order. Few requests have more than two.
pub type AllCharged<'a> = SmallVec<[Charged<'a>; 2]>;

/// One charge of a request: the rule and the limit that it is charged under, and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Charged<'a> {
    /// The rule.
    pub rule: &'a NamedRule,
    /// The limit of the rule that applies to the client.
    pub limit: &'a PreparedLimit,
    /// The outcome of the request under this rule alone; `None` if the rule was not judged.
    pub outcome: Option<Outcome>,
    /// The instant at which a check stored the charge; `None` if it did not. This says nothing of a charge over its
    /// own limit.
    pub stored_at: Option<Nanos>,
    /// The quota that the client has left; `None` if it was not asked for
    /// ([`Manner::available`](super::ask::Manner::available)) or could not be found out.
    pub available: Option<Available>,
    /// The time until the client's requests no longer affect decisions, where `available` is known.
    pub reset_after: Duration,
}

impl<'a> Charged<'a> {
    /// Returns a charge that has not been judged.
    #[inline]
    pub(super) fn new(rule: &'a NamedRule, limit: &'a PreparedLimit) -> Self {
        Self {
            rule,
            limit,
            outcome: None,
            stored_at: None,
            available: None,
            reset_after: Duration::ZERO,
        }
    }

    /// Returns true if the request was over this limit.
    #[inline]
    pub fn is_over(&self) -> bool {
        !matches!(self.outcome, None | Some(Outcome::Allow))
    }

    /// Sets the outcome that this charge alone has in a decision, where it is at `place`.
    #[inline]
    pub(super) fn judge(&mut self, decision: &Decision, place: usize) {
        self.stored_at = decision.allowed.then_some(decision.at);
        self.outcome = Some(match self.limit.rule.action() {
            _ if !decision.is_over(place) => Outcome::Allow,
            Action::Observe => Outcome::Observe,
            Action::Quarantine => Outcome::Quarantine,
            Action::ShadowBan => Outcome::ShadowBan,
            Action::Delay { .. } if decision.outcome == Outcome::Delay => Outcome::Delay,
            _ => Outcome::Deny,
        });
    }

    /// Sets the quota that the client has left, as a decision under this limit alone has it.
    #[inline]
    pub(super) fn set_available(&mut self, decision: &Decision) {
        self.available = Some(Available::from_peek(&self.limit.rule, decision));
        self.reset_after = decision.reset_after;
    }
}

/// A rule that could not be judged, and the error that prevented it.
#[derive(Clone, Debug)]
pub struct Unjudged<'a> {
    /// The rule.
    pub rule: &'a NamedRule,
    /// The error that prevented the rule from being judged.
    pub error: AskError,
    /// True if the request is denied for it.
    pub denies: bool,
    /// The reason that is counted if the request passes.
    pub reason: PassReason,
}

impl<'a> Answer<'a> {
    /// Returns the answer that is this decision on all charges.
    #[inline]
    pub(super) fn new(mut charged: AllCharged<'a>, decision: Decision) -> Self {
        for (place, one) in charged.iter_mut().enumerate() {
            one.judge(&decision, place);
        }
        Self {
            decision: Some(decision),
            charged,
            unjudged: None,
        }
    }

    /// Returns the answer to a request that one rule denies without a charge.
    pub(super) fn refusal(
        rule: &'a NamedRule,
        limit: &'a PreparedLimit,
        refusal: Decision,
    ) -> Self {
        let mut denied = Charged::new(rule, limit);
        denied.set_available(&refusal);
        Self::new(SmallVec::from_slice(&[denied]), refusal)
    }

    /// Adds the decision on a part of the charges. The figures of the whole answer are those of the first
    /// denial, or else those of the first decision.
    pub(super) fn add(&mut self, mut decision: Decision, part: Range<usize>) {
        decision.rule += part.start;
        for (place, one) in self.charged[part].iter_mut().enumerate() {
            one.judge(&decision, place);
        }
        if self.decision.is_none() || !decision.allowed {
            self.decision = Some(decision);
        }
    }

    /// Notes that the engine failed to judge the charge at `place`, whose `on_error` decides the request.
    pub(super) fn fail(&mut self, place: usize, error: EngineError) {
        let rule = self.charged[place].rule;
        let denies = rule.denies_on_error();
        if denies {
            self.charged[place].outcome = Some(Outcome::Deny);
        }
        if denies || self.unjudged.is_none() {
            self.unjudged = Some(Unjudged {
                rule,
                error: error.into(),
                denies,
                reason: PassReason::RuleFailed,
            });
        }
    }

    /// Returns the charge that the figures in the decision belong to; `None` without a decision.
    pub fn deciding(&self) -> Option<&Charged<'a>> {
        self.charged.get(self.decision.as_ref()?.rule)
    }

    /// Returns the places and the rules of the charges that were over their limit.
    pub fn over(&self) -> impl Iterator<Item = (usize, &'a NamedRule)> + Clone {
        let each = self.charged.iter().enumerate();
        each.filter(|(_, one)| one.is_over())
            .map(|(place, one)| (place, one.rule))
    }

    /// Returns true if a limit denies the request.
    pub fn is_over(&self) -> bool {
        self.decision
            .as_ref()
            .is_some_and(|decision| !decision.allowed)
    }

    /// Returns true if the request is denied because a rule could not be judged.
    pub fn is_denied_by_error(&self) -> bool {
        self.unjudged
            .as_ref()
            .is_some_and(|unjudged| unjudged.denies)
    }

    /// Returns true if the request is denied, by a limit or by an error.
    pub(super) fn is_denied(&self) -> bool {
        self.is_over() || self.is_denied_by_error()
    }

    /// Returns this answer, or the error of a rule that could not be judged. It is for callers
    /// that handle errors themselves, unlike a proxy, which needs a verdict for its client.
    ///
    /// # Errors
    /// Returns the [`AskError`] of a rule that could not be judged, unless a limit denies the
    /// request.
    pub fn judged(mut self) -> Result<Self, AskError> {
        match self.unjudged.take() {
            Some(unjudged) if !self.is_over() => Err(unjudged.error),
            _ => Ok(self),
        }
    }
}
