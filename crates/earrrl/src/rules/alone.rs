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
        self.update(now, |mut state| {
            let allowed = limit.admit(&mut state, now, self.cost, Mode::Peek)
                && limit.admit(&mut state, now, self.cost, Mode::Charge);
            (state, allowed)
        })
    }

    pub(super) fn decide_alone(&self, mode: Mode, now: Nanos) -> Decision {
        let judged = self.charge(mode, now);
        combine(now, std::iter::once((self.rule, &judged.0, &judged.1)))
    }

    /// Takes back a charge that was stored at `charged_at`, or the latest one if that is `None`; see [`Limit::refund`].
    pub(crate) fn refund(&self, now: Nanos, charged_at: Option<Nanos>) {
        let limit = self.rule.limit();
        self.refunded(self.cost);
        self.update(now, |state| {
            let charged_at = charged_at.or_else(|| limit.last_charge(state.as_ref()));
            let after = limit.refund(state, now, charged_at.unwrap_or(now), self.cost);
            (after, ())
        });
    }

    /// Notes a refund that is about to be made, which makes a bucket full earlier.
    pub(crate) fn refunded(&self, cost: Cost) {
        if self.rule.limit().is_bucket() {
            let live = self.clients.live();
            live.refunded(self.key.fingerprint(), cost);
            self.clients.changed(self.key);
        }
    }

    /// Corrects a reservation's estimate to the actual cost.
    pub(super) fn commit(&self, now: Nanos, held: &Held, actual: Cost) {
        if self.commit_at_home(now, held, actual).is_some() {
            return;
        }
        let limit = self.rule.limit();
        let correct = |state| (limit.commit(state, now, held, actual), ());
        self.update(now, correct);
    }

    /// Moves the places of a live reservation under concurrent to `now`. Returns false if they are
    /// gone.
    pub(super) fn move_places(&self, now: Nanos, held: &Held) -> bool {
        let limit = self.rule.limit();
        let renew = |state| limit.renew(state, now, held);
        self.update(now, renew)
    }

    /// Replaces the client's state by `state`, which another store kept, if both stores use the
    /// same limit.
    pub(crate) fn adopt(&self, limit: &Limit, state: Option<State>, now: Nanos) {
        if self.rule.limit() == limit {
            self.replace(state, now);
        }
    }

    /// Removes the client's state.
    pub(crate) fn reset(&self, now: Nanos) {
        // The copy of a table into another size may have put the client into both of its sets.
        for _ in 0..2 {
            self.replace(None, now);
        }
    }

    /// Replaces the client's state by another one, which knows nothing of the client's live reservations.
    fn replace(&self, state: Option<State>, now: Nanos) {
        // Commits must not correct the new state, nor charges that came before it be corrected after it.
        self.clients.forget(self.key);
        self.update(now, |_| (state.clone(), ()));
        self.clients.forget(self.key);
    }

    /// Judges the request and stores it if `mode` and the rule require that, in one atomic step.
    pub(super) fn charge(&self, mode: Mode, now: Nanos) -> Judged {
        let charge = |state| self.rule.settle(state, self.cost, mode, now);
        self.visit(None, mode, now, charge)
    }

    /// Passes the client's state to `decide`, which returns the state to keep.
    pub(crate) fn update<R>(
        &self,
        now: Nanos,
        decide: impl Fn(Option<State>) -> (Option<State>, R),
    ) -> R {
        self.visit(None, Mode::Charge, now, decide)
    }

    /// Passes the client's state to `decide`, as [`update`](Self::update) does. A peek is no visit of the client.
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
