//! Insertion of an absent key, and the proof that the key never gets two slots.
//!
//! 1. **Claim.** Swap a victim for a claim: the key's fingerprint and a number that no other claim
//!    of this key has. A claim counts as no state.
//! 2. **Rescan.** Read every other candidate slot of the key. If one holds the key's state, or a
//!    claim of it at a lower place, withdraw this claim and start over. Swap claims at higher
//!    places for empty slots.
//! 3. **Commit.** Swap the claim, exactly as it was seen, for the state. If another thread has
//!    changed it, start over.
//!
//! *Never two.* Suppose two claims of one key, at places `a < b`, both come to be committed and
//! stay. All swaps and loads are sequentially consistent. A committed claim stood untouched from
//! step 1 to step 3, since its number never recurs, and its committer's rescan lies between.
//! Consider the instant at which the committer of `b` read `a`, after `b` was claimed. If it saw
//! the claim or the state there, it withdrew `b`. So `a` was claimed after that instant, hence
//! after `b` was, and the rescan of `a` came later still. It found `b` claimed and emptied it, so
//! that the commit of `b` failed; or it found `b` committed and withdrew `a`; or it found `b` gone.
//! In no case do both stay. Without the rescan, the model checker finds a key in two slots.
//!
//! *Killed in between.* A claim whose owner died is harmless. A thread that finds a claim of its own
//! key takes it over with steps 2 and 3, which need only the claim as it was seen. A claim is
//! evicted like an empty slot once many later claims were made in its shard.
//!
//! *Progress.* Of several claims of a key, the lowest is withdrawn only if the key's state is
//! found, and any thread can commit it, so at least one thread always makes progress.

use core::sync::atomic::Ordering::Relaxed;

use super::entry::{Entry, Word};
use super::hash::KeyHash;
use super::raw::RawTable;
use super::slot::Slot;
use super::victim::{Candidate, ENOUGH, Order, Rank, rank, rank_in, rank_of, victim};

/// A claim is stale once this many later ones were made in its shard: its owner is long dead, or so
/// slow that starting over costs it nothing.
pub(super) const STALE: u64 = 1 << 16;

