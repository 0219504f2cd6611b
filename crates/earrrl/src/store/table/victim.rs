//! The choice of a slot for a new client: a free one, or that of a client with a low rate.

use core::cmp::Reverse;
use core::hint::select_unpredictable;

use super::entry::{Entry, FINGERPRINT_BITS, Order, Word};
use super::hash::KeyHash;
use super::raw::RawTable;
use super::slot::{Line, Slot};

/// The number of slots of a set, free or of idle clients, that are needed to store a new client in the home line.
/// The first home line is tried before the second.
///
/// With three, a table of a million live clients that fill three quarters of its slots evicts no
/// live client, neither when it is new nor after ten million other clients came and went; 86 % of
/// the clients are in their first home line (93 % of 800 000 clients). With two, nine clients are
/// evicted; with one, a hundred, and 87 % are in their first home line.
const ENOUGH: usize = 3;

/// The rank of a slot in the order of eviction: the state of its client, or 0 if the slot is free. A claim has the
/// highest, so it is evicted last.
pub(super) type Rank = u128;

/// Returns the rank of a word in an order.
pub(super) fn rank_of(word: Word) -> Rank {
    state_bits(Entry::new(1, word))
}

/// Returns the rank of an entry in an order.
#[inline(always)]
pub(super) fn rank_in(order: &impl Order, entry: Entry) -> Rank {
    let bits = state_bits(entry);
    let word = entry.word();
    let ranked = order.rank(word);
    if ranked == word || bits == 0 || entry.is_claim() {
        bits
    } else {
        rank_of(ranked)
    }
}

#[inline(always)]
fn state_bits(entry: Entry) -> u128 {
    entry.to_bits() & (u128::MAX >> FINGERPRINT_BITS)
}

/// A slot's place and its rank when it was chosen.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) place: usize,
    pub(super) rank: Rank,
}

impl<S: Slot, const LINE: usize, const LINES: usize> RawTable<S, LINE, LINES> {
    /// Returns the slot to give to a new client: a free one; if there is none, that of an idle client; and if no
    /// client is idle, the lowest of both sets. Of free and of idle ones, it is one in a home line if enough of the
    /// set are, and otherwise one of the set with more, which fills both evenly. `idle` is the greatest rank of an
    /// idle client.
    pub(super) fn victim(&self, key: KeyHash, order: &impl Order, idle: Rank) -> Candidate {
        let homes = self.lines.homes(key);
        let has_free = homes.map(|home| S::matches_in(self.lines.set(home), 0) != 0);
        let idle = if has_free == [false; 2] { idle } else { 0 };
        let mut lowest = [Candidate {
            place: 0,
            rank: Rank::MAX,
        }; 2];
        for (lowest, home) in lowest.iter_mut().zip(homes) {
            *lowest = self.lower(*lowest, home, order);
            let set = self.lines.set(home);
            if lowest.rank <= idle && idle_in(set, order, idle, ENOUGH) == ENOUGH {
                return *lowest;
            }
        }
        let [first, second] = [0, 1].map(|nth| {
            let home = homes[nth];
            let others = (1..LINES).map(|other| home ^ other);
            let lower = |lowest, line| self.lower(lowest, line, order);
            let lowest = others.fold(lowest[nth], lower);
            let idle = (lowest.rank <= idle)
                .then(|| idle_in(self.lines.set(home), order, idle, LINE * LINES));
            (lowest, (idle, Reverse(lowest.rank)))
        });
        if second.1 > first.1 {
            second.0
        } else {
            first.0
        }
    }

    /// Returns the slot with the lowest rank of a line, or `lowest` if none is lower. It has no branches, since nobody
    /// can predict which slot that is.
    #[inline(always)]
    fn lower(&self, mut lowest: Candidate, line: usize, order: &impl Order) -> Candidate {
        for (place, slot) in (line * LINE..).zip(self.lines.line(line)) {
            let rank = rank_in(order, slot.read());
            let is_lower = rank < lowest.rank;
            lowest.rank = select_unpredictable(is_lower, rank, lowest.rank);
            lowest.place = select_unpredictable(is_lower, place, lowest.place);
        }
        lowest
    }
}

/// Returns the number of slots in some lines that are free or whose clients are idle; `most` once there are that
/// many.
#[inline(always)]
fn idle_in<S: Slot, const LINE: usize>(
    lines: &[Line<S, LINE>],
    order: &impl Order,
    idle: Rank,
    most: usize,
) -> usize {
    let mut found = 0;
    for line in lines {
        let ranks = line.0.iter().map(|slot| rank_in(order, slot.read()));
        found += ranks.filter(|rank| *rank <= idle).count();
        if found >= most {
            return most;
        }
    }
    found
}
