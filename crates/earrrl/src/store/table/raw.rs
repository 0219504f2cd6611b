//! The table over any kind of slot: finds a key, changes its state, and iterates over all slots.

use core::cell::Cell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::entry::{Change, Entry, Order, Word};
use super::hash::KeyHash;
use super::lines::Lines;
use super::region::{Region, Shareable};
use super::slot::{Purpose, Slot, prefetch};
use crate::store::live::LiveHolds;

/// Counters of insertions. There are several, so that processors that insert do not share a cache
/// line.
///
/// In a table that several processes map, they share the counters too: with counters of their own,
/// two processes could give two claims of a key the same number.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Shard {
    /// The number of claims of slots that were free or of idle clients.
    pub(super) claims: AtomicU64,
    /// The number of claims of slots of clients that were not idle.
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

/// The number of look-ups that prefetch all lines of both sets after a key was not in its home lines. In a flood of
/// new clients, nearly every look-up needs these lines; this many are fetched together in a batch or a pipeline.
const WIDE_LOOKUPS: u32 = 32;

std::thread_local! {
    /// The number of coming look-ups of this thread that prefetch all lines of both sets.
    static WIDE: Cell<u32> = const { Cell::new(0) };
}

/// A key and its home lines.
pub(crate) struct Lookup<'a, S, const LINE: usize> {
    pub(crate) key: KeyHash,
    homes: [&'a [S; LINE]; 2],
}

impl<'a, S: Slot, const LINE: usize> Lookup<'a, S, LINE> {
    /// Returns the key's entry if it is in one of the home lines. Nearly all entries are.
    #[inline(always)]
    pub(crate) fn at_home(&self) -> Option<ReadEntry<'a, S>> {
        let slot = find_at_home(self.homes, self.key)?;
        Some(ReadEntry::read(self.key, slot))
    }
}

/// The result of a search for a key in all slots where it may be.
pub(crate) enum Found<'a, S> {
    /// The key's state.
    State(ReadEntry<'a, S>),
    /// No state, and a slot for it that was never used.
    Unused(&'a S),
    /// No state, but perhaps a claim of the key at this place.
    Claim(usize),
    /// No entry of the key, and no slot that was never used.
    Nothing,
}

/// The entry of a key as it was last read. A change is made only if the entry is still the same.
pub(crate) struct ReadEntry<'a, S> {
    key: KeyHash,
    slot: &'a S,
    /// The entry. Its halves are read separately, so it may be torn; the swap then fails.
    entry: Entry,
}

