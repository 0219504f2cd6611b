//! One request under one rule, where the client's state is a word and where it is looked for first: the
//! way of nearly every request. The clock is read while the word is fetched, and figures are worked
//! out once, after it was changed.

use crate::algorithm::{Algorithm, Judged, Limit, Mode, Moment, figures, judge};
use crate::clock::Nanos;
use crate::decision::{Action, Brief, Decision, Figures, Outcome, Wait};
use crate::rules::atomic::Part;
use crate::rules::{Judgement, combine, outcome_of};
use crate::store::Kept;
use crate::store::table::{Change, Purpose, Table};

/// What was decided on a word, and when.
struct Settled {
    now: Nanos,
    before: Moment,
    after: Moment,
    allowed: bool,
}

impl Part<'_> {
    /// The decision. None, and nothing done, where this is not the way: of a client that is new, or has
    /// yet to be brought over from the store before a change, say.
    #[inline]
    pub(crate) fn decide_at_home(
        &self,
        mode: Mode,
        now: impl FnOnce() -> Nanos,
    ) -> Option<Decision> {
        match (&self.clients.kept, self.rule.limit(), self.rule.action()) {
            (_, _, Action::Delay { .. }) => None,
            (Kept::Words(table), Limit::TokenBucket(limit), _) => {
                let settled = self.settle(table, limit, now, |_| mode)?;
                Some(self.decision(limit, &settled))
            }
            (Kept::Words(table), Limit::RecentAverage(limit), _) => {
                let settled = self.settle(table, limit, now, |_| mode)?;
                Some(self.decision(limit, &settled))
            }
            _ => None,
        }
    }

    /// Checks the request, and tells no more than a client needs to know. None, and nothing done, where this
    /// is not the way.
    #[inline]
    pub(crate) fn check_at_home(&self, now: impl FnOnce() -> Nanos) -> Option<Brief> {
        match (&self.clients.kept, self.rule.limit(), self.rule.action()) {
            (_, _, Action::Delay { .. }) => None,
            (Kept::Words(table), Limit::TokenBucket(limit), _) => {
                let settled = self.settle(table, limit, now, |_| Mode::Check)?;
                Some(self.brief(limit, &settled))
            }
            (Kept::Words(table), Limit::RecentAverage(limit), _) => {
                let settled = self.settle(table, limit, now, |_| Mode::Check)?;
                Some(self.brief(limit, &settled))
            }
            _ => None,
        }
    }

    /// Charges the request where it is allowed, and else stores nothing: whether it is. None, and nothing
    /// done, where this is not the way.
    #[inline]
    pub(crate) fn admit_at_home(&self, now: impl FnOnce() -> Nanos) -> Option<bool> {
        let if_allowed = |allowed| if allowed { Mode::Charge } else { Mode::Peek };
        match (&self.clients.kept, self.rule.limit()) {
            (Kept::Words(table), Limit::TokenBucket(limit)) => {
                Some(self.settle(table, limit, now, if_allowed)?.allowed)
            }
            (Kept::Words(table), Limit::RecentAverage(limit)) => {
                Some(self.settle(table, limit, now, if_allowed)?.allowed)
            }
            _ => None,
        }
    }

    /// Judges, then does what `mode` says of the verdict.
    #[inline(always)]
    fn settle<A: Algorithm<State = Moment>>(
        &self,
        table: &Table,
        limit: &A,
        now: impl FnOnce() -> Nanos,
        mode: impl Fn(bool) -> Mode,
    ) -> Option<Settled> {
        let place = table.place(self.key, Purpose::of(limit.policy()));
        let now = now();
        let mut seen = table.at_home(&place)?;
        loop {
            let before = limit.advance(Some(Moment(seen.word()?)), now)?;
            let mode = mode(limit.allows(Some(&before), now, self.cost));
            let Judged { after, allowed, stores } =
                judge(limit, Some(before), now, self.cost, mode, |_| ());
            let after = after?;
            if seen.apply(if stores { Change::Store(after.0) } else { Change::Keep }) {
                return Some(Settled { now, before, after, allowed });
            }
        }
    }

    fn decision<A: Algorithm<State = Moment>>(&self, limit: &A, settled: &Settled) -> Decision {
        let Settled { now, before, after, allowed } = settled;
        let estimate = limit.estimate(Some(before), *now, self.cost);
        if *allowed {
            return Decision::single(
                true,
                *now,
                Figures {
                    rate: estimate.or_else(|| limit.counted(Some(after), *now)),
                    limit: limit.limit(),
                    remaining: limit.remaining(Some(after), *now),
                    retry_after: Wait::NONE,
                    reset_after: limit.reset_after(Some(after), *now),
                },
            );
        }
        let figures = figures(limit, estimate, Some(after), *now, self.cost);
        let judgement = Judgement::new(self.rule, false, || figures.retry_after);
        combine(*now, std::iter::once((self.rule, &judgement, &figures)))
    }

    #[inline(always)]
    fn brief<A: Algorithm<State = Moment>>(&self, limit: &A, settled: &Settled) -> Brief {
        let Settled { now, after, allowed, .. } = settled;
        let judgement = Judgement::new(self.rule, *allowed, || Wait::NONE);
        let outcome = outcome_of(self.rule, &judgement, true);
        let wait = match outcome {
            Outcome::Deny => limit.retry_after(Some(after), *now, self.cost),
            _ => Wait::NONE,
        };
        Brief { outcome, remaining: limit.remaining(Some(after), *now), wait }
    }
}
