//! The move of a client's state to the table of a later generation, by any process that maps both,
//! and the proof that no charge is lost or counted twice, whenever a process stops or dies.
//!
//! 1. **Seal.** The earlier table is sealed for good; see `transfer.rs`. The later one is used only
//!    after that.
//! 2. **Freeze.** Before an absent key is decided in the later table, its state in the earlier one is
//!    frozen: swapped for an entry that no search finds and no request changes. Claims of the key are
//!    emptied.
//! 3. **Receive.** The frozen state is converted and inserted into the later table, unless the key is
//!    there by now.
//! 4. **Clear.** The frozen entry is emptied.
//!
//! *No charge is lost.* A request that charges the earlier table swaps the state, and so does the
//! freeze: one of the two comes first. If it is the charge, the frozen state contains it; if not, the
//! request finds the key absent from a sealed table, and continues in the later one. Nothing is emptied
//! before the later table has the state, so a process may die between any two steps: whoever meets the
//! key next repeats the steps.
//!
//! *Nothing counts twice.* A frozen state never changes. So all processes that repeat the steps for a
//! key insert the same state, and an insertion of a key that is there already keeps what is there.
//!
//! A process that is stopped between steps 2 and 3, while the key is forgotten in the later table (by
//! a reset or an eviction), brings the old state back when it continues. That limits one client
//! more than necessary, never less.

use super::entry::{Entry, Word};
use super::hash::KeyHash;
use super::raw::RawTable;
use super::slot::Slot;

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    /// Freezes a key's state and returns it, which is step 2. If two keys with the same hash each have
    /// a state, the greater one is returned, which allows less.
    pub(super) fn freeze(&self, key: KeyHash) -> Option<Word> {
        let places = self.lines.candidates(key);
        places.fold(None, |found, place| {
            self.freeze_at(place, key.fingerprint()).max(found)
        })
    }

    /// Freezes a slot if it has the given fingerprint. Returns its frozen state.
    fn freeze_at(&self, place: usize, fingerprint: u64) -> Option<Word> {
        let slot = self.lines.slot(place);
        let mut entry = slot.load();
        while entry.fingerprint() == fingerprint {
            let next = if entry.is_claim() {
                Entry::EMPTY
            } else {
                entry.frozen()
            };
            entry = slot.swap(entry, next).err().unwrap_or(next);
        }
        let is_frozen = entry != Entry::EMPTY && !entry.is_claim();
        (is_frozen && entry.key_fingerprint() == fingerprint).then(|| entry.word())
    }

    /// Freezes all states and empties all claims, so that the processes which still use this table
    /// notice that it is sealed.
    pub(super) fn freeze_all(&self) {
        for place in 0..self.lines.slots() {
            let fingerprint = self.lines.slot(place).load().fingerprint();
            if fingerprint & 1 == 1 {
                self.freeze_at(place, fingerprint);
            }
        }
    }

    /// Empties a key's frozen slots, which is step 4.
    pub(super) fn clear_frozen(&self, key: KeyHash) {
        for slot in self
            .lines
            .candidates(key)
            .map(|place| self.lines.slot(place))
        {
            let entry = slot.load();
            if entry.fingerprint() == key.fingerprint() & !1 {
                // Another process may have emptied it first.
                let _ = slot.swap(entry, Entry::EMPTY);
            }
        }
    }
}
