//! The fast path of decisions: a client whose state is a word in one of its two home lines, the
//! cache lines where it is looked for first. Nearly every client is. The client is looked up once,
//! and its state is judged and changed in place. Figures are computed only on demand.

use core::time::Duration;

use crate::algorithm::{Algorithm, Limit, Mode, Word, in_words};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Brief, Decision, Outcome, Wait};
use crate::held::Held;
use crate::rules::part::Part;
use crate::rules::{Judgement, Report, combine, outcome_of, waits_of};
use crate::store::table::{Change, Lookup, ReadEntry};

/// A client in one of its home lines, with a request that was judged on the state that was read.
pub(crate) struct AtHome<'a> {
    part: &'a Part<'a>,
    seen: ReadEntry<'a>,
    now: Nanos,
    judgement: Judgement,
    /// The states before and after the request.
    before: Word,
    after: Word,
    /// True if `after` has the request stored as a denied one.
    is_told: bool,
}

impl<'a> Part<'a> {
    /// Prefetches the home lines of the client and returns them; `None` if the rule's states are
    /// not words.
    #[inline]
    pub(super) fn place(&self) -> Option<Lookup<'a>> {
        self.clients.place(self.key, self.rule.limit().policy())
    }

    /// Decides the request. Returns `None`, with nothing stored, if the client is not in its home
    /// lines: a new client, for example.
    #[inline]
    pub(crate) fn decide_at_home(
        &self,
        mode: Mode,
        now: impl FnOnce() -> Nanos,
    ) -> Option<Decision> {
        let settle = |judgement: &Judgement| judgement.settle(mode, judgement.passes());
        let client = self.settle_at_home(now, settle)?;
        let judged = core::iter::once((self.rule, &client.judgement, &client));
        Some(combine(client.now, judged))
    }

    /// Checks the request as [`decide_at_home`](Self::decide_at_home) does, but returns only a
    /// [`Brief`].
    #[inline]
    pub(crate) fn check_at_home(&self, now: impl FnOnce() -> Nanos) -> Option<Brief> {
        let settle = |judgement: &Judgement| judgement.settle(Mode::Check, judgement.passes());
        Some(self.settle_at_home(now, settle)?.brief())
    }

    /// Charges the request if it is allowed, and stores nothing otherwise. Returns true if it was
    /// allowed, or `None`, with nothing stored, if the client is not in its home lines.
    #[inline]
    pub(crate) fn admit_at_home(&self, now: impl FnOnce() -> Nanos) -> Option<bool> {
        let if_allowed = |judgement: &Judgement| match judgement.allowed {
            true => Mode::Charge,
            false => Mode::Peek,
        };
        Some(self.settle_at_home(now, if_allowed)?.judgement.allowed)
    }

    /// Corrects a reservation's estimate to the actual cost. Returns `None`, with nothing changed, if
    /// the client is not in its home lines or no word is its new state.
    pub(super) fn commit_at_home(&self, now: Nanos, held: &Held, actual: Cost) -> Option<()> {
        let mut seen = self.place()?.at_home()?;
        in_words!(self.rule.limit(), limit => loop {
            let before = limit.state_of(seen.word()?)?;
            let after = limit.commit(Some(before), now, held, actual)?;
            if seen.apply(Change::Store(limit.word(&after))) {
                return Some(());
            }
        }, else None)
    }

    /// Judges the request, then stores it if `mode` returns [`Mode::Charge`] for the judgement.
    #[inline(always)]
    fn settle_at_home(
        &self,
        now: impl FnOnce() -> Nanos,
        mode: impl Fn(&Judgement) -> Mode,
    ) -> Option<AtHome<'_>> {
        let place = self.place()?;
        // The clock is read while the lines are fetched.
        let mut client = self.at_home(&place, now())?;
        client.settle(mode)?;
        Some(client)
    }

    /// Returns the client, judged on the state that was read. That state may be torn, since its
    /// halves are read separately; [`AtHome::settle`] detects that.
    #[inline(always)]
    pub(super) fn at_home<'p>(&'p self, place: &Lookup<'p>, now: Nanos) -> Option<AtHome<'p>> {
        let seen = place.at_home()?;
        let before = seen.word()?;
        Some(AtHome {
            part: self,
            judgement: self.judge_word(before, now)?,
            seen,
            now,
            before,
            after: before,
            is_told: false,
        })
    }

    /// Judges the request on the state that a word encodes. Returns `None` if it encodes none.
    #[inline(always)]
    fn judge_word(&self, word: Word, now: Nanos) -> Option<Judgement> {
        in_words!(self.rule.limit(), limit => {
            let before = limit.advance(Some(limit.state_of(word)?), now);
            let allowed = limit.allows(before.as_ref(), now, self.cost);
            let wait = || limit.retry_after(before.as_ref(), now, self.cost);
            Some(Judgement::new(self.rule, allowed, wait))
        }, else None)
    }
}

