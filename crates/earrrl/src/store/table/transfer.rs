//! The move of the states of one table to another, and the proof that no state is lost or counted
//! twice.
//!
//! 1. **Seal.** The old table is sealed for good. From then on it stores no absent key: an
//!    insertion checks the seal between its claim and its commit, and withdraws the claim if the
//!    table is sealed.
//! 2. **Take.** Before a key is decided in the new table, its state is taken out of the old table,
//!    together with all claims of the key, and stored in the new one. A lock lets only one thread
//!    at a time do that for a key; each key needs it once.
//!
//! *No state appears after the take.* A late insertion claimed its slot either before the seal, and
//! the taker finds the claim or the state that it became; or after the seal, which the insertion
//! then sees. An update of the state is a swap, like that of the taker, so one of the two comes
//! first. A request that finds its key absent in a sealed table continues in the new table. The
//! model checker runs all of these cases.

use super::entry::{Entry, FINGERPRINT_MASK, Word};
use super::hash::KeyHash;
use super::raw::RawTable;
use super::slot::Slot;
use super::victim::Order;

/// The high half of a seal, which damage of a file is not likely to write.
const SEAL: u64 = 0x5EA1_ED5E_A1ED_5EA1;
/// The seal of a table.
const SEALED: Entry = Entry { high: SEAL, low: 1 };
/// The seal of a table of which somebody has found that no client is left.
const EMPTIED: Entry = Entry { high: SEAL, low: 2 };

/// The seal of a table in a file.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seal {
    /// The table is not sealed.
    None,
    /// Clients move from the table to that of a later generation.
    Sealed,
    /// The table is sealed, and no client is left in it.
    Emptied,
}

#[cfg(target_os = "linux")]
impl Seal {
    /// Returns the seal with these bytes.
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        match Entry::from_bits(u128::from_ne_bytes(bytes)) {
            EMPTIED => Self::Emptied,
            Entry { high: SEAL, .. } => Self::Sealed,
            _ => Self::None,
        }
    }
}

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    /// Seals the table, which is step 1.
    pub(super) fn seal(&self) {
        let mut seen = self.seal[0].load();
        // In a damaged file, the seal may be neither empty nor whole.
        while seen.high != SEAL {
            seen = self.seal[0].swap(seen, SEALED).err().unwrap_or(SEALED);
        }
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.seal[0].high() == SEAL
    }

    /// Records in the seal that no client is left.
    pub(super) fn mark_emptied(&self) {
        // The swap fails if another process was first.
        let _ = self.seal[0].swap(SEALED, EMPTIED);
    }

    /// Removes a key's state and returns it, which is step 2. If two keys with the same hash each
    /// have a state, the greater one is returned, which allows less.
    pub(super) fn take(&self, key: KeyHash) -> Option<Word> {
        let places = self.lines.candidates(key);
        places.fold(None, |taken, place| {
            self.take_at(place, key.fingerprint()).max(taken)
        })
    }

    /// Empties a slot if it has the given fingerprint. Returns the state that was in it.
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

    /// Returns true if both tables have the candidate slots of a key at the same places.
    pub(super) fn is_laid_out_as(&self, other: &Self) -> bool {
        self.lines.slots() == other.lines.slots()
    }

    /// Removes every state and stores the one that `convert` returns in `into`, a table of the same
    /// layout. Returns false if that table is sealed too by now. `alone` returns a guard that keeps
    /// other threads from moving the key.
    pub(super) fn pour<G>(
        &self,
        into: &Self,
        alone: impl Fn(KeyHash) -> G,
        convert: impl Fn(Word) -> Option<Word>,
        order: &impl Order,
    ) -> bool {
        for place in 0..self.lines.slots() {
            let entry = self.lines.slot(place).load();
            if entry == Entry::EMPTY || entry.is_claim() {
                continue;
            }
            // Only the fingerprint of the key is known, and `alone` must not depend on anything
            // else.
            let fingerprint = entry.fingerprint();
            let _alone = alone(KeyHash::from_bits(fingerprint));
            if into.is_sealed() {
                return false;
            }
            if let Some(word) = self.take_at(place, fingerprint).and_then(&convert) {
                into.put_near(place, Entry::new(fingerprint, word), order);
            }
        }
        true
    }

    /// Stores what `convert` returns for every state in `into`, a table of the same layout. This
    /// table stays as it is. No other thread or process may use either of them.
    #[cfg(target_os = "linux")]
    pub(super) fn copy_converted(
        &self,
        into: &Self,
        convert: impl Fn(Word) -> Option<Word>,
        order: &impl Order,
    ) {
        for place in 0..self.lines.slots() {
            let entry = self.lines.slot(place).load();
            if entry == Entry::EMPTY || entry.is_claim() {
                continue;
            }
            if let Some(word) = convert(entry.word()) {
                into.put_near(place, Entry::new(entry.key_fingerprint(), word), order);
            }
        }
    }

    /// Removes the states except those for which `is_kept` returns true, and returns the number of
    /// removed ones. Other threads and processes may use the table: to each client, this is a reset.
    pub(super) fn clear(&self, is_kept: impl Fn(Word) -> bool) -> usize {
        let slots = (0..self.lines.slots()).map(|place| self.lines.slot(place));
        slots.filter(|slot| clear_slot(*slot, &is_kept)).count()
    }

    /// Removes the states of idle clients, and returns the number of states left.
    pub(super) fn clear_idle(&self, order: &impl Order) -> usize {
        let mut left = 0;
        let idle = order.idle();
        for place in 0..self.lines.slots() {
            let entry = self.lines.slot(place).load();
            if entry == Entry::EMPTY || entry.is_claim() {
                continue;
            }
            let is_gone = || self.lines.slot(place).swap(entry, Entry::EMPTY).is_ok();
            left += usize::from(order.rank(entry.word()) > idle || !is_gone());
        }
        left
    }
}

/// Removes the state in a slot, unless `is_kept` returns true for it. Returns true if it was removed.
fn clear_slot(slot: &impl Slot, is_kept: impl Fn(Word) -> bool) -> bool {
    let mut entry = slot.load();
    while entry != Entry::EMPTY && !entry.is_claim() && !is_kept(entry.word()) {
        match slot.swap(entry, Entry::EMPTY) {
            Ok(()) => return true,
            Err(found) => entry = found,
        }
    }
    false
}

/// Returns the index of the lock, among `locks` of them, that keeps other threads from moving a
/// key. It depends only on bits that every entry contains.
pub(crate) fn lock_of(key: KeyHash, locks: usize) -> usize {
    ((key.bits() & FINGERPRINT_MASK) >> 1) as usize % locks
}
