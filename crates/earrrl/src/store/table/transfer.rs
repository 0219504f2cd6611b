//! The move of the states of one table to another, and the proof that none is lost or counted twice.
//!
//! 1. **Seal.** The table that is given up is sealed for good. From then on it stores no absent key: an
//!    insertion looks at the seal between its claim and its commit, and withdraws the claim.
//! 2. **Take.** Before a key is decided on in the other table, its state is taken out of this one,
//!    claims of it included, and stored there. One thread at a time does that for a key: the only lock,
//!    and each key needs it once.
//!
//! *Nothing comes after the taker.* A late request either claimed its slot before the seal, and the taker
//! finds the claim or the state it became; or it claimed afterwards, and sees the seal. An update of
//! the state itself is a swap like the taker's, so one of the two is first. A request that finds a key absent
//! in a sealed table goes on to the other one. The model checker runs all of it.

use super::entry::{Entry, FINGERPRINT_MASK, Word};
use super::hash::KeyHash;
use super::raw::RawTable;
use super::slot::Slot;

/// Any entry but none.
const SEALED: Entry = Entry { high: 1, low: 1 };

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    /// Seals the table, as step 1.
    pub(super) fn seal(&self) {
        // It fails where it is sealed already.
        let _ = self.sealed.swap(Entry::EMPTY, SEALED);
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealed.high() != 0
    }

    /// Takes a key's state out, as step 2. Two keys whose hashes agree may each have one; the key gets the
    /// higher, which allows less.
    pub(super) fn take(&self, key: KeyHash) -> Option<Word> {
        let places = self.lines.candidates(key);
        places.fold(None, |taken, place| self.take_at(place, key.fingerprint()).max(taken))
    }

    /// Empties a slot if it holds that fingerprint. Returns the state that was in it.
    fn take_at(&self, place: usize, fingerprint: u64) -> Option<Word> {
        let slot = self.lines.slot(place);
        let mut entry = slot.load();
        while entry.fingerprint() == fingerprint {
            match slot.swap(entry, Entry::EMPTY) {
                Ok(()) => return (!entry.is_claim()).then(|| entry.word()),
                Err(found) => entry = found,
            }
        }
        None
    }

    /// Returns true if a key has its candidates at the same places in both tables.
    pub(super) fn is_laid_out_as(&self, other: &Self) -> bool {
        self.lines.slots() == other.lines.slots()
    }

    /// Takes every state and stores the one that `convert` returns in a table that is laid out alike. Returns
    /// false if that table is sealed, too, by now. `alone` returns a guard that keeps other threads from moving
    /// the key.
    pub(super) fn pour<G>(
        &self,
        into: &Self,
        alone: impl Fn(KeyHash) -> G,
        convert: impl Fn(Word) -> Option<Word>,
        idle: Word,
    ) -> bool {
        for place in 0..self.lines.slots() {
            let entry = self.lines.slot(place).load();
            if entry == Entry::EMPTY || entry.is_claim() {
                continue;
            }
            // The fingerprint is all that is known of the key; `alone` looks at nothing else.
            let fingerprint = entry.fingerprint();
            let _alone = alone(KeyHash::from_bits(fingerprint));
            if into.is_sealed() {
                return false;
            }
            if let Some(word) = self.take_at(place, fingerprint).and_then(&convert) {
                into.put_near(place, Entry::new(fingerprint, word), idle);
            }
        }
        true
    }

    /// Removes every state up to `idle`, and returns the number of those left.
    pub(super) fn clear_idle(&self, idle: Word) -> usize {
        let mut left = 0;
        for place in 0..self.lines.slots() {
            let entry = self.lines.slot(place).load();
            if entry == Entry::EMPTY || entry.is_claim() {
                continue;
            }
            let is_gone = || self.lines.slot(place).swap(entry, Entry::EMPTY).is_ok();
            left += usize::from(entry.word() > idle || !is_gone());
        }
        left
    }
}

/// Returns the lock, of a number of locks, that keeps other threads from moving a key, by bits that every entry
/// holds.
pub(crate) fn lock_of(key: KeyHash, locks: usize) -> usize {
    ((key.bits() & FINGERPRINT_MASK) >> 1) as usize % locks
}
