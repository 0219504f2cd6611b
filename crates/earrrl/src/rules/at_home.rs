//! The fast path of decisions: a client whose state is a word in one of its two home lines, the
//! cache lines where it is looked for first. Nearly every client is. The client is looked up once,
//! and its state is judged and changed in place. Figures are computed only on demand.

use core::time::Duration;

use crate::algorithm::Mode;
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Brief, Decision, Outcome, Wait};
use crate::held::Held;
use crate::rules::part::Part;
use crate::rules::word_request::WordRequest;
use crate::rules::{Judgement, Report, outcome_of, waits_of};
use crate::store::Kept;
use crate::store::table::{Change, Lookup, Purpose, ReadEntry};

/// A client in one of its home lines, with the state that was read, and the request judged on that
/// state.
pub(crate) struct AtHome<'a> {
    part: &'a Part<'a>,
    seen: ReadEntry<'a>,
    request: WordRequest<'a>,
}

impl<'a> Part<'a> {
    /// Prefetches the home lines of the client and returns them; `None` if the rule's states are
    /// not words.
    #[inline]
    pub(super) fn place(&self) -> Option<Lookup<'a>> {
        match &self.clients.kept {
            Kept::Words(table) => {
                Some(table.place(self.key, Purpose::of(self.rule.limit().policy())))
            }
            Kept::States(_) => None,
        }
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
        Some(self.settle_at_home(now, settle)?.request.decision())
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
        Some(self.settle_at_home(now, if_allowed)?.judgement().allowed)
    }

    /// Corrects a reservation's estimate to the actual cost. Returns `None`, with nothing changed, if
    /// the client is not in its home lines or no word is its new state.
    pub(super) fn commit_at_home(&self, now: Nanos, held: &Held, actual: Cost) -> Option<()> {
        let mut seen = self.place()?.at_home()?;
        loop {
            let after = WordRequest::committed(self.rule, seen.word()?, now, held, actual)?;
            if seen.apply(Change::Store(after)) {
                return Some(());
            }
        }
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
        loop {
            if client.apply(mode(client.judgement()))? {
                return Some(client);
            }
            client.judge(client.request.now)?;
        }
    }

    /// Returns the client, judged on the state that was read. That state may be torn, since its
    /// halves are read separately; [`AtHome::settle`] detects that.
    #[inline(always)]
    pub(super) fn at_home<'p>(&'p self, place: &Lookup<'p>, now: Nanos) -> Option<AtHome<'p>> {
        let seen = place.at_home()?;
        let request = self.judge_seen(&seen, now)?;
        Some(AtHome {
            part: self,
            seen,
            request,
        })
    }

    #[inline(always)]
    fn judge_seen<'p>(&'p self, seen: &ReadEntry<'_>, now: Nanos) -> Option<WordRequest<'p>> {
        WordRequest::judge(self.rule, seen.word()?, now, self.cost)
    }
}

impl AtHome<'_> {
    #[inline]
    pub(super) fn judgement(&self) -> &Judgement {
        &self.request.judgement
    }

    /// Returns the part of [`combine`](super::combine)'s result that a client needs, for a request
    /// under this rule alone.
    #[inline]
    fn brief(&self) -> Brief {
        let rule = self.part.rule;
        let judgement = self.judgement();
        let outcome = outcome_of(rule, judgement, judgement.passes());
        let wait = match outcome {
            Outcome::Deny => waits_of(rule, &self.request)[1],
            _ => Wait::For(judgement.hold.unwrap_or_default()),
        };
        Brief {
            outcome,
            remaining: self.request.remaining(),
            wait,
        }
    }

    /// Stores the request if `mode` returns [`Mode::Charge`] for the judgement. Returns `None`,
    /// with nothing stored, if the client is no longer in this slot or no word is its new state.
    #[inline]
    pub(super) fn settle(&mut self, mode: impl Fn(&Judgement) -> Mode) -> Option<()> {
        while !self.apply(mode(self.judgement()))? {
            self.judge(self.request.now)?;
        }
        Some(())
    }

    /// Judges the request again, on the state that was read last.
    #[inline(always)]
    fn judge(&mut self, now: Nanos) -> Option<()> {
        self.request = self.part.judge_seen(&self.seen, now)?;
        Some(())
    }

    /// Stores the request if `mode` is [`Mode::Charge`]. Returns false if another thread changed
    /// the state first, and `None`, with nothing stored, if no word is the new state.
    #[inline(always)]
    fn apply(&mut self, mode: Mode) -> Option<bool> {
        if mode == Mode::Peek || self.part.cost.is_zero() {
            self.request.leave();
            return Some(self.seen.apply(Change::Keep));
        }
        Some(self.seen.apply(Change::Store(self.request.store(mode)?)))
    }
}

impl Report for AtHome<'_> {
    #[inline]
    fn remaining(&self) -> u64 {
        self.request.remaining()
    }

    #[inline]
    fn waits(&self) -> [Wait; 2] {
        self.request.waits()
    }

    #[inline]
    fn standing(&self) -> (Option<f64>, f64, Duration) {
        self.request.standing()
    }
}
