//! A request under one rule whose states are words: judged first, then charged. Its figures are
//! computed only on demand.

use core::time::Duration;

use crate::algorithm::{Algorithm, Limit, Word};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Wait};
use crate::held::Held;
use crate::rule::Rule;
use crate::rules::{Judgement, Report, combine};

/// Evaluates `$do` with `$limit` bound to the limit's parameters if its states are words, and
/// `$else` otherwise.
macro_rules! in_words {
    ($rule:expr, $limit:ident => $do:expr, else $else:expr) => {
        match $rule.limit() {
            Limit::TokenBucket($limit) => $do,
            Limit::RecentAverage($limit) => $do,
            Limit::FixedWindow($limit) => $do,
            Limit::SlidingCounter($limit) => $do,
            _ => $else,
        }
    };
}

/// A request, its judgement, and the client's state before and after it.
pub struct WordRequest<'a> {
    rule: &'a Rule,
    cost: Cost,
    now: Nanos,
    judgement: Judgement,
    before: Word,
    after: Word,
}

impl<'a> WordRequest<'a> {
    /// Judges a request on the state that `word` encodes. Returns `None` if it encodes none.
    #[inline(always)]
    pub fn judge(rule: &'a Rule, word: Word, now: Nanos, cost: Cost) -> Option<Self> {
        in_words!(rule, limit => {
            let before = limit.advance(Some(limit.state_of(word)?), now);
            let allowed = limit.allows(before.as_ref(), now, cost);
            let wait = || limit.retry_after(before.as_ref(), now, cost);
            let judgement = Judgement::new(rule, allowed, wait);
            Some(Self { rule, cost, now, judgement, before: word, after: word })
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

    /// Stores the request, and returns the new word; `None` if no word is the new state.
    #[inline(always)]
    pub fn charge(&mut self) -> Option<Word> {
        self.after = self.charged_to(self.before)?;
        Some(self.after)
    }

    /// Leaves the state without the request.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        self.after = self.before;
    }

    /// Returns another word of the client with the same request stored in it; `None` if no word is
    /// the new state.
    #[inline(always)]
    pub fn charged_to(&self, word: Word) -> Option<Word> {
        in_words!(self.rule, limit => {
            let before = limit.advance(limit.state_of(word), self.now);
            Some(limit.word(&limit.charge(before, self.now, self.cost)))
        }, else None)
    }

    /// Returns the word of a client whose reservation is corrected to the actual cost; `None` if no
    /// word is the new state.
    #[inline(always)]
    pub(crate) fn committed(
        rule: &Rule,
        word: Word,
        now: Nanos,
        held: &Held,
        actual: Cost,
    ) -> Option<Word> {
        in_words!(rule, limit => {
            let before = limit.state_of(word)?;
            Some(limit.word(&limit.commit(Some(before), now, held, actual)?))
        }, else None)
    }

    /// Returns the decision on the request if this rule is its only one.
    #[inline]
    pub fn decision(&self) -> Decision {
        combine(
            self.now,
            core::iter::once((self.rule, &self.judgement, self)),
        )
    }
}

impl Report for WordRequest<'_> {
    #[inline]
    fn remaining(&self) -> u64 {
        let Self {
            rule, now, after, ..
        } = self;
        in_words!(rule, limit => {
            let after = limit.advance(limit.state_of(*after), *now);
            limit.remaining(after.as_ref(), *now)
        }, else 0)
    }

    #[inline]
    fn retry_after(&self) -> Wait {
        let Self {
            rule,
            cost,
            now,
            after,
            ..
        } = self;
        in_words!(rule, limit => {
            let after = limit.advance(limit.state_of(*after), *now);
            limit.retry_after(after.as_ref(), *now, *cost)
        }, else Wait::NONE)
    }

    #[inline]
    fn standing(&self) -> (Option<f64>, f64, Duration) {
        let Self {
            rule,
            cost,
            now,
            before,
            after,
            ..
        } = self;
        in_words!(rule, limit => {
            let state = |word| limit.advance(limit.state_of(word), *now);
            let (before, after) = (state(*before), state(*after));
            let rate = limit.estimate(before.as_ref(), *now, *cost);
            let rate = rate.or_else(|| limit.counted(after.as_ref(), *now));
            (rate, limit.limit(), limit.reset_after(after.as_ref(), *now))
        }, else (None, 0.0, Duration::ZERO))
    }
}
