//! Decisions under one rule on a client that several threads share. Each operation is one atomic
//! step.

use crate::algorithm::{Limit, Mode, State};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::held::Held;
use crate::rules::part::Part;
use crate::rules::{Judged, combine};
use crate::store::Shard;

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
        let judged = self.charge(mode, now);
        combine(now, std::iter::once((self.rule, &judged.0, &judged.1)))
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

    /// Judges the request and stores it if `mode` and the rule require that, in one atomic step.
    pub(super) fn charge(&self, mode: Mode, now: Nanos) -> Judged {
        let charge = |state| self.rule.settle(state, self.cost, mode, now);
        self.visit(None, mode, now, charge)
    }

    /// Passes the client's state to `decide`, which returns the state to keep. A peek is no visit of the client.
    /// `locked` is the client's shard of larger states, if the request has locked it.
    pub(super) fn visit<R>(
        &self,
        locked: Option<&mut Shard>,
        mode: Mode,
        now: Nanos,
        decide: impl Fn(Option<State>) -> (Option<State>, R),
    ) -> R {
        let limit = self.rule.limit();
        match locked.zip(self.clients.view()) {
            Some((shard, view)) => shard.change(self.key, &view.limit, now, mode, decide),
            None => self.clients.visit(self.key, limit, now, mode, decide),
        }
    }
}
