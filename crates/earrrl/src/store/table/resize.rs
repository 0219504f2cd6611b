//! The copy of a table into one of another size, when a state file is opened with another capacity.
//!
//! An entry has 40 of the 64 bits of its key's hash, which do not determine the key's sets in the new table.
//! But the number of a key's set grows with the hash (see [`KeyHash::first_line`]), so the sets in which a key
//! of one old set may be in the new table follow each other: two in a table of twice the size. The entry is
//! copied to each of them. In all but its key's own sets it is never found, and makes room like any other
//! client once it is idle. Until then, the new table is as full as the old one was.
//!
//! [`KeyHash::first_line`]: super::hash::KeyHash

use core::ops::Range;

use super::entry::{Entry, Order};
use super::raw::RawTable;
use super::slot::Slot;
use super::victim::{rank_in, rank_of};

/// The number of sets up to which both sets of many keys would be the same, so that the second one is the next.
const FEW: usize = 64;

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    /// Copies all clients that are not idle to an empty table. No other
    /// thread or process may use either of them.
    pub(crate) fn copy_to(&self, into: &Self, order: &impl Order) {
        let slots_in_set = LINE * LINES;
        let sets = self.lines.slots() / slots_in_set;
        let new_sets = into.lines.slots() / slots_in_set;
        let idle = rank_of(order.idle());
        into.vacate();
        for place in 0..self.lines.slots() {
            let entry = self.lines.slot(place).load();
            if !entry.is_state() || rank_in(order, entry) <= idle {
                continue;
            }
            let set = place / slots_in_set;
            let before = (set + sets - 1) % sets;
            let is_next = (sets <= FEW).then(|| new_sets_of(before, sets, new_sets));
            for new in new_sets_of(set, sets, new_sets).chain(is_next.into_iter().flatten()) {
                into.put(new * slots_in_set..(new + 1) * slots_in_set, entry, order);
            }
        }
    }

    /// Vacates the empty slots. A copied client may be anywhere in its sets, so a later slot of its sequence must
    /// not be found unused.
    fn vacate(&self) {
        for place in 0..self.lines.slots() {
            let _ = self.lines.slot(place).swap(Entry::EMPTY, Entry::VACATED);
        }
    }

    /// Stores a state in a set, of which these are the slots: in that of the same key if the state is greater, which
    /// allows less, and otherwise in the one with the lowest rank, if it is below that of the state. No other thread
    /// uses the table.
    fn put(&self, slots: Range<usize>, state: Entry, order: &impl Order) {
        let slots = slots.map(|place| self.lines.slot(place));
        let by_rank = |slot: &&S| {
            let there = slot.load();
            let is_same = there.fingerprint() == state.fingerprint();
            (!is_same, rank_in(order, there))
        };
        let Some(slot) = slots.min_by_key(by_rank) else {
            return;
        };
        let there = slot.load();
        if rank_in(order, there) < rank_in(order, state) {
            let _ = slot.swap(there, state);
        }
    }
}

/// Returns the sets of a table of `new_sets` sets in which the keys of one of `sets` sets are.
fn new_sets_of(set: usize, sets: usize, new_sets: usize) -> Range<usize> {
    let scaled = |set: usize| set as u128 * new_sets as u128;
    let first = scaled(set) / sets as u128;
    let end = scaled(set + 1).div_ceil(sets as u128);
    first as usize..end as usize
}
