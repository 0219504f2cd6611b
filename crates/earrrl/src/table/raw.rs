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
        mut decide: impl FnMut(Option<Word>) -> (Change, R),
    ) -> R {
        loop {
            let answer = match self.find(key) {
                Some((slot, seen)) => update_slot(slot, seen, &mut decide),
                None => self.update_absent(key, idle, &mut decide),
            };
            if let Some(answer) = answer {
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
        decide: &mut impl FnMut(Option<Word>) -> (Change, R),
    ) -> Option<R> {
        let (change, answer) = decide(None);
        match change {
            Change::Store(word) => self.insert(key, word, idle).then_some(answer),
            Change::Keep | Change::Remove => Some(answer),
        }
    }

    /// The key's slot and what was seen there, perhaps half-changed.
    #[inline(always)]
    fn find(&self, key: KeyHash) -> Option<(&S, Entry)> {
        let home = self.lines.home(key);
        let matches = matches(home, key.fingerprint());
        if matches == 0 {
            return self.find_further(key);
        }
        committed(home, matches, key)
    }

    /// The same in the lines after the home line.
    #[inline(never)]
    fn find_further(&self, key: KeyHash) -> Option<(&S, Entry)> {
        let wanted = key.fingerprint();
        for line in self.lines.candidate_lines(key).skip(1) {
            let line = self.lines.line(line);
            let matches = matches(line, wanted);
            if matches != 0 {
                return committed(line, matches, key);
            }
        }
        None
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

/// Which slots of a line hold the fingerprint, as a bit set: where in its line a key lies can't be
/// predicted, so this has no branches.
#[inline(always)]
fn matches<S: Slot, const LINE: usize>(line: &[S; LINE], wanted: u64) -> u32 {
    let mut found = 0;
    for (nth, slot) in line.iter().enumerate() {
        found |= u32::from(fingerprint(slot.high()) == wanted) << nth;
    }
    found
}

/// The first match, unless it is a claim or has become another key's meanwhile.
#[inline(always)]
fn committed<S: Slot, const LINE: usize>(
    line: &[S; LINE],
    matches: u32,
    key: KeyHash,
) -> Option<(&S, Entry)> {
    let slot = &line[matches.trailing_zeros() as usize % LINE];
    let seen = Entry { high: slot.high(), low: slot.low() };
    (seen.fingerprint() == key.fingerprint() && !seen.is_claim()).then_some((slot, seen))
}

/// Decides on what was seen until that is still there, or the slot is no longer the key's.
#[inline(always)]
fn update_slot<S: Slot, R>(
    slot: &S,
    mut seen: Entry,
    decide: &mut impl FnMut(Option<Word>) -> (Change, R),
) -> Option<R> {
    loop {
        let (change, answer) = decide(Some(seen.word()));
        let Err(found) = apply(slot, seen, change) else { return Some(answer) };
        if found.fingerprint() != seen.fingerprint() || found.is_claim() {
            return None;
        }
        seen = found;
    }
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
