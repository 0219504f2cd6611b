//! Decisions under one rule on a client that several threads share. Each operation is one atomic
//! step.

use crate::algorithm::{Limit, Mode, State};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Action, Decision, Figures, Wait};
use crate::held::Held;
use crate::rules::part::Part;
use crate::rules::{Judgement, combine};

/// The judgement of one rule, and the rule's figures after the decision.
pub(super) type Judged = (Judgement, Figures);

impl<'a> Part<'a> {
    /// Charges the request if it is allowed, and stores nothing otherwise. Returns true if it was
    /// allowed.
    pub(crate) fn admit(&self, now: Nanos) -> bool {
        let limit = self.rule.limit();
        self.clients.update(self.key, limit, now, |mut state| {
            let allowed = limit.admit(&mut state, now, self.cost, Mode::Peek)
                && limit.admit(&mut state, now, self.cost, Mode::Charge);
            (state, allowed)
        })
    }

    pub(super) fn decide_alone(&self, mode: Mode, now: Nanos) -> Decision {
        let judged = if mode == Mode::Peek {
            self.peek(now)
        } else {
            self.charge(mode, now)
        };
        combine(now, std::iter::once((self.rule, &judged.0, &judged.1)))
    }

    /// Judges the request without its figures, unless the action is to delay, which needs the wait.
    /// Returns the state too.
    pub(super) fn allows(&self, state: Option<State>, now: Nanos) -> (Option<State>, Judgement) {
        if let Action::Delay { .. } = self.rule.action() {
            let (state, (judgement, _)) = self.judge(state, now);
            return (state, judgement);
        }
        let (state, allowed) = self.rule.limit().allows(state, now, self.cost);
        (state, Judgement::new(self.rule, allowed, || Wait::NONE))
    }

    pub(super) fn peek(&self, now: Nanos) -> Judged {
        let judge = |state| self.judge(state, now);
        self.clients
            .inspect(self.key, self.rule.limit(), now, judge)
    }

    /// Takes back a charge that was stored at `charged_at`, or the latest one if that is `None`.
    pub(crate) fn refund(&self, now: Nanos, charged_at: Option<Nanos>) {
        let limit = self.rule.limit();
        self.clients
            .refund(self.key, limit, now, charged_at, self.cost);
    }

    /// Corrects a reservation's estimate to the actual cost.
    pub(super) fn commit(&self, now: Nanos, held: &Held, actual: Cost) {
        if self.commit_at_home(now, held, actual).is_some() {
            return;
        }
        let limit = self.rule.limit();
        let correct = |state| (limit.commit(state, now, held, actual), ());
        self.clients.update(self.key, limit, now, correct);
    }

    /// Moves the places of a live reservation under concurrent to `now`. Returns false if they are
    /// gone.
    pub(super) fn move_places(&self, now: Nanos, held: &Held) -> bool {
        let limit = self.rule.limit();
        let renew = |state| limit.renew(state, now, held);
        self.clients.update(self.key, limit, now, renew)
    }

    /// Replaces the client's state by `state`, which another store kept, if both stores use the
    /// same limit.
    pub(crate) fn adopt(&self, limit: &Limit, state: Option<State>, now: Nanos) {
        if self.rule.limit() == limit {
            self.clients.replace(self.key, limit, now, state);
        }
    }

    /// Removes the client's state.
    pub(crate) fn reset(&self, now: Nanos) {
        self.clients.reset(self.key, self.rule.limit(), now);
    }

    /// Judges the request and computes its figures. Returns the state advanced to `now`.
    pub(super) fn judge(&self, state: Option<State>, now: Nanos) -> (Option<State>, Judged) {
        let limit = self.rule.limit();
        let (state, allowed, figures) = limit.step(state, now, self.cost, Mode::Peek);
        (
            state,
            (
                Judgement::new(self.rule, allowed, || figures.earliest),
                figures,
            ),
        )
    }

    pub(super) fn store(
        &self,
        state: Option<State>,
        now: Nanos,
        mode: Mode,
    ) -> (Option<State>, Figures) {
        let (after, _, figures) = self.rule.limit().step(state, now, self.cost, mode);
        (after, figures)
    }

    /// Judges the request and stores it if the rule requires that, in one atomic step.
    pub(super) fn charge(&self, mode: Mode, now: Nanos) -> Judged {
        let charge = |state| self.charged(state, mode, now);
        self.clients
            .update(self.key, self.rule.limit(), now, charge)
    }

    fn charged(&self, state: Option<State>, mode: Mode, now: Nanos) -> (Option<State>, Judged) {
        if let Action::Delay { .. } = self.rule.action() {
            // A delaying rule stores the request only if the wait, as it is before the request is
            // stored, is short enough.
            let (state, (judgement, _)) = self.judge(state, now);
            let mode = judgement.settle(mode, judgement.passes());
            let (after, figures) = self.store(state, now, mode);
            return (after, (judgement, figures));
        }
        let limit = self.rule.limit();
        let (after, allowed, figures) = limit.step(state, now, self.cost, mode);
        (
            after,
            (
                Judgement::new(self.rule, allowed, || figures.earliest),
                figures,
            ),
        )
    }
}