/// A table over slots of type `S`, with so many slots in a line and lines in a set.
pub struct RawTable<S, const LINE: usize, const LINES: usize> {
    pub(super) lines: Lines<S, LINE, LINES>,
    pub(super) shards: Region<Shard>,
    /// The number of live clients for which the table was built.
    pub(super) capacity: usize,
    /// The live reservations of the clients, which must know of an eviction.
    pub(super) live: Arc<LiveHolds>,
}

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    pub(super) fn of_sets(sets: usize) -> Option<Self> {
        let shards = if sets <= SMALL { 1 } else { SHARDS };
        let shards = (0..shards).map(|_| Shard::default()).collect();
        Some(Self::over(Lines::new(sets)?, Region::allocated(shards)))
    }

    /// Returns a table in the given memory. There must be at least one shard.
    pub(super) fn over(lines: Lines<S, LINE, LINES>, shards: Region<Shard>) -> Self {
        let live = Arc::default();
        let capacity = lines.slots();
        Self {
            lines,
            shards,
            capacity,
            live,
        }
    }

    /// Returns the live reservations of the table's clients.
    pub(crate) fn live(&self) -> &Arc<LiveHolds> {
        &self.live
    }

    /// Returns the shard of a fingerprint. The lowest bit is not used, since it is set in all
    /// fingerprints.
    pub(super) fn shard(&self, fingerprint: u64) -> &Shard {
        // A division would take longer than all else; the number of shards is a power of two.
        &self.shards[(fingerprint >> 1) as usize & (self.shards.len() - 1)]
    }

    /// Notes that a client's state is forgotten.
    pub(crate) fn forget(&self, fingerprint: u64) {
        self.changed(fingerprint);
        self.live.forget(fingerprint);
    }

    /// Counts a change that reservations of other processes must know of.
    pub(crate) fn changed(&self, fingerprint: u64) {
        if self.live.change(fingerprint) {
            self.shard(fingerprint).changes.fetch_add(1, Relaxed);
        }
    }

    /// Returns the bytes that the table occupies, which never change.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.lines.bytes() + size_of_val(&*self.shards)
    }

    /// Returns the number of clients that were evicted although they were not idle. If it grows steadily, the
    /// capacity is too small. A client that changes while it is chosen may be counted although it stays.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.displaced.load(Relaxed))
            .sum()
    }

    /// Reads, judges and changes one client's state as one atomic step.
    ///
    /// `decide` gets the state, or `None` if the client is absent, and returns the change and a
    /// result. It may be called several times if threads interfere with each other; only its last
    /// call counts. `order` decides which client is evicted if the table is full: usually a closure
    /// that returns the greatest word of a client that is as good as new. Such clients are evicted
    /// before others, and are not counted as [`displaced`](Self::displaced).
    #[inline]
    pub fn update<R>(
        &self,
        key: KeyHash,
        order: impl Order,
        decide: impl Fn(Option<Word>) -> (Change, R),
    ) -> R {
        let at_home = self.place(key, Purpose::Write).at_home();
        let mut found = at_home
            .filter(|seen| seen.word().is_some())
            .map(Found::State);
        loop {
            let seen = found.take().unwrap_or_else(|| self.search(key));
            let (change, answer) = decide(seen.word());
            if self.apply(key, seen, change, &order) {
                return answer;
            }
        }
    }

    /// Searches for a key in all slots where it may be. Claims of the key are skipped, since its state may be in a
    /// later slot.
    pub(crate) fn search(&self, key: KeyHash) -> Found<'_, S> {
        // In this order; see `insert.rs`.
        let (unused, is_absent) = self.first_unused(key);
        let only_at_home = unused.is_some();
        let mut found = unused.map_or(Found::Nothing, Found::Unused);
        if is_absent && only_at_home {
            return found;
        }
        WIDE.set(WIDE_LOOKUPS);
        for place in self.lines.matches(key, only_at_home) {
            let seen = ReadEntry::read(key, self.lines.slot(place));
            if seen.word().is_some() {
                return Found::State(seen);
            }
            if !only_at_home && seen.entry.fingerprint() == key.fingerprint() {
                found = Found::Claim(place);
            }
        }
        found
    }

    /// Applies a change to the key that was searched for. Returns false if another thread interfered; the caller must
    /// then search again.
    #[inline(always)]
    pub(crate) fn apply(
        &self,
        key: KeyHash,
        found: Found<'_, S>,
        change: Change,
        order: &impl Order,
    ) -> bool {
        match (found, change) {
            (Found::State(mut seen), _) => seen.apply(change),
            (_, Change::Keep | Change::Remove) => true,
            (Found::Unused(slot), Change::Store(word)) => {
                fill(slot, Entry::new(key.fingerprint(), word))
            }
            (Found::Claim(place), Change::Store(word)) => self.take_over(key, word, place),
            (Found::Nothing, Change::Store(word)) => self.insert(key, word, order),
        }
    }

    /// Prefetches the home lines of a key and returns them, so that the caller can do other work
    /// before they arrive.
    #[inline(always)]
    pub(crate) fn place(&self, key: KeyHash, to: Purpose) -> Lookup<'_, S, LINE> {
        let homes = self.lines.homes(key).map(|line| self.lines.line(line));
        prefetch(homes[0], to);
        prefetch(homes[1], to);
        if WIDE.get() > 0 {
            self.prefetch_sets(key);
        }
        Lookup { key, homes }
    }

    #[inline(never)]
    fn prefetch_sets(&self, key: KeyHash) {
        WIDE.set(WIDE.get() - 1);
        for home in self.lines.homes(key) {
            let lines = self.lines.set(home);
            lines.iter().for_each(|line| prefetch(line, Purpose::Read));
        }
    }

    /// Replaces every client's entry by the one that `convert` returns, and returns their number. Other
    /// threads and processes may use the table: each client is replaced before or after what they do.
    pub(super) fn change_all(&self, mut convert: impl FnMut(Entry) -> Entry) -> usize {
        let slots = (0..self.lines.slots()).map(|place| self.lines.slot(place));
        slots
            .filter(|slot| {
                let mut entry = slot.load();
                while entry.is_state() {
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
            .filter(|entry| entry.is_state())
    }
}

impl<S: Slot> Found<'_, S> {
    /// Returns the client's state; `None` if there is none.
    #[inline(always)]
    pub(crate) fn word(&self) -> Option<Word> {
        match self {
            Self::State(seen) => seen.word(),
            _ => None,
        }
    }
}

impl<'a, S: Slot> ReadEntry<'a, S> {
    #[inline(always)]
    fn read(key: KeyHash, slot: &'a S) -> Self {
        let entry = slot.read();
        Self { key, slot, entry }
    }

    /// Returns the client's state; `None` if the entry does not belong to the key.
    #[inline(always)]
    pub(crate) fn word(&self) -> Option<Word> {
        self.entry.word_of(self.key.fingerprint())
    }

    /// Applies the change. Returns false if another thread changed the entry first, which is then
    /// read again.
    #[inline(always)]
    pub(crate) fn apply(&mut self, change: Change) -> bool {
        let found = match change {
            Change::Store(word) => self.swap(Entry::new(self.key.fingerprint(), word)),
            Change::Remove => self.swap(Entry::VACATED),
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

/// Stores the first state of a key in a slot that was never used. Returns false if another thread was faster.
fn fill(unused: &impl Slot, state: Entry) -> bool {
    // In a damaged file, the low half of an empty slot may be another number than 0.
    let seen = unused.read();
    seen.high == 0 && unused.swap(seen, state).is_ok()
}
