//! One shard of the live reservations: slots, the order in which they expire, and the committed
//! reservations that are remembered so that a repeated commit is recognized.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};
use std::vec::Vec;

use smallvec::SmallVec;

use super::buckets::BucketHold;
use crate::clock::Nanos;
use crate::engine::RuleId;
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

/// A reservation.
struct HoldSlot {
    /// The id; `None` in a free slot.
    id: Option<HoldId>,
    expires: Nanos,
    is_committed: bool,
    parts: HeldParts,
}

#[derive(Default)]
pub(super) struct Shard {
    slots: Vec<HoldSlot>,
    free: Vec<u32>,
    /// The live reservations by their expiry. An entry of a slot that was committed or renewed
    /// since is skipped.
    due: BinaryHeap<Reverse<(Nanos, u32, HoldId)>>,
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
        let slot = HoldSlot { id: Some(id), expires, is_committed: false, parts };
        match self.slots.get_mut(place as usize) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        self.schedule(expires, place, id);
        id
    }

    /// Returns the parts of a reservation, and true if it was committed already; `None` if the id
    /// is unknown or expired. `accepts` may refuse the commit of a live reservation, which then
    /// stays live.
    pub(super) fn commit<E>(
        &mut self,
        place: u32,
        id: HoldId,
        now: Nanos,
        accepts: impl FnOnce(&[HeldPart]) -> Result<(), E>,
    ) -> Result<Option<(HeldParts, bool)>, E> {
        let Some(slot) = self.live(place, id, now) else { return Ok(None) };
        let repeated = slot.is_committed;
        if !repeated {
            accepts(&slot.parts)?;
            slot.is_committed = true;
        }
        let parts = slot.parts.clone();
        if !repeated {
            self.committed.push_back((now + REMEMBERED, place));
        }
        Ok(Some((parts, repeated)))
    }

    /// Returns the rules of a reservation; `None` if the id is unknown or expired.
    pub(super) fn rules(&mut self, place: u32, id: HoldId, now: Nanos) -> Option<Vec<RuleId>> {
        let slot = self.live(place, id, now)?;
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
        let slot = self.live(place, id, now).filter(|slot| !slot.is_committed)?;
        let expires = renew(&mut slot.parts)?;
        slot.expires = expires;
        self.schedule(expires, place, id);
        Some(expires)
    }

    /// Removes the reservations that have expired by `now`, and passes the parts of each to
    /// `expired`. Returns the instant of the next expiry.
    pub(super) fn expire(
        &mut self,
        now: Nanos,
        mut expired: impl FnMut(HeldParts),
    ) -> Option<Nanos> {
        while let Some(Reverse((at, place, id))) = self.due.peek().copied() {
            if at > now {
                return Some(at);
            }
            self.due.pop();
            let Some(slot) = self.slots.get_mut(place as usize) else { continue };
            if slot.id == Some(id) && !slot.is_committed && slot.expires <= now {
                slot.id = None;
                expired(std::mem::take(&mut slot.parts));
                self.free.push(place);
            }
        }
        None
    }

    pub(super) fn bytes(&self) -> usize {
        let boxed = |slot: &HoldSlot| {
            let spilled = slot.parts.spilled();
            if spilled { slot.parts.capacity() * size_of::<HeldPart>() } else { 0 }
        };
        self.slots.capacity() * size_of::<HoldSlot>()
            + self.free.capacity() * size_of::<u32>()
            + self.due.capacity() * size_of::<Reverse<(Nanos, u32, HoldId)>>()
            + self.committed.capacity() * size_of::<(Nanos, u32)>()
            + self.slots.iter().map(boxed).sum::<usize>()
    }

    fn live(&mut self, place: u32, id: HoldId, now: Nanos) -> Option<&mut HoldSlot> {
        let slot = self.slots.get_mut(place as usize)?;
        let known = slot.id == Some(id) && (slot.is_committed || slot.expires > now);
        known.then_some(slot)
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
                slot.id = None;
                slot.parts = HeldParts::new();
                self.free.push(place);
            }
        }
    }

    /// Adds an expiry. Entries of committed or renewed reservations are removed once they are more
    /// than half of the queue, so that it stays in proportion to the slots.
    fn schedule(&mut self, expires: Nanos, place: u32, id: HoldId) {
        if self.due.len() > 2 * self.slots.len() + 16 {
            let slots = &self.slots;
            self.due.retain(|Reverse((at, place, id))| {
                slots.get(*place as usize).is_some_and(|slot| {
                    slot.id == Some(*id) && slot.expires == *at && !slot.is_committed
                })
            });
        }
        self.due.push(Reverse((expires, place, id)));
    }
}
