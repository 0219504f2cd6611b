//! The table over any kind of slot: finds a key, changes its state, and iterates over all slots.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::entry::{Change, Entry, Word, fingerprint, is_claim};
use super::hash::KeyHash;
use super::lines::Lines;
use super::region::{Region, Shareable};
use super::slot::{Purpose, Slot, prefetch};
use super::victim::Order;
use crate::store::live::LiveHolds;

/// Counters of insertions. There are several, so that processors that insert do not share a cache
/// line.
///
/// In a table that several processes map, they share the counters too: with counters of their own,
/// two processes could give two claims of a key the same number.
#[repr(C, align(64))]
pub(super) struct Shard {
    /// The number of claims made so far, which is also the number of the next claim.
    pub(super) claims: AtomicU64,
    /// The number of clients that were evicted although they were not idle.
    pub(super) displaced: AtomicU64,
    /// The number of changes that reservations of other processes, or of later ones, must know of, in a table that
    /// is in a file: clients were forgotten, or something was refunded to a bucket.
    pub(super) changes: AtomicU64,
}

// SAFETY: a shard consists of atomic integers.
#[allow(unsafe_code)]
unsafe impl Shareable for Shard {}

/// The number of shards of a table that is not small.
pub(super) const SHARDS: usize = 16;
/// The number of sets up to which a table has only one shard of counters: many tables are small,
/// one for each override of a rule.
const SMALL: usize = 16;
/// The pauses, about half a microsecond in all, after a compare-and-swap that failed. Threads that
/// compete for a cache line at every step get less done together than threads that leave it to each
/// other for a while.
const PAUSES: usize = 32;

/// A key and its home lines.
pub(super) struct RawLookup<'a, S, const LINE: usize> {
    pub(super) key: KeyHash,
    homes: [&'a [S; LINE]; 2],
}

// Derived, this would demand that slots can be copied.
impl<S, const LINE: usize> Clone for RawLookup<'_, S, LINE> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, const LINE: usize> Copy for RawLookup<'_, S, LINE> {}

/// The result of a search for a key.
enum Found<'a, S> {
    /// A slot that holds the key's state, or held it a moment ago.
    State(&'a S),
    /// No state, but perhaps a claim of the key.
    Claim,
    /// No entry of the key.
    Nothing,
}

/// The entry of a key as it was last read. A change is made only if the entry is still the same.
pub(super) struct RawReadEntry<'a, S> {
    key: KeyHash,
    slot: &'a S,
    /// The entry. Its halves are read separately, so it may be torn; the swap then fails.
    entry: Entry,
}

pub(super) struct RawTable<S, const LINE: usize, const LINES: usize> {
    pub(super) lines: Lines<S, LINE, LINES>,
    shards: Region<Shard>,
    /// The live reservations of the clients, which must know of an eviction.
    pub(super) live: Arc<LiveHolds>,
}

