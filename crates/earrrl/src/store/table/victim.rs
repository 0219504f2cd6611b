//! The choice of a slot for a new client: an empty one, or that of a client with a low rate.

use super::entry::{Entry, FINGERPRINT_BITS, Word};

/// The order in which a full table evicts its clients.
///
/// A closure that returns the greatest word of an idle client is the order by words.
pub trait Order {
    /// Returns the greatest rank of a client that is as good as new.
    fn idle(&self) -> Word;

    /// Returns the rank of a client's state. The client with the smallest rank is evicted first.
    #[inline(always)]
    fn rank(&self, word: Word) -> Word {
        word
    }
}

impl<F: Fn() -> Word> Order for F {
    #[inline(always)]
    fn idle(&self) -> Word {
        self()
    }
}

/// The number of free slots in a home line's set that are needed to store a new client in that
/// line. The first home line is tried before the second.
///
/// With three, a table of a million live clients that fill three quarters of its slots evicts no
/// live client, neither when it is new nor after ten million other clients came and went; 86 % of
/// the clients are in their first home line (93 % of 800 000 clients). With two, nine clients are
/// evicted; with one, a hundred, and 87 % are in their first home line.
pub(super) const ENOUGH: usize = 3;

/// The rank of a slot in the order of eviction: the state of its client, or 0 if the slot is free.
pub(super) type Rank = u128;

/// Returns the rank of a word or a claim. Claims have the highest rank, so they are evicted last.
pub(super) fn rank(entry: Entry) -> Rank {
    entry.to_bits() & (Rank::MAX >> FINGERPRINT_BITS)
}

/// Returns the rank of a word in an order.
pub(super) fn rank_of(word: Word) -> Rank {
    rank(Entry::new(1, word))
}

/// Returns the rank of an entry in an order; 0 if the entry is empty.
#[inline(always)]
pub(super) fn rank_in(order: &impl Order, entry: Entry) -> Rank {
    if entry == Entry::EMPTY || entry.is_claim() {
        return rank(entry);
    }
    let ranked = order.rank(entry.word());
    if ranked == entry.word() {
        rank(entry)
    } else {
        rank_of(ranked)
    }
}

/// A slot's place, the entry that was read in it, and that entry's rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) place: usize,
    pub(super) entry: Entry,
    pub(super) rank: Rank,
}

/// Returns the slot to give to a new client, out of its two sets of slots, each with its `line`
/// home slots first.
///
/// An empty slot is preferred; if there is none, that of an idle client; if there is none, that of
/// a client with a lower rate than the new one's; and otherwise the slot with the lowest rank.
pub(super) fn victim(
    sets: [&[Candidate]; 2],
    line: usize,
    newcomer: Rank,
    idle: Rank,
) -> Option<Candidate> {
    let at_home = |bar| {
        sets.into_iter()
            .find_map(|set| free_at_home(set, line, bar))
    };
    [0, idle]
        .into_iter()
        .find_map(|bar| at_home(bar).or_else(|| freest(sets, bar)))
        .or_else(|| freest(sets, newcomer.saturating_sub(1)))
        .or_else(|| lowest(sets.into_iter().flatten()))
}

/// Returns the slot of the home line with the lowest rank, if that rank is at most `bar` and enough
/// slots of the set have such a rank.
fn free_at_home(set: &[Candidate], line: usize, bar: Rank) -> Option<Candidate> {
    let home = lowest(set.get(..line)?).filter(|slot| slot.rank <= bar)?;
    (free(set, bar) >= ENOUGH).then_some(home)
}

/// Returns the number of slots whose rank is at most `bar`.
fn free(slots: &[Candidate], bar: Rank) -> usize {
    slots.iter().filter(|slot| slot.rank <= bar).count()
}

