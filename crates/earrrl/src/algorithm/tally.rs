//! Counts ordered by time, with their running sum: the state of the sliding log and the hybrid
//! sliding window.

use alloc::collections::VecDeque;

use super::ClientState;

/// The most outweighed entries that keep their own times; see [`Tally::merge_outweighed`].
const MOST_OUTWEIGHED: usize = 32;

/// A queue of (slot, cost) pairs with ascending slots. A slot is an instant in nanoseconds (sliding
/// log) or the index of a sub-window; a cost is in billionths of a unit. The sum is updated with
/// each change.
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

    /// Returns the (slot, cost) pairs, the oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (u64, u128)> + '_ {
        self.entries.iter().copied()
    }

    /// Returns the cost of all entries, in billionths of a unit.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Returns the latest slot.
    pub fn newest(&self) -> Option<u64> {
        self.entries.back().map(|(slot, _)| *slot)
    }

    /// Returns the sum of all counts, which is 0 without a tally.
    pub(super) fn sum_of(tally: Option<&Self>) -> u128 {
        tally.map_or(0, Self::sum)
    }

    /// Returns the cost of the entry of `slot`, in billionths of a unit; 0 if there is none.
    pub(super) fn at(&self, slot: u64) -> u128 {
        let place = self.entries.binary_search_by_key(&slot, |(slot, _)| *slot);
        place.map_or(0, |place| self.entries[place].1)
    }

    /// Returns the heap bytes of a tally that has grown to `entries` entries.
    pub(super) fn bytes_of(entries: usize) -> usize {
        match entries {
            0 => 0,
            _ => entries.next_power_of_two() * size_of::<(u64, u128)>(),
        }
    }

    /// Adds `cost` to `slot`, or to the newest slot if that is later, since slots must ascend.
    pub(super) fn add(&mut self, slot: u64, cost: u128) {
        self.sum = self.sum.saturating_add(cost);
        match self.entries.back_mut() {
            Some((newest, counted)) if *newest >= slot => *counted = counted.saturating_add(cost),
            _ => self.entries.push_back((slot, cost)),
        }
    }

    /// Adds `cost` at `slot`, which may be older than the newest. The cost joins an entry in the
    /// same cell of a grid of `grain`: a later entry as it is, or an earlier one, which is moved
    /// forward to `slot`.
    pub(super) fn insert(&mut self, slot: u64, cost: u128, grain: u64) {
        self.sum = self.sum.saturating_add(cost);
        let place = self.entries.partition_point(|(there, _)| *there < slot);
        let joins = |(there, _): &(u64, u128)| *there / grain == slot / grain;
        let later = self.entries.get(place).is_some_and(joins);
        let earlier = place
            .checked_sub(1)
            .filter(|before| joins(&self.entries[*before]));
        match earlier {
            Some(before) if !later => {
                self.entries[before] = (slot, self.entries[before].1.saturating_add(cost));
            }
            _ if later => self.entries[place].1 = self.entries[place].1.saturating_add(cost),
            _ => self.entries.insert(place, (slot, cost)),
        }
    }

    /// Subtracts up to `cost` from the entry of `slot`; does nothing if the tally has no such
    /// entry.
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

    /// Drops the entries before `slot`; returns `None` if none is left.
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

    /// Merges the oldest entries in cells of a grid of `grain` if more than [`MOST_OUTWEIGHED`] of
    /// them are outweighed: the entries after them sum to more than `quota`. No decision depends
    /// on an outweighed entry, unless newer ones are taken back. So it may be counted at a later
    /// time, but must not be dropped.
    pub(super) fn merge_outweighed(&mut self, quota: u128, grain: u64) {
        // Most requests are within the quota, and need not look at the entries.
        if self.sum <= quota || self.entries.len() <= MOST_OUTWEIGHED + 1 {
            return;
        }
        let oldest = self.entries.range(..=MOST_OUTWEIGHED);
        let oldest: u128 = oldest.map(|(_, cost)| cost).sum();
        if self.sum.saturating_sub(oldest) <= quota {
            return;
        }
        let outweighed = Self {
            entries: self.entries.drain(..=MOST_OUTWEIGHED).collect(),
            sum: 0,
        };
        for entry in outweighed.gathered(grain).entries.into_iter().rev() {
            self.entries.push_front(entry);
        }
    }

    /// Moves the newest entry forward to `slot` if both are in the same cell of a grid of `grain`.
    /// A cost that is then added at `slot` joins this entry.
    pub(super) fn gather(&mut self, slot: u64, grain: u64) {
        match self.entries.back_mut() {
            Some((newest, _)) if *newest < slot && *newest / grain == slot / grain => {
                *newest = slot
            }
            _ => {}
        }
    }

    /// Merges the entries of each cell of a grid of `grain` into one entry, at the latest slot of
    /// the cell.
    pub(super) fn gathered(self, grain: u64) -> Self {
        let mut gathered = Self::default();
        for (slot, cost) in self.entries {
            gathered.gather(slot, grain);
            gathered.add(slot, cost);
        }
        gathered
    }

    /// Returns the slot of the entry that now contains the cost once added to `slot`, which
    /// [`Tally::gather`] may have moved. Never the oldest entry: the entries before it were
    /// dropped, perhaps that of `slot` too.
    pub(super) fn now_at(&self, slot: u64, grain: u64) -> u64 {
        let place = self.entries.binary_search_by_key(&slot, |(slot, _)| *slot);
        let later = match place {
            Err(place @ 1..) => self.entries.get(place),
            _ => None,
        };
        later
            .map(|(later, _)| *later)
            .filter(|later| later / grain == slot / grain)
            .unwrap_or(slot)
    }

    /// Returns the nearest slot with an entry that is at most `most` away from `slot`, or `slot` if
    /// there is none.
    pub(super) fn nearest(&self, slot: u64, most: u64) -> u64 {
        let place = self.entries.partition_point(|(there, _)| *there < slot);
        let around = [place.checked_sub(1), Some(place)].into_iter().flatten();
        let slots = around.filter_map(|place| Some(self.entries.get(place)?.0));
        let near = slots.filter(|there| there.abs_diff(slot) <= most);
        near.min_by_key(|there| there.abs_diff(slot))
            .unwrap_or(slot)
    }

    /// Returns the slot that must expire, with all slots before it, for the sum to be at most
    /// `at_most`; `None` if the sum is that low already.
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
