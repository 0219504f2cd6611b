//! A client whose state is a word, where it is looked for first: the way of nearly every request. It is
//! looked for once, and judged and changed in place; figures are worked out only where they are asked for.

use core::time::Duration;

use crate::algorithm::{Algorithm, Limit, Mode, Moment};
use crate::clock::Nanos;
use crate::decision::{Decision, Wait};
use crate::rules::part::Part;
use crate::rules::{Judgement, Report, combine};
use crate::store::Kept;
use crate::store::table::{Change, Place, Purpose, Seen};

/// `$do` with `$limit` bound to the parameters of a limit whose states are words; `$else` under another.
macro_rules! one_time {
    ($rule:expr, $limit:ident => $do:expr, else $else:expr) => {
        match $rule.limit() {
            Limit::TokenBucket($limit) => $do,
            Limit::RecentAverage($limit) => $do,
            _ => $else,
        }
    };
}

/// Such a client as it was seen, what its rule says of a request, and its state after that.
pub(crate) struct AtHome<'a> {
    part: &'a Part<'a>,
    seen: Seen<'a>,
    now: Nanos,
    judgement: Judgement,
    before: Moment,
    after: Moment,
}

impl<'a> Part<'a> {
    /// Where the client is looked for first, fetched from now on, if its state is a word.
    #[inline]
    pub(super) fn place(&self) -> Option<Place<'a>> {
        match &self.clients.kept {
            Kept::Words(table) => {
                Some(table.place(self.key, Purpose::of(self.rule.limit().policy())))
            }
            Kept::States(_) => None,
        }
    }

    /// The decision. None, and nothing done, where this is not the way: of a client that is new, or has
    /// yet to be brought over from the store before a change, say. An instant of a moment ago may be
    /// given, too: it is as good where it allows the request.
    #[inline]
    pub(crate) fn decide_at_home(
        &self,
        mode: Mode,
        lately: Option<Nanos>,
        now: impl Fn() -> Nanos,
    ) -> Option<Decision> {
        let settle = |judgement: &Judgement| judgement.settle(mode, judgement.passes());
        let client = self.settle_at_home(lately, now, settle)?;
        Some(combine(client.now, std::iter::once((self.rule, &client.judgement, &client))))
    }

    /// Charges the request where it is allowed, and else stores nothing: whether it is. None, and nothing
    /// done, where this is not the way.
    #[inline]
    pub(crate) fn admit_at_home(
        &self,
        lately: Option<Nanos>,
        now: impl Fn() -> Nanos,
    ) -> Option<bool> {
        let if_allowed = |judgement: &Judgement| match judgement.allowed {
            true => Mode::Charge,
            false => Mode::Peek,
        };
        Some(self.settle_at_home(lately, now, if_allowed)?.judgement.allowed)
    }

    /// Judges, then does what `mode` says of the judgement.
    #[inline(always)]
    fn settle_at_home(
        &self,
        mut lately: Option<Nanos>,
        now: impl Fn() -> Nanos,
        mode: impl Fn(&Judgement) -> Mode,
    ) -> Option<AtHome<'_>> {
        let place = self.place()?;
        let mut client = self.at_home(&place, lately.unwrap_or_else(&now))?;
        loop {
            if !client.judgement.allowed && lately.take().is_some() {
                client.judge(now())?;
            }
            if client.apply(mode(&client.judgement)) {
                return Some(client);
            }
            client.judge(client.now)?;
        }
    }

    /// The client, judged on what was seen: whether that ever was, a change tells.
    #[inline(always)]
    fn at_home<'p>(&'p self, place: &Place<'p>, now: Nanos) -> Option<AtHome<'p>> {
        let Kept::Words(table) = &self.clients.kept else { return None };
        let seen = table.at_home(place)?;
        let (before, judgement) = self.judge_word(&seen, now)?;
        Some(AtHome { part: self, seen, now, judgement, before, after: before })
    }

    /// The client, judged on the state that it had.
    #[inline]
    pub(super) fn judge_at_home<'p>(&'p self, place: &Place<'p>, now: Nanos) -> Option<AtHome<'p>> {
        let mut client = self.at_home(place, now)?;
        client.settle(|_| Mode::Peek)?;
        Some(client)
    }

    #[inline(always)]
    fn judge_word(&self, seen: &Seen<'_>, now: Nanos) -> Option<(Moment, Judgement)> {
        one_time!(self.rule, limit => {
            let before = limit.advance(Some(Moment(seen.word()?)), now)?;
            let allowed = limit.allows(Some(&before), now, self.cost);
            let wait = || limit.retry_after(Some(&before), now, self.cost);
            Some((before, Judgement::new(self.rule, allowed, wait)))
        }, else None)
    }
}

impl AtHome<'_> {
    #[inline]
    pub(super) fn judgement(&self) -> &Judgement {
        &self.judgement
    }

    /// Does what `mode` says of the judgement. None, and nothing done, if the client is no longer there.
    #[inline]
    pub(super) fn settle(&mut self, mode: impl Fn(&Judgement) -> Mode) -> Option<()> {
        while !self.apply(mode(&self.judgement)) {
            self.judge(self.now)?;
        }
        Some(())
    }

    /// Judges anew, on what is seen by now.
    #[inline(always)]
    fn judge(&mut self, now: Nanos) -> Option<()> {
        (self.before, self.judgement) = self.part.judge_word(&self.seen, now)?;
        self.now = now;
        Some(())
    }

    /// Stores the request if it is to be charged, unless somebody was faster.
    #[inline(always)]
    fn apply(&mut self, mode: Mode) -> bool {
        let Self { before, now, part: &Part { rule, cost, .. }, .. } = *self;
        if mode != Mode::Charge || cost.is_zero() {
            self.after = before;
            return self.seen.apply(Change::Keep);
        }
        self.after = one_time!(rule, limit => limit.charge(Some(before), now, cost), else before);
        self.seen.apply(Change::Store(self.after.0))
    }
}

impl Report for AtHome<'_> {
    #[inline]
    fn remaining(&self) -> u64 {
        one_time!(self.part.rule, limit => limit.remaining(Some(&self.after), self.now), else 0)
    }

    #[inline]
    fn retry_after(&self) -> Wait {
        let Self { after, now, part: Part { rule, cost, .. }, .. } = self;
        one_time!(rule, limit => limit.retry_after(Some(after), *now, *cost), else Wait::NONE)
    }

    #[inline]
    fn standing(&self) -> (Option<f64>, f64, Duration) {
        let Self { before, after, now, part: Part { rule, cost, .. }, .. } = self;
        one_time!(rule, limit => {
            let rate = limit.estimate(Some(before), *now, *cost);
            let rate = rate.or_else(|| limit.counted(Some(after), *now));
            (rate, limit.limit(), limit.reset_after(Some(after), *now))
        }, else (None, 0.0, Duration::ZERO))
    }
}