/// The most slots in the two sets of a key.
const MAX_CANDIDATES: usize = 32;
const UNSEEN: Candidate = Candidate {
    place: 0,
    entry: Entry::EMPTY,
    rank: 0,
};

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    /// Stores the first word of an absent key, of which there may be a claim. Returns false if another
    /// thread interfered; the caller must then look for the key again.
    pub(super) fn insert(
        &self,
        key: KeyHash,
        word: Word,
        is_claimed: bool,
        order: &impl Order,
    ) -> bool {
        let home = if is_claimed {
            None
        } else {
            self.empty_home(key)
        };
        let claim = match home {
            Some(home) => self.claim_slot(key.fingerprint(), home, rank(Entry::EMPTY)),
            None => self.claim(key, word, order),
        };
        claim.is_some_and(|claim| self.finish(key, word, &claim))
    }

    /// Rescans and commits the claim, which are steps 2 and 3.
    pub(super) fn finish(&self, key: KeyHash, word: Word, claim: &Candidate) -> bool {
        if S::RESCANS && !self.rescan(key, claim) {
            return false;
        }
        let committed = Entry::new(key.fingerprint(), word);
        let slot = self.lines.slot(claim.place);
        slot.swap(claim.entry, committed).is_ok()
    }

    /// Claims a slot, which is step 1. Takes over a claim of the key that is there already.
    pub(super) fn claim(&self, key: KeyHash, word: Word, order: &impl Order) -> Option<Candidate> {
        let mut slots = [UNSEEN; MAX_CANDIDATES];
        let mut seen = 0;
        for (slot, place) in slots.iter_mut().zip(self.lines.candidates(key)) {
            *slot = self.look(place, order);
            if slot.entry.fingerprint() == key.fingerprint() {
                return slot.entry.is_claim().then_some(*slot);
            }
            seen += 1;
        }
        let (first, second) = slots.get(..seen)?.split_at(seen / 2);
        let idle = rank_of(order.idle());
        let victim = victim([first, second], LINE, rank_of(order.rank(word)), idle)?;
        self.claim_slot(key.fingerprint(), victim, idle)
    }

    /// Returns the first empty slot of a newcomer's first home line if [`victim`] would choose that: if enough
    /// slots of the home's set are empty. Looks at whole lines, several times faster than at each slot.
    fn empty_home(&self, key: KeyHash) -> Option<Candidate> {
        let [home, _] = self.lines.homes(key);
        if self.lines.matches_in_set(home, 0).count_ones() < ENOUGH as u32 {
            return None;
        }
        let (nth, slot) = self
            .lines
            .line(home)
            .iter()
            .enumerate()
            .find(|(_, slot)| slot.high() == 0)?;
        // In a damaged file, the low half may not be empty.
        let entry = Entry {
            high: 0,
            low: slot.low(),
        };
        Some(Candidate {
            place: home * LINE + nth,
            entry,
            rank: 0,
        })
    }

    fn look(&self, place: usize, order: &impl Order) -> Candidate {
        let entry = self.lines.slot(place).load();
        let rank = if self.is_stale_claim(entry) {
            0
        } else {
            rank_in(order, entry)
        };
        Candidate { place, entry, rank }
    }

    fn is_stale_claim(&self, entry: Entry) -> bool {
        let made = || self.shard(entry.fingerprint()).claims.load(Relaxed);
        entry.is_claim() && made().wrapping_sub(entry.low) > STALE
    }

    fn claim_slot(&self, fingerprint: u64, victim: Candidate, idle: Rank) -> Option<Candidate> {
        let shard = self.shard(fingerprint);
        let entry = Entry::claim(fingerprint, shard.claims.fetch_add(1, Relaxed));
        self.lines
            .slot(victim.place)
            .swap(victim.entry, entry)
            .ok()?;
        self.count_displaced(fingerprint, &victim, idle);
        if victim.entry != Entry::EMPTY && !victim.entry.is_claim() {
            self.forget(victim.entry.fingerprint());
        }
        Some(Candidate { entry, ..victim })
    }

    fn count_displaced(&self, by: u64, victim: &Candidate, idle: Rank) {
        if victim.rank > idle && !victim.entry.is_claim() {
            self.shard(by).displaced.fetch_add(1, Relaxed);
        }
    }

    /// Stores a state in a set of which `place` is a slot, the line of `place` first, unless all others there
    /// have a higher rank. The key must have no other state here, and no other thread may be storing one.
    #[cfg(target_os = "linux")]
    pub(super) fn put_near(&self, place: usize, state: Entry, order: &impl Order) {
        let home = place / LINE;
        let newcomer = rank_in(order, state);
        let idle = rank_of(order.idle());
        loop {
            let mut slots = [UNSEEN; MAX_CANDIDATES];
            let lines = (0..LINES).map(|nth| home ^ nth);
            let places = lines.flat_map(|line| line * LINE..(line + 1) * LINE);
            for (slot, place) in slots.iter_mut().zip(places) {
                *slot = self.look(place, order);
            }
            let set = slots.get(..LINE * LINES).unwrap_or(&slots);
            let Some(victim) =
                victim([set, &[]], LINE, newcomer, idle).filter(|victim| victim.rank < newcomer)
            else {
                return;
            };
            if self
                .lines
                .slot(victim.place)
                .swap(victim.entry, state)
                .is_ok()
            {
                return self.count_displaced(state.fingerprint(), &victim, idle);
            }
        }
    }

    /// Rescans, which is step 2. Returns true if the claim is the only entry of its key.
    fn rescan(&self, key: KeyHash, claim: &Candidate) -> bool {
        for place in self
            .lines
            .matches(key)
            .filter(|place| *place != claim.place)
        {
            let slot = self.lines.slot(place);
            let mut entry = slot.load();
            while entry.fingerprint() == key.fingerprint() {
                if !entry.is_claim() || place < claim.place {
                    // The swap fails if another thread has already withdrawn or committed the
                    // claim.
                    let _ = self.lines.slot(claim.place).swap(claim.entry, Entry::EMPTY);
                    return false;
                }
                entry = slot.swap(entry, Entry::EMPTY).err().unwrap_or(Entry::EMPTY);
            }
        }
        true
    }
}
