//! One shard of the live reservations: slots, the order in which they expire, and the committed
//! reservations that are remembered so that a repeated commit is recognized.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};
use std::vec::Vec;

use smallvec::SmallVec;

use super::buckets::BucketHold;
use crate::clock::Nanos;
use crate::engine::{EngineError, RuleId};
use crate::held::Held;
use crate::hold_id::HoldId;
use crate::store::table::KeyHash;

/// The time for which a committed reservation is remembered, unless its place is needed earlier.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The part of a reservation that concerns one rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldPart {
    pub(crate) rule: RuleId,
    /// The version of the rule's limit at the time of the reservation.
    pub(crate) version: u32,
    pub(crate) key: KeyHash,
    pub(crate) held: Held,
    /// The reservation among those of its client, if the rule is a bucket.
    pub(crate) in_bucket: Option<BucketHold>,
    /// False if the rule let the request pass without storing it, as a leaky dry-run rule that is
    /// over its limit does.
    pub(crate) is_stored: bool,
}

pub(crate) type HeldParts = SmallVec<[HeldPart; 1]>;

/// The place of a reservation.
struct HoldSlot {
    id: HoldId,
    status: Status,
    expires: Nanos,
    /// The instant of the slot's earliest entry in the queue of expiries; `NEVER` if it has none.
    queued: Nanos,
    parts: HeldParts,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Free,
    Live,
    Committed,
}

const NEVER: Nanos = Nanos::new(u64::MAX);

#[derive(Default)]
pub(super) struct Shard {
    slots: Vec<HoldSlot>,
    free: Vec<u32>,
    /// The queue of expiries: instants at which slots are looked at, the earliest first. The entry of
    /// a slot stays when its reservation is committed or renewed, so it may be earlier than the expiry
    /// of the slot's present reservation; it is then replaced by a later one.
    due: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// The committed reservations, the oldest first, with the instant at which each is forgotten.
    committed: VecDeque<(Nanos, u32)>,
}

impl Shard {
    /// Stores a reservation under the id that `id` returns for its slot. At most `most` slots are
    /// used as long as committed reservations can be forgotten instead.
    pub(super) fn insert(
        &mut self,
        id: impl FnOnce(u32) -> HoldId,
        parts: HeldParts,
        (now, expires): (Nanos, Nanos),
        most: usize,
    ) -> HoldId {
        self.forget(now, most);
        let place = self.free.pop().unwrap_or(self.slots.len() as u32);
        let id = id(place);
        let queued = self
            .slots
            .get(place as usize)
            .map_or(NEVER, |slot| slot.queued);
        let slot = HoldSlot {
            id,
            status: Status::Live,
            expires,
            queued,
            parts,
        };
        match self.slots.get_mut(place as usize) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        self.queue(expires, place);
        id
    }

    /// Passes the parts of a reservation to `commit`, with true if it was committed already. Marks
    /// it as committed unless `commit` returns an error.
    pub(super) fn commit<R>(
        &mut self,
        place: u32,
        id: HoldId,
        now: Nanos,
        commit: impl FnOnce(&[HeldPart], bool) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        let slot = self
            .known(place, id, now)
            .ok_or(EngineError::UnknownReservation(id))?;
        let before = std::mem::replace(&mut slot.status, Status::Committed);
        let answer = commit(&slot.parts, before == Status::Committed);
        if answer.is_err() {
            slot.status = before;
        } else if before == Status::Live {
            self.committed.push_back((now + REMEMBERED, place));
        }
        answer
    }

    /// Returns the rules of a reservation; `None` if the id is unknown or expired.
    pub(super) fn rules(&mut self, place: u32, id: HoldId, now: Nanos) -> Option<Vec<RuleId>> {
        let slot = self.known(place, id, now)?;
        Some(slot.parts.iter().map(|part| part.rule).collect())
    }

