//! A request under one rule whose states are a single instant: judged first, then charged. Its
//! figures are computed only on demand.

use core::time::Duration;

use crate::algorithm::{Algorithm, Limit, Moment};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Wait};
use crate::rule::Rule;
use crate::rules::{Judgement, Report, combine};

/// Evaluates `$do` with `$limit` bound to the limit's parameters if its states are words, and
/// `$else` otherwise.
macro_rules! one_time {
    ($rule:expr, $limit:ident => $do:expr, else $else:expr) => {
        match $rule.limit() {
            Limit::TokenBucket($limit) => $do,
            Limit::RecentAverage($limit) => $do,
            _ => $else,
        }
    };
}

/// A request, its judgement, and the client's state before and after it.
pub struct OneTime<'a> {
    rule: &'a Rule,
    cost: Cost,
    now: Nanos,
    judgement: Judgement,
    before: Moment,
    after: Moment,
}

impl<'a> OneTime<'a> {
    /// Judges a request on `state`. Returns `None` if the rule's states are more than one instant.
    #[inline(always)]
    pub fn judge(rule: &'a Rule, state: Moment, now: Nanos, cost: Cost) -> Option<Self> {
        one_time!(rule, limit => {
            let before = limit.advance(Some(state), now)?;
            let allowed = limit.allows(Some(&before), now, cost);
            let wait = || limit.retry_after(Some(&before), now, cost);
            let judgement = Judgement::new(rule, allowed, wait);
            Some(Self { rule, cost, now, judgement, before, after: before })
        }, else None)
    }

    /// Returns the rule's judgement of the request.
    #[inline]
    pub fn judgement(&self) -> &Judgement {
        &self.judgement
    }

    /// Returns the instant at which the request was judged.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// Stores the request, and returns the new state.
    #[inline(always)]
    pub fn charge(&mut self) -> Moment {
        self.after = self.charged_to(self.before);
        self.after
    }

    /// Leaves the state without the request.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        self.after = self.before;
    }

    /// Returns another state of the client with the same request stored in it.
    #[inline(always)]
    pub fn charged_to(&self, state: Moment) -> Moment {
        one_time!(self.rule, limit => limit.charge(Some(state), self.now, self.cost), else state)
    }

    /// Returns the decision on the request if this rule is its only one.
    #[inline]
    pub fn decision(&self) -> Decision {
        combine(self.now, core::iter::once((self.rule, &self.judgement, self)))
    }
}

impl Report for OneTime<'_> {
    #[inline]
    fn remaining(&self) -> u64 {
        one_time!(self.rule, limit => limit.remaining(Some(&self.after), self.now), else 0)
    }

    #[inline]
    fn retry_after(&self) -> Wait {
        let Self { rule, cost, now, after, .. } = self;
        one_time!(rule, limit => limit.retry_after(Some(after), *now, *cost), else Wait::NONE)
    }

    #[inline]
    fn standing(&self) -> (Option<f64>, f64, Duration) {
        let Self { rule, cost, now, before, after, .. } = self;
        one_time!(rule, limit => {
            let rate = limit.estimate(Some(before), *now, *cost);
            let rate = rate.or_else(|| limit.counted(Some(after), *now));
            (rate, limit.limit(), limit.reset_after(Some(after), *now))
        }, else (None, 0.0, Duration::ZERO))
    }
}