impl Shard {
    pub(super) fn new() -> Self {
        let [claims, displaced, changes] = [(); 3].map(|()| AtomicU64::new(0));
        Self {
            claims,
            displaced,
            changes,
        }
    }
}

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    pub(super) fn new(sets: usize) -> Option<Self> {
        let shards = if sets <= SMALL { 1 } else { SHARDS };
        let shards = (0..shards).map(|_| Shard::new()).collect();
        Some(Self::over(Lines::new(sets)?, Region::allocated(shards)))
    }

    /// Returns a table in the given memory. There must be at least one shard.
    pub(super) fn over(lines: Lines<S, LINE, LINES>, shards: Region<Shard>) -> Self {
        let live = Arc::default();
        Self {
            lines,
            shards,
            live,
        }
    }

    /// Returns the shard of a fingerprint. The lowest bit is not used, since it is set in all
    /// fingerprints.
    pub(super) fn shard(&self, fingerprint: u64) -> &Shard {
        &self.shards[(fingerprint >> 1) as usize % self.shards.len()]
    }

    /// Notes that a client's state is forgotten.
    pub(super) fn forget(&self, fingerprint: u64) {
        self.changed(fingerprint);
        self.live.forget(fingerprint);
    }

    /// Counts a change that reservations of other processes must know of.
    pub(super) fn changed(&self, fingerprint: u64) {
        if self.live.change(fingerprint) {
            self.shard(fingerprint).changes.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.bytes() + size_of_val(&*self.shards)
    }

    pub(super) fn displaced(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.displaced.load(Relaxed))
            .sum()
    }

    /// Updates a client; see [`Table::update`](super::Table::update).
    #[inline]
    pub(super) fn update<R>(
        &self,
        key: KeyHash,
        order: impl Order,
        decide: impl Fn(Option<Word>) -> (Change, R),
    ) -> R {
        let at_home = self
            .at_home(&self.place(key, Purpose::Write))
            .and_then(|seen| seen.update(&decide));
        at_home.unwrap_or_else(|| self.update_anywhere(key, order, decide))
    }

    /// Finds a key in its home lines; see [`Table::at_home`](super::Table::at_home).
    #[inline(always)]
    pub(super) fn at_home<'a>(
        &self,
        place: &RawLookup<'a, S, LINE>,
    ) -> Option<RawReadEntry<'a, S>> {
        let RawLookup { key, homes } = *place;
        Some(RawReadEntry::read(key, find_at_home(homes, key)?))
    }

    /// Updates a client wherever its entry is; see
    /// [`Table::update_anywhere`](super::Table::update_anywhere).
    pub(super) fn update_anywhere<R>(
        &self,
        key: KeyHash,
        order: impl Order,
        decide: impl Fn(Option<Word>) -> (Change, R),
    ) -> R {
        loop {
            let found = self.find(key);
            if let Found::State(slot) = found
                && let Some(answer) = RawReadEntry::read(key, slot).update(&decide)
            {
                return answer;
            }
            let (change, answer) = decide(None);
            let is_claimed = !matches!(found, Found::Nothing);
            match change {
                Change::Store(word) if !self.insert(key, word, is_claimed, &order) => {}
                _ => return answer,
            }
        }
    }

    /// Finds a key in both sets. Claims of the key are skipped, since its state may be in a later slot.
    fn find(&self, key: KeyHash) -> Found<'_, S> {
        let mut found = Found::Nothing;
        for slot in self.lines.matches(key).map(|place| self.lines.slot(place)) {
            if holds(slot, key) {
                return Found::State(slot);
            }
            found = Found::Claim;
        }
        found
    }

    /// Prefetches the two home lines of a key at once, and returns them.
    #[inline(always)]
    pub(super) fn place(&self, key: KeyHash, to: Purpose) -> RawLookup<'_, S, LINE> {
        let homes = self.lines.homes(key).map(|line| self.lines.line(line));
        prefetch(homes[0], to);
        prefetch(homes[1], to);
        RawLookup { key, homes }
    }

    /// Replaces every committed entry by the one that `convert` returns, and returns their number. Other
    /// threads and processes may use the table: each client is replaced before or after what they do.
    pub(super) fn convert(&self, mut convert: impl FnMut(Entry) -> Entry) -> usize {
        let slots = (0..self.lines.slots()).map(|place| self.lines.slot(place));
        slots
            .filter(|slot| {
                let mut entry = slot.load();
                while entry != Entry::EMPTY && !entry.is_claim() {
                    match slot.swap(entry, convert(entry)) {
                        Ok(()) => return true,
                        Err(found) => entry = found,
                    }
                }
                false
            })
            .count()
    }

    /// Returns the committed entries of the slots at `places`.
    pub(super) fn entries(
        &self,
        places: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = Entry> {
        places
            .map(|place| self.lines.slot(place).load())
            .filter(|entry| *entry != Entry::EMPTY && !entry.is_claim())
    }
}

impl<'a, S: Slot> RawReadEntry<'a, S> {
    #[inline(always)]
    fn read(key: KeyHash, slot: &'a S) -> Self {
        let high = slot.high();
        Self {
            key,
            slot,
            entry: Entry {
                high,
                low: slot.low(),
            },
        }
    }

    /// Returns the client's state; `None` if the entry is a claim or no longer belongs to the key.
    #[inline(always)]
    pub(super) fn word(&self) -> Option<Word> {
        self.entry.word_of(self.key.fingerprint())
    }

    /// Applies the change. Returns false if another thread changed the entry first, which is then
    /// read again.
    #[inline(always)]
    pub(super) fn apply(&mut self, change: Change) -> bool {
        let found = match change {
            Change::Store(word) => self.swap(Entry::new(self.key.fingerprint(), word)),
            Change::Remove => self.swap(Entry::EMPTY),
            Change::Keep => self.slot.load(),
        };
        let unchanged = found == self.entry;
        if !unchanged {
            (0..PAUSES).for_each(|_| core::hint::spin_loop());
        }
        self.entry = found;
        unchanged
    }

    /// Swaps the entry if it is unchanged. Returns the entry that was there before.
    #[inline(always)]
    fn swap(&self, new: Entry) -> Entry {
        self.slot.swap(self.entry, new).err().unwrap_or(self.entry)
    }

    /// Calls `decide` on the state and applies the change, again and again until no other thread
    /// interferes. Returns `None` if the slot does not hold the key any more.
    #[inline(always)]
    fn update<R>(mut self, decide: &impl Fn(Option<Word>) -> (Change, R)) -> Option<R> {
        while let Some(word) = self.word() {
            let (change, answer) = decide(Some(word));
            if self.apply(change) {
                return Some(answer);
            }
        }
        None
    }
}

/// Returns the slot of the home lines that probably holds the key. It is nearly always in the first
/// line, which the processor's branch prediction learns: so the processor begins the next decision
/// before this one's lines arrive.
#[inline(always)]
fn find_at_home<S: Slot, const LINE: usize>(homes: [&[S; LINE]; 2], key: KeyHash) -> Option<&S> {
    let matches = S::matches(homes[0], key.fingerprint());
    if matches != 0 {
        return homes[0].get(matches.trailing_zeros() as usize);
    }
    let matches = S::matches(homes[1], key.fingerprint());
    homes[1].get(matches.trailing_zeros() as usize)
}

#[inline(always)]
fn holds<S: Slot>(slot: &S, key: KeyHash) -> bool {
    let high = slot.high();
    fingerprint(high) == key.fingerprint() && !is_claim(high)
}
