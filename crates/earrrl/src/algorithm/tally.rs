//! Counts by time, the oldest first, with their running sum: what logs and sub-windows keep.

use alloc::collections::VecDeque;

use super::ClientState;

/// A queue of (slot, cost) with ascending slots. A slot is an instant in nanoseconds (log) or the
/// index of a sub-window; costs are billionths of a unit. The sum is kept, not recounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    entries: VecDeque<(u64, u128)>,
    sum: u128,
}

impl Tally {
    /// Returns a tally of entries in ascending order of slots.
    pub fn from_entries(entries: impl IntoIterator<Item = (u64, u128)>) -> Self {
        let mut tally = Self::default();
        for (slot, cost) in entries {
            tally.add(slot, cost);
        }
        tally
    }

    /// Its entries, the oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (u64, u128)> + '_ {
        self.entries.iter().copied()
    }

    /// Returns the cost of all entries.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Returns the latest slot.
    pub fn newest(&self) -> Option<u64> {
        self.entries.back().map(|(slot, _)| *slot)
    }

    /// Bytes on the heap of a tally that has grown to `entries` entries.
    pub(super) fn bytes_of(entries: usize) -> usize {
        match entries {
            0 => 0,
            _ => entries.next_power_of_two() * size_of::<(u64, u128)>(),
        }
    }

    /// Adds to `slot`, or to the newest if that is later: time does not go back.
    pub(super) fn add(&mut self, slot: u64, cost: u128) {
        self.sum = self.sum.saturating_add(cost);
        match self.entries.back_mut() {
            Some((newest, counted)) if *newest >= slot => *counted = counted.saturating_add(cost),
            _ => self.entries.push_back((slot, cost)),
        }
    }

    /// Takes up to `cost` out of `slot` again; nothing if that is gone.
    pub(super) fn subtract(&mut self, slot: u64, cost: u128) {
        let Ok(place) = self.entries.binary_search_by_key(&slot, |(slot, _)| *slot) else {
            return;
        };
        let counted = self.entries[place].1;
        let taken = cost.min(counted);
        self.sum = self.sum.saturating_sub(taken);
        if taken == counted {
            self.entries.remove(place);
        } else {
            self.entries[place].1 -= taken;
        }
    }

    /// Drops the entries before `slot`; `None` when nothing is left.
    pub(super) fn since(mut self, slot: u64) -> Option<Self> {
        while let Some((oldest, cost)) = self.entries.front().copied() {
            if oldest >= slot {
                break;
            }
            self.entries.pop_front();
            self.sum = self.sum.saturating_sub(cost);
        }
        (!self.entries.is_empty()).then_some(self)
    }

    /// Drops the oldest while those after it sum to more than `quota` alone.
    pub(super) fn drop_outweighed(&mut self, quota: u128) {
        while let Some((_, oldest)) = self.entries.front().copied() {
            let newer = self.sum.saturating_sub(oldest);
            if newer <= quota {
                break;
            }
            self.entries.pop_front();
            self.sum = newer;
        }
    }

    /// Moves the newest entry to `slot`, where a grid of `grain` has both in one cell: what is added
    /// there next is then part of it.
    pub(super) fn gather(&mut self, slot: u64, grain: u64) {
        match self.entries.back_mut() {
            Some((newest, _)) if *newest < slot && *newest / grain == slot / grain => {
                *newest = slot
            }
            _ => {}
        }
    }

    /// Its entries, one a cell of a grid of `grain`, at the latest slot of each.
    pub(super) fn gathered(self, grain: u64) -> Self {
        let mut gathered = Self::default();
        for (slot, cost) in self.entries {
            gathered.gather(slot, grain);
            gathered.add(slot, cost);
        }
        gathered
    }

    /// Returns the slot of the entry that has what was added to `slot`, where [`Tally::gather`] may have moved
    /// it. The oldest entry is not named: what was before it is gone, perhaps that of `slot` too.
    pub(super) fn now_at(&self, slot: u64, grain: u64) -> u64 {
        let place = self.entries.binary_search_by_key(&slot, |(slot, _)| *slot);
        let later = match place {
            Err(place @ 1..) => self.entries.get(place),
            _ => None,
        };
        later.map(|(later, _)| *later).filter(|later| later / grain == slot / grain).unwrap_or(slot)
    }

    /// Returns the slot of an entry that is no farther than `most` from this one; itself where there is none.
    pub(super) fn nearest(&self, slot: u64, most: u64) -> u64 {
        let place = self.entries.partition_point(|(there, _)| *there < slot);
        let around = [place.checked_sub(1), Some(place)].into_iter().flatten();
        let slots = around.filter_map(|place| Some(self.entries.get(place)?.0));
        let near = slots.filter(|there| there.abs_diff(slot) <= most);
        near.min_by_key(|there| there.abs_diff(slot)).unwrap_or(slot)
    }

    /// Returns the slot whose leaving, with all before it, brings the sum to `at_most`; none if it is there.
    pub(super) fn slot_to_leave(&self, at_most: u128) -> Option<u64> {
        let mut left = self.sum;
        for (slot, cost) in &self.entries {
            if left <= at_most {
                return None;
            }
            left = left.saturating_sub(*cost);
            if left <= at_most {
                return Some(*slot);
            }
        }
        None
    }
}

impl ClientState for Tally {
    fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(u64, u128)>()
    }
}
