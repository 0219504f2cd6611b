use crate::clock::{Clock, Nanos, SystemClock};
use crate::cost::Cost;
use crate::error::RuleError;
use crate::rule::Rule;
use crate::store::BuildError;

use super::{Limiter, Verdict};
use crate::algorithm::Store;
use crate::store::table::KeyHash;

/// The one client's place.
const KEY: KeyHash = KeyHash::from_bits(1);

/// A limiter without keys: for what all clients share.
///
/// ```
/// use earrrl::{Limiter, Rule};
///
/// let rule: Rule = "token-bucket 1 refill=1/m".parse()?;
/// let exports = Limiter::builder(rule).build_single()?;
/// assert!(exports.check().is_allowed());
/// assert!(!exports.check().is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SingleLimiter<C = SystemClock>(pub(super) Limiter<C>);

impl<C: Clock> SingleLimiter<C> {
    /// Decides a request of cost 1.
    #[inline]
    pub fn check(&self) -> Verdict<'_> {
        self.0.decide(KEY, Cost::ONE, || self.0.clock.now(), Store::ByPolicy)
    }

    /// Decides a request.
    ///
    /// # Errors
    /// When it costs more than the rule's `max_cost`.
    pub fn check_cost(&self, cost: Cost) -> Result<Verdict<'_>, RuleError> {
        let cost = self.0.rule.accept(cost)?;
        Ok(self.0.decide(KEY, cost, || self.0.clock.now(), Store::ByPolicy))
    }

    /// Decides a request of some instant; one before the latest that was used is taken as that.
    ///
    /// # Errors
    /// When it costs more than the rule's `max_cost`.
    pub fn check_at(&self, cost: Cost, now: Nanos) -> Result<Verdict<'_>, RuleError> {
        let cost = self.0.rule.accept(cost)?;
        Ok(self.0.decide(KEY, cost, || self.0.clock.at(now), Store::ByPolicy))
    }

    /// What [`check_cost`](Self::check_cost) would answer; nothing is stored.
    ///
    /// # Errors
    /// When it costs more than the rule's `max_cost`.
    pub fn peek(&self, cost: Cost) -> Result<Verdict<'_>, RuleError> {
        let cost = self.0.rule.accept(cost)?;
        Ok(self.0.decide(KEY, cost, || self.0.clock.now(), Store::Never))
    }

    /// Takes back a request that was charged at that instant, or now.
    pub fn refund(&self, cost: Cost, charged_at: Option<Nanos>) {
        let now = self.0.clock.now();
        let charged_at = charged_at.unwrap_or(now);
        self.0.clients.refund(KEY, self.0.rule.limit(), now, charged_at, cost);
    }

    /// Forgets everything.
    pub fn reset(&self) {
        self.0.clients.reset(KEY);
    }

    /// As [`Limiter::change`].
    ///
    /// # Errors
    /// As [`Limiter::change`].
    pub fn change(&mut self, rule: Rule) -> Result<(), BuildError> {
        self.0.change(rule)
    }

    /// The rule.
    pub fn rule(&self) -> &Rule {
        self.0.rule()
    }
}
