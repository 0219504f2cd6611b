//! The choice of a slot for a new client: a free one, or that of a client with a low rate.

use core::cmp::Reverse;

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

/// A slot's place, the entry that was read in it, and that entry's rank.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) place: usize,
    pub(super) entry: Entry,
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
        for home in homes {
            let set = self.lines.set(home);
            let lowest = lowest(core::slice::from_ref(&set[home % LINES]), home, order);
            if lowest.rank <= idle && idle_in(set, order, idle, ENOUGH) == ENOUGH {
                return lowest;
            }
        }
        let [first, second] = homes.map(|home| {
            let set = self.lines.set(home);
            let lowest = lowest(set, home / LINES * LINES, order);
            let has_idle = lowest.rank <= idle;
            let idle = has_idle.then(|| idle_in(set, order, idle, LINE * LINES));
            (lowest, (idle, Reverse(lowest.rank)))
        });
        if second.1 > first.1 {
            second.0
        } else {
            first.0
        }
    }
}

/// Returns the slot with the lowest rank in some lines, the first of which is `line`.
#[inline(always)]
fn lowest<S: Slot, const LINE: usize>(
    lines: &[Line<S, LINE>],
    line: usize,
    order: &impl Order,
) -> Candidate {
    let mut lowest = Candidate {
        place: 0,
        entry: Entry::EMPTY,
        rank: Rank::MAX,
    };
    for (nth, slots) in lines.iter().enumerate() {
        for (at, slot) in slots.0.iter().enumerate() {
            let entry = slot.read();
            let rank = rank_in(order, entry);
            if rank < lowest.rank {
                let place = (line + nth) * LINE + at;
                lowest = Candidate { place, entry, rank };
            }
        }
    }
    lowest
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
