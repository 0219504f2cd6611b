//! The layout of slots: `LINE` slots in a cache line, `LINES` lines in a set, and all sets in one
//! flat array.
//!
//! A key has two candidate sets. In each set, it has a home line where a search for the key begins.

use super::available;
use super::hash::KeyHash;
use super::region::Region;
use super::slot::{Line, Slot, prefer_huge_pages};

pub(super) struct Lines<S, const LINE: usize, const LINES: usize> {
    lines: Region<Line<S, LINE>>,
}

/// Allocates memory for `count` items, in huge pages if the system has them. Returns `None` if
/// there is not enough memory.
fn room_for<T>(count: usize) -> Option<Vec<T>> {
    if !available::fits(count.checked_mul(size_of::<T>())?) {
        return None;
    }
    let mut memory = Vec::new();
    memory.try_reserve_exact(count).ok()?;
    prefer_huge_pages(memory.spare_capacity_mut());
    Some(memory)
}

impl<S: Slot, const LINE: usize, const LINES: usize> Lines<S, LINE, LINES> {
    /// Returns empty slots for a number of sets. All of them are written once, so that the system
    /// provides all of their memory now.
    pub(super) fn new(sets: usize) -> Option<Self> {
        let count = sets.checked_mul(LINES)?;
        let mut lines = room_for(count)?;
        lines.resize_with(count, || Line(core::array::from_fn(|_| S::vacant())));
        Some(Self::over(Region::allocated(lines)))
    }

    /// Returns the slots in a region of whole sets.
    pub(super) fn over(lines: Region<Line<S, LINE>>) -> Self {
        Self { lines }
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.lines.len() * LINE
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Returns the slot at an index of the array.
    #[inline]
    pub(super) fn slot(&self, index: usize) -> &S {
        &self.lines[index / LINE].0[index % LINE]
    }

    /// Returns the slots of a cache line.
    #[inline(always)]
    pub(super) fn line(&self, line: usize) -> &[S; LINE] {
        &self.lines[line].0
    }

    /// Returns the home lines of the key in its two sets. The two sets are never the same.
    #[inline(always)]
    pub(super) fn homes(&self, key: KeyHash) -> [usize; 2] {
        let count = self.lines.len();
        let first = key.first_line(count);
        let second = key.second_line(count);
        // `LINES` is a power of two, and each set begins at a multiple of it.
        if first ^ second >= LINES {
            return [first, second];
        }
        [first, self.next_set(second)]
    }

    #[cold]
    fn next_set(&self, line: usize) -> usize {
        (line + LINES) % self.lines.len()
    }

    /// Returns the lines of the set of a home line.
    #[inline(always)]
    pub(super) fn set(&self, home: usize) -> &[Line<S, LINE>; LINES] {
        let (sets, _) = self.lines.as_chunks();
        &sets[home / LINES]
    }

    /// Returns the indices of the slots in both sets, or in the home lines alone, that may hold the key, those of the
    /// first set first. Like [`Slot::matches`], it may return too many slots but misses none.
    #[inline(always)]
    pub(super) fn matches(
        &self,
        key: KeyHash,
        only_at_home: bool,
    ) -> impl Iterator<Item = usize> + use<S, LINE, LINES> {
        let homes = self.homes(key);
        let mut found = 0;
        for (nth, home) in homes.into_iter().enumerate() {
            let set = self.set(home);
            let line = home % LINES;
            let matches = if only_at_home {
                S::matches(&set[line].0, key.fingerprint()) << (LINE * line)
            } else {
                S::matches_in(set, key.fingerprint())
            };
            found |= u64::from(matches) << (LINE * LINES * nth);
        }
        core::iter::from_fn(move || {
            let nth = (found != 0).then(|| found.trailing_zeros() as usize)?;
            found &= found - 1;
            let home = homes[nth / (LINE * LINES)];
            Some(home / LINES * LINES * LINE + nth % (LINE * LINES))
        })
    }
}
