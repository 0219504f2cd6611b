//! The part of a request that concerns one rule.

use crate::algorithm::Policy;
use crate::cost::Cost;
use crate::decision::{Action, Decision, Outcome};
use crate::rule::Rule;
use crate::store::Clients;
use crate::store::table::KeyHash;

/// The charge of a request to one client under one rule, with the store of the rule's clients.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) clients: &'a Clients,
    pub(crate) key: KeyHash,
    pub(crate) cost: Cost,
}

impl Part<'_> {
    /// Returns true if this rule, at `place`, has stored the request on which the rules made
    /// `decision`.
    pub(crate) fn has_stored(&self, decision: &Decision, place: usize) -> bool {
        let passes = !matches!(decision.outcome, Outcome::Deny | Outcome::ShadowBan);
        let delays = matches!(self.rule.action(), Action::Delay { .. });
        let is_strict = self.rule.limit().policy() == Policy::Strict;
        is_strict || passes && (delays || !decision.is_over(place))
    }
}
