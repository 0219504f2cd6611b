//! One rule's part of a reservation: the charge of an estimate, which a commit corrects.

use core::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Mode;
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::{Decision, Outcome, Wait};
use crate::held::Held;
use crate::rules::atomic::{self, Each};
use crate::rules::grant::{GRANTS, granted, is_tried_again};
use crate::rules::part::Part;
use crate::store::LiveHold;

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

/// The charges of a request under its rules.
pub(crate) type Reserves = SmallVec<[Reserved; 1]>;

/// Charges the estimates if the request is allowed, and notes the charges in `reserves`, which are none otherwise. If
/// `at_most` permits less than an estimate, charges what remains then, again if another request has used that
/// meanwhile. A client may have `most` live reservations.
pub(crate) fn charge_estimates(
    parts: &[Part<'_>],
    at_most: bool,
    most: usize,
    now: Nanos,
    reserves: &mut Reserves,
) -> Decision {
    if !at_most {
        return charge_once(parts, most, now, reserves);
    }
    let mut tries = GRANTS;
    loop {
        let granted: Each<_> = parts.iter().map(|part| grant(*part, now)).collect();
        let decision = charge_once(&granted, most, now, reserves);
        tries -= 1;
        if tries == 0 || !is_tried_again(&decision, parts.iter().map(|part| part.rule)) {
            return decision;
        }
    }
}

/// Returns the part with the cost that it is granted: its estimate, or the remaining quota if that is less.
fn grant(part: Part<'_>, now: Nanos) -> Part<'_> {
    let of = |cost| Part { cost, ..part };
    let remaining = || atomic::decide(&[of(Cost::ONE)], Mode::Peek, &|| now).remaining;
    of(granted(part.rule, part.cost, remaining))
}

fn charge_once(parts: &[Part<'_>], most: usize, now: Nanos, reserves: &mut Reserves) -> Decision {
    for (place, part) in parts.iter().enumerate() {
        let Some(reserved) = part.reserve(now, most) else {
            let counted = parts.iter().zip(reserves.drain(..));
            counted.for_each(|(part, reserved)| part.forget(&reserved));
            let peeked = atomic::decide(parts, Mode::Peek, &|| now);
            return crowded(peeked, place);
        };
        reserves.push(reserved);
    }
    let mut resets: Each<Duration> = parts.iter().map(|_| Duration::ZERO).collect();
    let decision = atomic::decide_with_resets(parts, Mode::Check, &|| now, &mut resets);
    for (nth, (part, reserved)) in parts.iter().zip(&mut *reserves).enumerate() {
        part.decided(reserved, &decision, nth, resets[nth]);
    }
    if !decision.allowed {
        reserves.clear();
    }
    decision
}

impl Part<'_> {
    /// Counts a reservation that is about to be decided, unless its client has `most` live ones.
    fn reserve(&self, now: Nanos, most: usize) -> Option<Reserved> {
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
    fn decided(
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
        let client = self.key.fingerprint();
        let (held, actual) = match live.refunded_since(client, &reserved.live, self.changes()) {
            Some(refunded) => {
                // A refund in a full bucket is lost, so as much of the estimate is as good as used.
                let used = (actual + refunded).min(held.cost);
                let others = reserved.live.others;
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
            .refunded_since(self.key.fingerprint(), &reserved.live, self.changes())
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
