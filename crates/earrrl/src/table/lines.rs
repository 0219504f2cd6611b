//! Where slots lie: `LINE` of them in a cache line, `LINES` lines in a set, sets in one flat array.
//!
//! A key has two candidate sets and, in each, a home line where its search begins.

use super::available;
use super::hash::KeyHash;
use super::slot::{Slot, prefer_huge_pages};

#[repr(align(64))]
struct Line<S, const LINE: usize>([S; LINE]);

pub(super) struct Lines<S, const LINE: usize, const LINES: usize> {
    lines: Vec<Line<S, LINE>>,
}

impl<S: Slot, const LINE: usize, const LINES: usize> Lines<S, LINE, LINES> {
    /// Empty slots, all of them written once: what memory this will ever use, it uses now.
    pub(super) fn new(sets: usize) -> Option<Self> {
        let count = sets.checked_mul(LINES)?;
        let bytes = count.checked_mul(size_of::<Line<S, LINE>>())?;
        if !available::fits(bytes) {
            return None;
        }
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).ok()?;
        prefer_huge_pages(lines.spare_capacity_mut());
        lines.resize_with(count, || Line(core::array::from_fn(|_| S::vacant())));
        Some(Self { lines })
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> usize {
        self.lines.len() * LINE
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice())
    }

    /// A slot by its place in the array.
    #[inline]
    pub(super) fn slot(&self, index: usize) -> &S {
        &self.lines[index / LINE].0[index % LINE]
    }

    /// The slots of a line.
    #[inline(always)]
    pub(super) fn line(&self, line: usize) -> &[S; LINE] {
        &self.lines[line].0
    }

    /// The line where the key most likely is.
    #[inline(always)]
    pub(super) fn home(&self, key: KeyHash) -> &[S; LINE] {
        self.line(key.first_line(self.lines.len()))
    }

    /// The lines of both sets in the order of the search, the home line first.
    #[inline(always)]
    pub(super) fn candidate_lines(
        &self,
        key: KeyHash,
    ) -> impl Iterator<Item = usize> + use<S, LINE, LINES> {
        // `LINES` is a power of two, so exclusive or walks over the lines of one set.
        let homes = [key.first_line(self.lines.len()), self.second_home(key)];
        (0..2 * LINES).map(move |nth| homes[nth / LINES] ^ (nth % LINES))
    }

    /// The places of their slots.
    #[inline(always)]
    pub(super) fn candidates(
        &self,
        key: KeyHash,
    ) -> impl Iterator<Item = usize> + use<S, LINE, LINES> {
        self.candidate_lines(key).flat_map(|line| line * LINE..(line + 1) * LINE)
    }

    /// The home line in the second set, which is never the first set.
    #[inline(always)]
    fn second_home(&self, key: KeyHash) -> usize {
        let count = self.lines.len();
        let line = key.second_line(count);
        if line / LINES != key.first_line(count) / LINES {
            return line;
        }
        let next = line + LINES;
        if next < count { next } else { next - count }
    }
}
