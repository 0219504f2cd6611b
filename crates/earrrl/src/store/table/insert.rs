//! Insertion of an absent key, and the proof that the key never gets two slots.
//!
//! # Into a slot that was never used
//! The *sequence* of a key is the slots of its first home line and then those of its second, without the last slot
//! of each line. A new key goes into the first empty slot of its sequence, by one swap, if the key is in none of
//! the slots before. One access to each slot must tell both whether it was used and whether the key is there; where
//! a second access looks for the key, it must come after the first.
//!
//! *Never two.* A slot that was used never becomes empty again; whatever frees it leaves [`Entry::VACATED`]. So if
//! the swap at slot `i` succeeds, `i` was empty all the time before. No other thread has inserted the key behind
//! `i`, since it would have had to find `i` used, nor claimed a slot for it, since a claim requires that all of the
//! sequence is used. And the key is not before `i`: those slots were used when they were found not to hold it, and
//! only a claim brings a key into a used slot.
//!
//! *The last slots* of the lines are filled by claims, which also choose among the other lines of the sets. If
//! all slots of the home lines were filled in turn, 130 of a million clients would find no slot in a table for a
//! million.
//!
//! # Into a slot that was used
//! Once all of the sequence is used, which does not change any more:
//!
//! 1. **Claim.** Swap a victim for a claim: the key's fingerprint and a number that no other claim
//!    of this key has. A claim counts as no state.
//! 2. **Rescan.** Read every other candidate slot of the key. If one holds the key's state, or a
//!    claim of it at a lower place, withdraw this claim and start over. Vacate claims at higher places.
//! 3. **Commit.** Swap the claim, exactly as it was seen, for the state. If another thread has
//!    changed it, start over.
//!
//! *Never two.* Suppose two claims of one key, at places `a < b`, both come to be committed and
//! stay. All swaps and loads are sequentially consistent. A committed claim stood untouched from
//! step 1 to step 3, since its number never recurs, and its committer's rescan lies between.
//! Consider the instant at which the committer of `b` read `a`, after `b` was claimed. If it saw
//! the claim or the state there, it withdrew `b`. So `a` was claimed after that instant, hence
//! after `b` was, and the rescan of `a` came later still. It found `b` claimed and vacated it, so
//! that the commit of `b` failed; or it found `b` committed and withdrew `a`; or it found `b` gone.
//! In no case do both stay. Without the rescan, the model checker finds a key in two slots.
//!
//! *Killed in between.* A claim whose owner died is harmless. A thread that finds a claim of its own
//! key takes it over with steps 2 and 3, which need only the claim as it was seen. Until then, the slot is lost.
//! A sweep frees it, and an eviction if all slots of the sets are claimed.
//!
//! *Progress.* Of several claims of a key, the lowest is withdrawn only if the key's state is
//! found, and any thread can commit it, so at least one thread always makes progress.

use core::sync::atomic::Ordering::Relaxed;

use super::entry::{Entry, Order, Word};
use super::hash::KeyHash;
use super::raw::RawTable;
use super::slot::Slot;
use super::victim::{Candidate, rank_in, rank_of};

/// A claim of a slot, as it was made or seen.
#[derive(Clone, Copy)]
pub(super) struct Claim {
    pub(super) place: usize,
    pub(super) entry: Entry,
}

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    /// Returns the first slot of the key's sequence that was never used, and true if no slot of the home lines holds
    /// the key. Free slots are found without branches, since nobody can predict how many slots of a line are used.
    #[inline(always)]
    pub(super) fn first_unused(&self, key: KeyHash) -> (Option<&S>, bool) {
        // A line with one slot, as models have, is a sequence as a whole.
        let sequence = if LINE > 1 { (1 << (LINE - 1)) - 1 } else { 1 };
        let homes = self.lines.homes(key).map(|home| self.lines.line(home));
        let seen = homes.map(|line| S::matches_and_free(line, key.fingerprint()));
        let [[first, first_free], [second, second_free]] = seen;
        let mut free = first_free & sequence | (second_free & sequence) << LINE;
        let mut is_absent = first | second == 0;
        while free != 0 {
            let nth = free.trailing_zeros() as usize;
            let slot = &homes[nth / LINE][nth % LINE];
            if slot.high() == 0 {
                return (Some(slot), is_absent);
            }
            // It is a vacated slot, which looks like a free one, or another thread has filled it meanwhile, perhaps
            // with the key.
            is_absent = false;
            free &= free - 1;
        }
        (None, is_absent)
    }

    /// Stores the first word of an absent key, all of whose sequence is used. Returns false if another
    /// thread interfered; the caller must then look for the key again.
    pub(super) fn insert(&self, key: KeyHash, word: Word, order: &impl Order) -> bool {
        let claim = self.claim(key, order);
        claim.is_some_and(|claim| self.finish(key, word, &claim))
    }

    /// Finishes the insertion of another thread, which has left a claim of the key at `place`. Returns false if that
    /// has changed.
    pub(super) fn take_over(&self, key: KeyHash, word: Word, place: usize) -> bool {
        let entry = self.lines.slot(place).load();
        let is_claim = entry.is_claim() && entry.fingerprint() == key.fingerprint();
        is_claim && self.finish(key, word, &Claim { place, entry })
    }

    /// Rescans and commits the claim, which are steps 2 and 3.
    pub(super) fn finish(&self, key: KeyHash, word: Word, claim: &Claim) -> bool {
        if S::RESCANS && !self.rescan(key, claim) {
            return false;
        }
        let committed = Entry::new(key.fingerprint(), word);
        let slot = self.lines.slot(claim.place);
        slot.swap(claim.entry, committed).is_ok()
    }

    /// Claims a slot, which is step 1.
    pub(super) fn claim(&self, key: KeyHash, order: &impl Order) -> Option<Claim> {
        let idle = rank_of(order.idle());
        let Candidate { place, rank } = self.victim(key, order, idle);
        let slot = self.lines.slot(place);
        let seen = slot.read();
        let fingerprint = key.fingerprint();
        // Another thread has changed the victim, or inserted the key, meanwhile.
        let is_own = seen.fingerprint() == fingerprint;
        if is_own || rank_in(order, seen) != rank {
            return None;
        }
        let displaces = rank > idle && !seen.is_claim();
        let shard = self.shard(fingerprint);
        let counter = if displaces {
            &shard.displaced
        } else {
            &shard.claims
        };
        // Shifted, since a damaged file may have any count.
        let number = counter.fetch_add(1, Relaxed) << 1 | u64::from(displaces);
        let entry = Entry::claim(fingerprint, number);
        slot.swap(seen, entry).ok()?;
        if seen.is_state() {
            self.forget(seen.fingerprint());
        }
        Some(Claim { place, entry })
    }

    /// Rescans, which is step 2. Returns true if the claim is the only entry of its key.
    fn rescan(&self, key: KeyHash, claim: &Claim) -> bool {
        for place in self
            .lines
            .matches(key, false)
            .filter(|place| *place != claim.place)
        {
            let slot = self.lines.slot(place);
            let mut entry = slot.load();
            while entry.fingerprint() == key.fingerprint() {
                if !entry.is_claim() || place < claim.place {
                    // The swap fails if another thread has already withdrawn or committed the
                    // claim.
                    let claimed = self.lines.slot(claim.place);
                    let _ = claimed.swap(claim.entry, Entry::VACATED);
                    return false;
                }
                match slot.swap(entry, Entry::VACATED) {
                    Ok(()) => break,
                    Err(found) => entry = found,
                }
            }
        }
        true
    }
}
