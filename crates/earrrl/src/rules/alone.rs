//! Decisions under one rule on a client that several threads share. Each operation is one atomic
//! step, and follows a client that a changed rule has moved to another store.

use crate::algorithm::{Limit, Mode, State};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Action, Decision, Figures, Wait};
use crate::held::Held;
use crate::rules::part::Part;
use crate::rules::{Judgement, combine};
use crate::store::Next;

/// The judgement of one rule, and the rule's figures after the decision.
pub(super) type Judged = (Judgement, Figures);

impl<'a> Part<'a> {
    /// Returns the same client under the next version of the rule, if the rule was changed
    /// meanwhile.
    pub(super) fn moved(&self, now: Nanos) -> Self {
        match self.clients.next(self.key, self.rule, now) {
            Some(Next { rule, clients }) => Self {
                rule,
                clients,
                ..*self
            },
            None => *self,
        }
    }

    /// Calls `ask` on this part. While that returns `None`, because the client has moved to the
    /// store of the rule's next version, follows the client and calls `ask` again.
    pub(crate) fn settled<R>(&self, now: Nanos, ask: impl Fn(&Self) -> Option<R>) -> R {
        let mut part = *self;
        loop {
            if let Some(answer) = ask(&part) {
                return answer;
            }
            part = part.moved(now);
        }
    }

    /// Charges the request if it is allowed, and stores nothing otherwise. Returns true if it was
    /// allowed.
    pub(crate) fn admit(&self, now: Nanos) -> bool {
        self.settled(now, |part| {
            let limit = part.rule.limit();
            part.clients.update(part.key, limit, now, |mut state| {
                let allowed = limit.admit(&mut state, now, part.cost, Mode::Peek)
                    && limit.admit(&mut state, now, part.cost, Mode::Charge);
                (state, allowed)
            })
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
        self.settled(now, |part| {
            part.clients
                .inspect(part.key, part.rule.limit(), now, |state| {
                    part.judge(state, now)
                })
        })
    }

    /// Takes back a charge that was stored at `charged_at`, or the latest one if that is `None`.
    pub(crate) fn refund(&self, now: Nanos, charged_at: Option<Nanos>) {
        self.settled(now, |part| {
            part.clients
                .refund(part.key, part.rule.limit(), now, charged_at, part.cost)
        });
    }

    /// Corrects a reservation's estimate to the actual cost.
    pub(crate) fn commit(&self, now: Nanos, held: &Held, actual: Cost) {
        if self.commit_at_home(now, held, actual).is_some() {
            return;
        }
        self.settled(now, |part| {
            let limit = part.rule.limit();
            let (held, actual) = held.under(self.rule.limit(), limit, now, actual);
            let correct = |state| (limit.commit(state, now, &held, actual), ());
            part.clients.update(part.key, limit, now, correct)
        });
    }

    /// Moves the places of a live reservation under concurrent to `now`. Returns false if they are
    /// gone.
    pub(crate) fn renew(&self, now: Nanos, held: &Held) -> bool {
        self.settled(now, |part| {
            let limit = part.rule.limit();
            let renew = |state| limit.renew(state, now, held);
            part.clients.update(part.key, limit, now, renew)
        })
    }

    /// Replaces the client's state by `state`, which another store kept, if both stores use the
    /// same limit.
    pub(crate) fn adopt(&self, limit: &Limit, state: Option<State>, now: Nanos) {
        self.settled(now, |part| {
            if part.rule.limit() != limit {
                return Some(());
            }
            part.clients
                .update(part.key, limit, now, |_| (state.clone(), ()))
        });
    }

    /// Removes the client's state.
    pub(crate) fn reset(&self, now: Nanos) {
        self.settled(now, |part| {
            part.clients.reset(part.key, part.rule.limit(), now)
        });
    }

    /// Judges the request and computes its figures. Returns the state advanced to `now`.
    pub(super) fn judge(&self, state: Option<State>, now: Nanos) -> (Option<State>, Judged) {
        let limit = self.rule.limit();
        let (state, allowed, figures) = limit.step(state, now, self.cost, Mode::Peek);
        (
            state,
            (
                Judgement::new(self.rule, allowed, || figures.retry_after),
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
        self.settled(now, |part| {
            let key = part.key;
            let limit = part.rule.limit();
            part.clients
                .update(key, limit, now, |state| part.charged(state, mode, now))
        })
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
                Judgement::new(self.rule, allowed, || figures.retry_after),
                figures,
            ),
        )
    }
}
