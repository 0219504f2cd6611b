//! The answer to a request under one rule or several rules.

use earrrl::{Decision, EngineError};
use earrrl_tower::headers::Available;
use smallvec::SmallVec;

use super::error::AskError;
use super::limit::PreparedLimit;
use super::rule::ActiveRule;
use crate::metrics::PassReason;

/// The answer to a request under one rule or several rules.
#[derive(Clone, Debug, Default)]
pub struct Answer<'a> {
    /// The decision on the request; `None` if no rule applies or no rule could be judged.
    pub decision: Option<Decision>,
    /// The rules under which the request was charged, in the order of the charges.
    pub charged: SmallVec<[(&'a ActiveRule, &'a PreparedLimit); 2]>,
    /// The quota that the client has left under each of the `charged` rules; empty unless
    /// [`Manner::available`](super::ask::Manner::available) is set.
    pub available: SmallVec<[Available; 2]>,
    /// A rule that could not be judged. If several rules could not be judged, this is one that
    /// denies on errors, if there is any.
    pub unjudged: Option<Unjudged<'a>>,
}

/// A rule that could not be judged, and the error that prevented it.
#[derive(Clone, Debug)]
pub struct Unjudged<'a> {
    /// The rule.
    pub rule: &'a ActiveRule,
    /// The error that prevented the rule from being judged.
    pub error: AskError,
    /// True if the request is denied for it.
    pub denies: bool,
    /// The reason that is counted if the request passes.
    pub reason: PassReason,
}

impl<'a> Unjudged<'a> {
    /// Reports a rule that the engine failed to judge, whose `on_error` decides the request.
    pub(super) fn failed(rule: &'a ActiveRule, error: EngineError) -> Self {
        let denies = rule.denies_on_error();
        Self {
            rule,
            error: error.into(),
            denies,
            reason: PassReason::RuleFailed,
        }
    }
}

impl<'a> Answer<'a> {
    /// Returns the answer to a request that one rule denies without a charge.
    pub(super) fn refusal(
        rule: &'a ActiveRule,
        limit: &'a PreparedLimit,
        refusal: Decision,
    ) -> Self {
        let charged = SmallVec::from_slice(&[(rule, limit)]);
        let available = decided_quota(&refusal, &charged).unwrap_or_default();
        Self {
            decision: Some(refusal),
            charged,
            available,
            unjudged: None,
        }
    }

    /// Returns the rule and the limit that the figures in the decision belong to; `None` without a
    /// decision.
    pub fn rule(&self) -> Option<(&'a ActiveRule, &'a PreparedLimit)> {
        self.charged.get(self.decision.as_ref()?.rule).copied()
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

/// Returns the quota available to the client under each rule, if the decision includes the quota
/// for all of them.
pub(super) fn decided_quota(
    decision: &Decision,
    charged: &[(&ActiveRule, &PreparedLimit)],
) -> Option<SmallVec<[Available; 2]>> {
    let rules = charged.iter().enumerate();
    rules
        .map(|(place, (_, limit))| Available::from_decision(&limit.rule, decision, place))
        .collect()
}
