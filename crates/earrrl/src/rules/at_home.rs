//! Decisions on a client whose state is a word and lies in the line where it is looked for first, which is so
//! for nearly every request. The client is looked for once, and judged and changed in place; figures are
//! computed only if they are asked for.

use core::time::Duration;

use crate::algorithm::{Mode, Moment};
use crate::clock::Nanos;
use crate::decision::{Brief, Decision, Outcome, Wait};
use crate::rules::one_time::OneTime;
use crate::rules::part::Part;
use crate::rules::{Judgement, Report, outcome_of, wait_of};
use crate::store::Kept;
use crate::store::table::{Change, Place, Purpose, Seen};

/// Such a client as it was seen, and the request on that.
pub(crate) struct AtHome<'a> {
    part: &'a Part<'a>,
    seen: Seen<'a>,
    request: OneTime<'a>,
}

impl<'a> Part<'a> {
    /// Requests the lines in which the client is looked for first, and returns them if its state is a word.
    #[inline]
    pub(super) fn place(&self) -> Option<Place<'a>> {
        match &self.clients.kept {
            Kept::Words(table) => {
                Some(table.place(self.key, Purpose::of(self.rule.limit().policy())))
            }
            Kept::States(_) => None,
        }
    }

    /// Returns the decision, or `None`, with nothing done, for a client that is not at home: one that is new, or has
    /// yet to be moved from the store before a change, for example.
    #[inline]
    pub(crate) fn decide_at_home(
        &self,
        mode: Mode,
        now: impl FnOnce() -> Nanos,
    ) -> Option<Decision> {
        let settle = |judgement: &Judgement| judgement.settle(mode, judgement.passes());
        Some(self.settle_at_home(now, settle)?.request.decision())
    }

    /// Returns the same of a check, in brief.
    #[inline]
    pub(crate) fn check_at_home(&self, now: impl FnOnce() -> Nanos) -> Option<Brief> {
        let settle = |judgement: &Judgement| judgement.settle(Mode::Check, judgement.passes());
        Some(self.settle_at_home(now, settle)?.brief())
    }

    /// Charges the request where it is allowed, and else stores nothing: whether it is. None, and nothing
    /// done, where this is not the way.
    #[inline]
    pub(crate) fn admit_at_home(&self, now: impl FnOnce() -> Nanos) -> Option<bool> {
        let if_allowed = |judgement: &Judgement| match judgement.allowed {
            true => Mode::Charge,
            false => Mode::Peek,
        };
        Some(self.settle_at_home(now, if_allowed)?.judgement().allowed)
    }

    /// Judges, then stores as `mode` requires of the judgement.
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
            if client.apply(mode(client.judgement())) {
                return Some(client);
            }
            client.judge(client.request.now())?;
        }
    }

    /// Returns the client, judged on the state that was seen. The state may be torn, since its halves are read
    /// separately; the compare-and-swap then fails.
    #[inline(always)]
    fn at_home<'p>(&'p self, place: &Place<'p>, now: Nanos) -> Option<AtHome<'p>> {
        let Kept::Words(table) = &self.clients.kept else { return None };
        let seen = table.at_home(place)?;
        let request = self.judge_seen(&seen, now)?;
        Some(AtHome { part: self, seen, request })
    }

    /// Returns the client, judged on the state that it had.
    #[inline]
    pub(super) fn judge_at_home<'p>(&'p self, place: &Place<'p>, now: Nanos) -> Option<AtHome<'p>> {
        let mut client = self.at_home(place, now)?;
        client.settle(|_| Mode::Peek)?;
        Some(client)
    }

    #[inline(always)]
    fn judge_seen<'p>(&'p self, seen: &Seen<'_>, now: Nanos) -> Option<OneTime<'p>> {
        OneTime::judge(self.rule, Moment(seen.word()?), now, self.cost)
    }
}

impl AtHome<'_> {
    #[inline]
    pub(super) fn judgement(&self) -> &Judgement {
        self.request.judgement()
    }

    /// Returns the part of [`combine`](super::combine)'s answer that a client needs, for a request under this
    /// rule alone.
    #[inline]
    fn brief(&self) -> Brief {
        let (rule, judgement) = (self.part.rule, self.judgement());
        let outcome = outcome_of(rule, judgement, judgement.passes());
        let wait = match outcome {
            Outcome::Deny => wait_of(rule, &self.request),
            _ => Wait::For(judgement.hold.unwrap_or_default()),
        };
        Brief { outcome, remaining: self.request.remaining(), wait }
    }

    /// Stores as `mode` requires of the judgement. Returns `None`, and stores nothing, if the client is no
    /// longer there.
    #[inline]
    pub(super) fn settle(&mut self, mode: impl Fn(&Judgement) -> Mode) -> Option<()> {
        while !self.apply(mode(self.judgement())) {
            self.judge(self.request.now())?;
        }
        Some(())
    }

    /// Judges anew, on what is seen by now.
    #[inline(always)]
    fn judge(&mut self, now: Nanos) -> Option<()> {
        self.request = self.part.judge_seen(&self.seen, now)?;
        Some(())
    }

    /// Stores the request if it is to be charged. Returns false if another thread changed the state first.
    #[inline(always)]
    fn apply(&mut self, mode: Mode) -> bool {
        if mode != Mode::Charge || self.part.cost.is_zero() {
            self.request.leave();
            return self.seen.apply(Change::Keep);
        }
        self.seen.apply(Change::Store(self.request.charge().0))
    }
}

impl Report for AtHome<'_> {
    #[inline]
    fn remaining(&self) -> u64 {
        self.request.remaining()
    }

    #[inline]
    fn retry_after(&self) -> Wait {
        self.request.retry_after()
    }

    #[inline]
    fn standing(&self) -> (Option<f64>, f64, Duration) {
        self.request.standing()
    }
}
