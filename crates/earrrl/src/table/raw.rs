//! The table over any kind of slot: finding a key, changing its state, walking over all of them.

use std::boxed::Box;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::Change;
use super::entry::{Entry, Word, fingerprint};
use super::hash::KeyHash;
use super::lines::Lines;
use super::slot::{Slot, prefetch};

/// Inserts count here; spread, so that cores that insert don't share a cache line.
#[repr(align(64))]
#[derive(Default)]
pub(super) struct Shard {
    /// Claims made so far, the number of the next.
    pub(super) claims: AtomicU64,
    /// Clients that were not idle and had to go.
    pub(super) displaced: AtomicU64,
}

const SHARDS: usize = 16;

pub(super) struct RawTable<S, const LINE: usize, const LINES: usize> {
    pub(super) lines: Lines<S, LINE, LINES>,
    shards: Box<[Shard; SHARDS]>,
}

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    pub(super) fn new(sets: usize) -> Option<Self> {
        Some(Self { lines: Lines::new(sets)?, shards: Box::default() })
    }

    pub(super) fn shard(&self, fingerprint: u64) -> &Shard {
        &self.shards[fingerprint as usize % SHARDS]
    }

    pub(super) fn displaced(&self) -> u64 {
        self.shards.iter().map(|shard| shard.displaced.load(Relaxed)).sum()
    }

    /// See [`Table::update`](super::Table::update).
    #[inline(always)]
    pub(super) fn update<R>(
        &self,
        key: KeyHash,
        idle: Word,
        decide: impl Fn(Option<Word>) -> (Change, R) + Copy,
    ) -> R {
        loop {
            if let Some(answer) = self.find(key).and_then(|slot| update_slot(slot, key, decide)) {
                return answer;
            }
            if let Some(answer) = self.update_absent(key, idle, decide) {
                return answer;
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn update_absent<R>(
        &self,
        key: KeyHash,
        idle: Word,
        decide: impl Fn(Option<Word>) -> (Change, R),
    ) -> Option<R> {
        let (change, answer) = decide(None);
        match change {
            Change::Store(word) => self.insert(key, word, idle).then_some(answer),
            Change::Keep | Change::Remove => Some(answer),
        }
    }

    /// A slot where the key is, or is being claimed, or was a moment ago.
    #[inline(always)]
    fn find(&self, key: KeyHash) -> Option<&S> {
        let home = self.lines.home(key);
        let matches = S::matches(home, key.fingerprint());
        if matches == 0 {
            return self.find_from(key, 1);
        }
        let slot = &home[matches.trailing_zeros() as usize % LINE];
        if holds(slot, key) { Some(slot) } else { self.find_from(key, 0) }
    }

    /// The same, from a line on in the order of the search.
    #[inline(never)]
    fn find_from(&self, key: KeyHash, first: usize) -> Option<&S> {
        let lines = self.lines.candidate_lines(key).skip(first).map(|line| self.lines.line(line));
        lines
            .filter(|line| S::matches(line, key.fingerprint()) != 0)
            .find_map(|line| line.iter().find(|slot| holds(*slot, key)))
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, key: KeyHash) {
        prefetch(self.lines.home(key));
    }

    /// Replaces every committed entry.
    pub(super) fn convert(&self, mut convert: impl FnMut(Entry) -> Entry) {
        for place in 0..self.lines.slots() {
            let slot = self.lines.slot(place);
            let mut entry = slot.load();
            while entry != Entry::EMPTY && !entry.is_claim() {
                match slot.swap(entry, convert(entry)) {
                    Ok(()) => break,
                    Err(found) => entry = found,
                }
            }
        }
    }

    /// The committed entries among the slots of some places.
    pub(super) fn entries(
        &self,
        places: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = Entry> {
        places
            .map(|place| self.lines.slot(place).load())
            .filter(|entry| *entry != Entry::EMPTY && !entry.is_claim())
    }
}

#[inline(always)]
fn holds<S: Slot>(slot: &S, key: KeyHash) -> bool {
    fingerprint(slot.high()) == key.fingerprint()
}

/// Decides on what is there until that is still there afterwards. None if it is a claim, or no
/// longer the key's.
#[inline(always)]
fn update_slot<S: Slot, R>(
    slot: &S,
    key: KeyHash,
    decide: impl Fn(Option<Word>) -> (Change, R),
) -> Option<R> {
    let high = slot.high();
    // Perhaps a pair that never was: the swap tells.
    let mut seen = Entry { high, low: slot.low() };
    while seen.fingerprint() == key.fingerprint() && !seen.is_claim() {
        let (change, answer) = decide(Some(seen.word()));
        match apply(slot, seen, change) {
            Ok(()) => return Some(answer),
            Err(found) => seen = found,
        }
    }
    None
}

#[inline(always)]
fn apply<S: Slot>(slot: &S, seen: Entry, change: Change) -> Result<(), Entry> {
    match change {
        Change::Store(word) => slot.swap(seen, Entry::new(seen.fingerprint(), word)),
        Change::Remove => slot.swap(seen, Entry::EMPTY),
        Change::Keep => match slot.load() {
            found if found == seen => Ok(()),
            found => Err(found),
        },
    }
}