    /// Moves the expiry of a live reservation to the instant that `renew` returns, and returns it;
    /// `None` if the id is unknown, expired or committed, or `renew` returned `None`.
    pub(super) fn renew(
        &mut self,
        place: u32,
        id: HoldId,
        now: Nanos,
        renew: impl FnOnce(&mut [HeldPart]) -> Option<Nanos>,
    ) -> Option<Nanos> {
        let slot = self
            .known(place, id, now)
            .filter(|slot| slot.status == Status::Live)?;
        let expires = renew(&mut slot.parts)?;
        slot.expires = expires;
        self.queue(expires, place);
        Some(expires)
    }

    /// Removes the reservations that have expired by `now`, and passes the parts of each to
    /// `expired`. Returns the instant of the next expiry.
    pub(super) fn expire(
        &mut self,
        now: Nanos,
        mut expired: impl FnMut(HeldParts),
    ) -> Option<Nanos> {
        while let Some(Reverse((at, place))) = self.due.peek().copied() {
            if at > now {
                return Some(at);
            }
            self.due.pop();
            let slot = self
                .slots
                .get_mut(place as usize)
                .filter(|slot| slot.queued == at);
            let Some(slot) = slot else { continue };
            slot.queued = NEVER;
            match slot.status {
                Status::Live if slot.expires <= now => {
                    expired(slot.take());
                    self.free.push(place);
                }
                Status::Live => {
                    let expires = slot.expires;
                    self.queue(expires, place);
                }
                Status::Free | Status::Committed => {}
            }
        }
        None
    }

    pub(super) fn bytes(&self) -> usize {
        let boxed = |slot: &HoldSlot| {
            let spilled = slot.parts.spilled();
            if spilled {
                slot.parts.capacity() * size_of::<HeldPart>()
            } else {
                0
            }
        };
        self.slots.capacity() * size_of::<HoldSlot>()
            + self.free.capacity() * size_of::<u32>()
            + self.due.capacity() * size_of::<Reverse<(Nanos, u32)>>()
            + self.committed.capacity() * size_of::<(Nanos, u32)>()
            + self.slots.iter().map(boxed).sum::<usize>()
    }

    /// Returns the slot of a reservation that is live or committed.
    fn known(&mut self, place: u32, id: HoldId, now: Nanos) -> Option<&mut HoldSlot> {
        let slot = self
            .slots
            .get_mut(place as usize)
            .filter(|slot| slot.id == id)?;
        let is_known = match slot.status {
            Status::Free => false,
            Status::Live => slot.expires > now,
            Status::Committed => true,
        };
        is_known.then_some(slot)
    }

    /// Frees the slots of committed reservations that need not be remembered any longer.
    fn forget(&mut self, now: Nanos, most: usize) {
        while let Some((until, place)) = self.committed.front().copied() {
            let is_crowded = self.free.is_empty() && self.slots.len() >= most;
            if until > now && !is_crowded {
                break;
            }
            self.committed.pop_front();
            if let Some(slot) = self.slots.get_mut(place as usize) {
                slot.take();
                self.free.push(place);
            }
        }
    }

    /// Puts a slot into the queue of expiries unless an entry of the slot is due before. The queue is
    /// made anew once most of its entries are of no use, so that it stays in proportion to the slots.
    fn queue(&mut self, expires: Nanos, place: u32) {
        let Some(slot) = self.slots.get_mut(place as usize) else {
            return;
        };
        if slot.queued <= expires {
            return;
        }
        slot.queued = expires;
        self.due.push(Reverse((expires, place)));
        if self.due.len() > 2 * self.slots.len() + 16 {
            let entry = |(place, slot): (usize, &HoldSlot)| Reverse((slot.queued, place as u32));
            let queued = self
                .slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| slot.queued != NEVER);
            self.due = queued.map(entry).collect();
        }
    }
}

impl HoldSlot {
    /// Frees the slot, and returns the parts of its reservation.
    fn take(&mut self) -> HeldParts {
        self.status = Status::Free;
        std::mem::take(&mut self.parts)
    }
}
