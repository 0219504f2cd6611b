//! The sweep of a table that was not in use: removes what a crash, a power failure or a damaged
//! disk may have left behind.
//!
//! * Claims. Their owners are gone.
//! * States further ahead of the present than any request could have moved them. Without the sweep,
//!   flipped bits could lock a client out for centuries, and such a client is never evicted.
//! * The lesser of two states of one key in one set. After a power failure, the pages of a file are
//!   of different ages, so a key that moved may be found at its old place too, and a slot that was used may
//!   be empty again. A pair that is divided between two sets cannot be recognised by fingerprints; the key
//!   then has the state that a search finds first.

use super::entry::{Entry, Word};
use super::raw::RawTable;
use super::slot::Slot;

/// The numbers of entries that were removed from a state file before it was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Unfinished insertions of processes that died.
    pub claims: u64,
    /// States too far ahead of the present.
    pub ahead: u64,
    /// States of clients that had a greater state in the same set.
    pub duplicates: u64,
}

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    /// Removes claims, duplicates and states above `latest`.
    pub(crate) fn sweep(&self, latest: Word) -> Swept {
        let mut swept = Swept::default();
        let set = LINE * LINES;
        for first in (0..self.lines.slots()).step_by(set) {
            self.sweep_set(first..first + set, latest, &mut swept);
        }
        swept
    }

    fn sweep_set(&self, places: core::ops::Range<usize>, latest: Word, swept: &mut Swept) {
        for place in places.clone() {
            let entry = self.lines.slot(place).load();
            if entry == Entry::EMPTY || entry == Entry::VACATED {
                continue;
            }
            let count = if entry.is_claim() {
                &mut swept.claims
            } else if entry.word() > latest {
                &mut swept.ahead
            } else if self.is_lesser_duplicate(entry, place, places.clone()) {
                &mut swept.duplicates
            } else {
                continue;
            };
            *count += 1;
            let _ = self.lines.slot(place).swap(entry, Entry::VACATED);
        }
    }

    /// Returns true if another slot of the set has the same key with a greater state, or with the
    /// same state at a later place.
    fn is_lesser_duplicate(
        &self,
        entry: Entry,
        place: usize,
        mut places: core::ops::Range<usize>,
    ) -> bool {
        places.any(|other| {
            let other_entry = self.lines.slot(other).load();
            other_entry.fingerprint() == entry.fingerprint()
                && !other_entry.is_claim()
                && (other_entry.word(), other) > (entry.word(), place)
        })
    }
}
