//! One rule's part of a reservation: the charge of an estimate, which a commit corrects.

use core::time::Duration;

use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Outcome, Wait};
use crate::held::Held;
use crate::rules::part::Part;
use crate::store::{GivenBack, LiveHold};

/// The wait that a client is told if it has its share of the reservations. Nobody knows when it commits one.
const CROWDED: Wait = Wait::For(Duration::from_secs(1));

/// The charge of an estimate under one rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(crate) held: Held,
    pub(crate) live: LiveHold,
    /// False if the rule let the request pass without storing it, as a leaky dry-run rule that is
    /// over its limit does.
    pub(crate) is_stored: bool,
}

impl Part<'_> {
    /// Counts a reservation that is about to be decided, unless its client has `most` live ones.
    pub(crate) fn reserve(&self, now: Nanos, most: usize) -> Option<Reserved> {
        let live =
            self.clients
                .live()
                .reserve(self.key.fingerprint(), self.cost, most, self.changes())?;
        let held = Held {
            at: now,
            cost: self.cost,
            full_at: now,
        };
        Some(Reserved {
            held,
            live,
            is_stored: false,
        })
    }

    /// Notes the decision on a reservation that [`reserve`](Self::reserve) has counted. `place` is this rule's
    /// place in the request, and `reset_after` its figure.
    pub(crate) fn decided(
        &self,
        reserved: &mut Reserved,
        decision: &Decision,
        place: usize,
        reset_after: Duration,
    ) {
        if !decision.allowed {
            return self.forget(reserved);
        }
        if self.rule.limit().is_bucket() {
            let live = self.clients.live();
            live.charged(self.key.fingerprint(), &mut reserved.live);
        }
        reserved.held = Held::new(reserved.held.at, reserved.held.cost, reset_after);
        reserved.is_stored = self.has_stored(decision, place);
    }

    /// Ends a reservation whose estimate stays charged.
    pub(crate) fn forget(&self, reserved: &Reserved) {
        let live = self.clients.live();
        live.finish(self.key.fingerprint(), &reserved.live, reserved.held.cost);
    }

    /// Ends a reservation, and corrects its estimate to the `actual` cost, at most the rule's `max_cost`: the work is
    /// done, so the cost cannot be refused. If the state that was charged is gone, nothing is given back, and
    /// what exceeds the estimate is charged.
    pub(crate) fn correct(&self, reserved: &Reserved, actual: Cost, now: Nanos) {
        let limit = self.rule.limit();
        let actual = actual.min(self.rule.max_cost());
        let held = reserved.held;
        let live = self.clients.live();
        let given_back = live.given_back(self.key.fingerprint(), &reserved.live, self.changes());
        let (held, actual) = match given_back {
            Some(GivenBack { others, refunded }) => {
                // A refund in a full bucket is lost, so as much of the estimate is as good as used.
                let used = (actual + refunded).min(held.cost);
                let lowered = match others.is_zero() {
                    true => held,
                    false => held.lowered(limit.time_to_refill(others)),
                };
                (Some(lowered), actual.max(used))
            }
            None if actual > held.cost && !limit.is_concurrent() => (Some(held), actual),
            None => (None, actual),
        };
        if let Some(held) = held.filter(|_| reserved.is_stored) {
            self.commit(now, &held, actual);
        }
        self.forget(reserved);
    }

    fn changes(&self) -> u64 {
        self.clients.changes(self.key)
    }

    /// Moves the places that a live reservation has under concurrent to `now`. Returns false if they are gone.
    /// Under other rules nothing changes.
    pub(crate) fn renew(&self, reserved: &mut Reserved, now: Nanos) -> bool {
        if !reserved.is_stored || !self.rule.limit().is_concurrent() {
            return true;
        }
        let live = self.clients.live();
        let is_there = live
            .given_back(self.key.fingerprint(), &reserved.live, self.changes())
            .is_some();
        let is_renewed = is_there && self.move_places(now, &reserved.held);
        if is_renewed {
            reserved.held.at = now;
        }
        is_renewed
    }
}

/// Returns the decision that denies a request since the client at `place` has its share of the reservations:
/// `peeked`, which is the decision of the rules.
#[must_use]
pub fn crowded(peeked: Decision, place: usize) -> Decision {
    let mut denied = Decision {
        allowed: false,
        outcome: Outcome::Deny,
        rule: place,
        retry_after: CROWDED,
        queued: 0,
        delay: Duration::ZERO,
        ..peeked
    };
    denied.over.insert(place);
    denied
}
