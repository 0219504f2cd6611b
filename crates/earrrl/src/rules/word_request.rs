//! A request under one rule whose states are words: judged first, then charged. Its figures are
//! computed only on demand.

use core::time::Duration;

use crate::algorithm::{Algorithm, Limit, Mode, Word, in_words};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Wait};
use crate::held::Held;
use crate::rule::Rule;
use crate::rules::{Judgement, Report, combine};

/// A request, its judgement, and the client's state before and after it.
pub(crate) struct WordRequest<'a> {
    rule: &'a Rule,
    cost: Cost,
    pub(super) now: Nanos,
    pub(super) judgement: Judgement,
    before: Word,
    after: Word,
    /// True if `after` has the request stored as a denied one.
    is_told: bool,
}

impl<'a> WordRequest<'a> {
    /// Judges a request on the state that `word` encodes. Returns `None` if it encodes none.
    #[inline(always)]
    pub(crate) fn judge(rule: &'a Rule, word: Word, now: Nanos, cost: Cost) -> Option<Self> {
        in_words!(rule.limit(), limit => {
            let before = limit.advance(Some(limit.state_of(word)?), now);
            let allowed = limit.allows(before.as_ref(), now, cost);
            let wait = || limit.retry_after(before.as_ref(), now, cost);
            let judgement = Judgement::new(rule, allowed, wait);
            Some(Self { rule, cost, now, judgement, before: word, after: word, is_told: false })
        }, else None)
    }

    /// Stores the request, as a denied one if `mode` is [`Mode::Check`], and returns the new word; `None` if no word is
    /// the new state.
    #[inline(always)]
    pub(crate) fn store(&mut self, mode: Mode) -> Option<Word> {
        self.is_told = mode == Mode::Check;
        self.after = in_words!(self.rule.limit(), limit => {
            let before = limit.advance(limit.state_of(self.before), self.now);
            limit.word(&match mode {
                Mode::Check => limit.deny(before, self.now, self.cost),
                _ => limit.charge(before, self.now, self.cost),
            })
        }, else return None);
        Some(self.after)
    }

    /// Leaves the state without the request.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        self.after = self.before;
        self.is_told = false;
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
        in_words!(rule.limit(), limit => {
            let before = limit.state_of(word)?;
            Some(limit.word(&limit.commit(Some(before), now, held, actual)?))
        }, else None)
    }

    /// Returns the decision on the request if this rule is its only one.
    #[inline]
    pub(crate) fn decision(&self) -> Decision {
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
        in_words!(rule.limit(), limit => {
            let after = limit.advance(limit.state_of(*after), *now);
            limit.remaining(after.as_ref(), *now)
        }, else 0)
    }

    #[inline]
    fn waits(&self) -> [Wait; 2] {
        let Self {
            rule,
            cost,
            now,
            after,
            is_told,
            ..
        } = self;
        in_words!(rule.limit(), limit => {
            let after = limit.advance(limit.state_of(*after), *now);
            let earliest = limit.retry_after(after.as_ref(), *now, *cost);
            match is_told {
                true => [earliest, limit.told(after.as_ref(), *now, *cost)],
                false => [earliest; 2],
            }
        }, else [Wait::NONE; 2])
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
        in_words!(rule.limit(), limit => {
            let state = |word| limit.advance(limit.state_of(word), *now);
            let (before, after) = (state(*before), state(*after));
            let rate = limit.estimate(before.as_ref(), *now, *cost);
            let rate = rate.or_else(|| limit.counted(after.as_ref(), *now));
            (rate, limit.limit(), limit.reset_after(after.as_ref(), *now))
        }, else (None, 0.0, Duration::ZERO))
    }
}