/// Returns the slot with the lowest rank on the side where more slots have a rank of at most `bar`;
/// `None` if no slot has. Choosing the emptier of two sides fills both evenly.
fn freest(sides: [&[Candidate]; 2], bar: Rank) -> Option<Candidate> {
    let [first, second] = sides.map(|side| free(side, bar));
    lowest(sides[usize::from(second > first)]).filter(|slot| slot.rank <= bar)
}

fn lowest<'a>(slots: impl IntoIterator<Item = &'a Candidate>) -> Option<Candidate> {
    slots.into_iter().min_by_key(|slot| slot.rank).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWCOMER: i128 = 100;
    const IDLE: i128 = 10;
    const EMPTY: i128 = i128::MIN;

    /// Slots of one word, but for some; the first two of eight are the home line.
    fn set(base: usize, word: i128, but: &[(usize, i128)]) -> Vec<Candidate> {
        let slot = |nth| {
            let word = but
                .iter()
                .find(|(place, _)| *place == nth)
                .map_or(word, |(_, word)| *word);
            let entry = if word == EMPTY {
                Entry::EMPTY
            } else {
                Entry::new(7, word)
            };
            Candidate {
                place: base + nth,
                entry,
                rank: rank(entry),
            }
        };
        (0..8).map(slot).collect()
    }

    fn place(first: (i128, &[(usize, i128)]), second: (i128, &[(usize, i128)])) -> usize {
        let first = set(0, first.0, first.1);
        let second = set(8, second.0, second.1);
        let rank = |word| rank(Entry::new(7, word));
        victim([&first, &second], 2, rank(NEWCOMER), rank(IDLE))
            .unwrap()
            .place
    }

    #[test]
    fn empty_slots_go_first() {
        let full = [(0, 500), (1, 500)];
        assert_eq!(place((EMPTY, &[]), (EMPTY, &[])), 0, "in the first home");
        assert_eq!(
            place((EMPTY, &full[..1]), (EMPTY, &[])),
            1,
            "whichever is the emptier"
        );
        assert_eq!(
            place((EMPTY, &full), (EMPTY, &[])),
            8,
            "in the second when that is full"
        );
        assert_eq!(
            place((EMPTY, &full), (EMPTY, &full)),
            2,
            "near the homes when both are"
        );
        assert_eq!(
            place((9, &[(5, EMPTY)]), (9, &[])),
            5,
            "even before an idle one at home"
        );
        assert_eq!(
            place((9, &[]), (900, &[(7, EMPTY)])),
            15,
            "even in a set of offenders"
        );
        let three = [(0, EMPTY), (4, EMPTY), (5, EMPTY)];
        let one = [(0, EMPTY)];
        assert_eq!(
            place((9, &three), (EMPTY, &[])),
            0,
            "at home rather than in the emptier set"
        );
        assert_eq!(
            place((9, &three[..2]), (9, &three)),
            8,
            "but not when few are left"
        );
        assert_eq!(place((9, &three[1..]), (9, &one)), 4, "in either set");
    }

    #[test]
    fn then_idle_ones() {
        assert_eq!(
            place((90, &[(3, 1)]), (90, &[(5, 2), (6, 3)])),
            13,
            "where there are more"
        );
        assert_eq!(place((9, &[]), (9, &[])), 0, "at home, if there are enough");
        assert_eq!(
            place((500, &[(1, 8), (6, -90)]), (500, &[])),
            6,
            "else the lowest"
        );
    }

    #[test]
    fn then_lower_ones() {
        assert_eq!(
            place((500, &[(0, 50)]), (500, &[(5, 60), (6, 99)])),
            13,
            "where there are more"
        );
        assert_eq!(
            place((500, &[(1, 12), (6, 11)]), (500, &[])),
            6,
            "the lowest"
        );
    }

    #[test]
    fn at_last_the_lowest_of_all() {
        assert_eq!(place((500, &[(0, 400)]), (500, &[(5, 300)])), 13);
        let claim = Entry::claim(7, 0);
        assert!(rank(claim) > rank(Entry::new(7, super::super::entry::MAX_WORD)));
    }
}