impl AtHome<'_> {
    #[inline]
    pub(super) fn judgement(&self) -> &Judgement {
        &self.judgement
    }

    /// Returns the part of [`combine`]'s result that a client needs, for a request under this rule
    /// alone.
    #[inline]
    fn brief(&self) -> Brief {
        let rule = self.part.rule;
        let outcome = outcome_of(rule, &self.judgement, self.judgement.passes());
        let wait = match outcome {
            Outcome::Deny => waits_of(rule, self)[1],
            _ => Wait::For(self.judgement.hold.unwrap_or_default()),
        };
        Brief {
            outcome,
            remaining: self.remaining(),
            wait,
        }
    }

    /// Stores the request, as a denied one if `mode` returns [`Mode::Check`] for the judgement, or not at all if it
    /// returns [`Mode::Peek`]; judges it again each time that another thread changed the state first. Returns
    /// `None`, with nothing stored, if the client is no longer in this slot or no word is its new state.
    #[inline(always)]
    pub(super) fn settle(&mut self, mode: impl Fn(&Judgement) -> Mode) -> Option<()> {
        while !self.apply(mode(&self.judgement))? {
            self.before = self.seen.word()?;
            self.after = self.before;
            self.is_told = false;
            self.judgement = self.part.judge_word(self.before, self.now)?;
        }
        Some(())
    }

    /// Returns false if another thread changed the state first.
    #[inline(always)]
    fn apply(&mut self, mode: Mode) -> Option<bool> {
        let cost = self.part.cost;
        if mode == Mode::Peek || cost.is_zero() {
            return Some(self.seen.apply(Change::Keep));
        }
        self.is_told = mode == Mode::Check;
        self.after = in_words!(self.part.rule.limit(), limit => {
            let before = limit.advance(limit.state_of(self.before), self.now);
            limit.word(&match mode {
                Mode::Check => limit.deny(before, self.now, cost),
                _ => limit.charge(before, self.now, cost),
            })
        }, else return None);
        Some(self.seen.apply(Change::Store(self.after)))
    }
}

impl Report for AtHome<'_> {
    #[inline]
    fn remaining(&self) -> u64 {
        in_words!(self.part.rule.limit(), limit => {
            let after = limit.advance(limit.state_of(self.after), self.now);
            limit.remaining(after.as_ref(), self.now)
        }, else 0)
    }

    #[inline]
    fn waits(&self) -> [Wait; 2] {
        let cost = self.part.cost;
        in_words!(self.part.rule.limit(), limit => {
            let after = limit.advance(limit.state_of(self.after), self.now);
            let earliest = limit.retry_after(after.as_ref(), self.now, cost);
            match self.is_told {
                true => [earliest, limit.told(after.as_ref(), self.now, cost, earliest)],
                false => [earliest; 2],
            }
        }, else [Wait::NONE; 2])
    }

    #[inline]
    fn standing(&self) -> (Option<f64>, f64, Duration) {
        in_words!(self.part.rule.limit(), limit => {
            let state = |word| limit.advance(limit.state_of(word), self.now);
            let after = state(self.after);
            // No algorithm has both rates, and those that count have the longer states to decode.
            let rate = limit.counted(after.as_ref(), self.now).or_else(|| {
                limit.estimate(state(self.before).as_ref(), self.now, self.part.cost)
            });
            (rate, limit.limit(), limit.reset_after(after.as_ref(), self.now))
        }, else (None, 0.0, Duration::ZERO))
    }
}
