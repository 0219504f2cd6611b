//! Which slot a newcomer gets: an empty one, else that of a client with a low rate.

use super::entry::{Entry, FINGERPRINT_BITS};

/// A newcomer goes home while this many slots of its two sets are free, else where more are free. Of a
/// million live clients that fill three quarters of the slots, 25 lose theirs after ten million
/// dead ones went through, and 87 % of look-ups end at home (99 % in a table filled once). Two
/// would lose 40, six would lose 7 and find 81 % at home.
const ENOUGH: usize = 4;

/// What a slot is worth, in the order of eviction: the state, 0 for slots that anybody may take.
pub(super) type Rank = u128;

/// The rank of a slot that holds a word or a claim; claims are the last to be victims.
pub(super) fn rank(entry: Entry) -> Rank {
    entry.to_bits() & (Rank::MAX >> FINGERPRINT_BITS)
}

/// A slot's place, what was seen in it, and what that is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) place: usize,
    pub(super) entry: Entry,
    pub(super) rank: Rank,
}

/// The slot to give up, of a newcomer's two sets of slots, each with its `line` home slots first.
///
/// Free are the empty slots; without any, those of idle clients; without any, those of clients
/// with a lower rate than the newcomer's; without any, the lowest of all goes.
pub(super) fn victim(sets: [&[Seen]; 2], line: usize, newcomer: Rank, idle: Rank) -> Option<Seen> {
    let homes = sets.map(|set| set.get(..line).unwrap_or(set));
    let at_home = |bar| free(sets, bar).into_iter().sum::<usize>() >= ENOUGH;
    let free = [0, idle].into_iter().find_map(|bar| {
        let home = at_home(bar).then(|| freest(homes, bar)).flatten();
        home.or_else(|| freest(sets, bar))
    });
    free.or_else(|| freest(sets, newcomer.saturating_sub(1)))
        .or_else(|| lowest(sets.into_iter().flatten()))
}

/// How many slots of each side are at or below the bar.
fn free(sides: [&[Seen]; 2], bar: Rank) -> [usize; 2] {
    sides.map(|side| side.iter().filter(|slot| slot.rank <= bar).count())
}

/// The lowest slot of the side where more of them are at or below the bar, if any are: to choose
/// the emptier of two fills both evenly.
fn freest(sides: [&[Seen]; 2], bar: Rank) -> Option<Seen> {
    let [first, second] = free(sides, bar);
    lowest(sides[usize::from(second > first)]).filter(|slot| slot.rank <= bar)
}

fn lowest<'a>(slots: impl IntoIterator<Item = &'a Seen>) -> Option<Seen> {
    slots.into_iter().min_by_key(|slot| slot.rank).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWCOMER: i128 = 100;
    const IDLE: i128 = 10;
    const EMPTY: i128 = i128::MIN;

    /// Slots of one word, but for some; the first two of eight are the home line.
    fn set(base: usize, word: i128, but: &[(usize, i128)]) -> Vec<Seen> {
        let slot = |nth| {
            let word = but.iter().find(|(place, _)| *place == nth).map_or(word, |(_, word)| *word);
            let entry = if word == EMPTY { Entry::EMPTY } else { Entry::new(7, word) };
            Seen { place: base + nth, entry, rank: rank(entry) }
        };
        (0..8).map(slot).collect()
    }

    fn place(first: (i128, &[(usize, i128)]), second: (i128, &[(usize, i128)])) -> usize {
        let (first, second) = (set(0, first.0, first.1), set(8, second.0, second.1));
        let rank = |word| rank(Entry::new(7, word));
        victim([&first, &second], 2, rank(NEWCOMER), rank(IDLE)).unwrap().place
    }

    #[test]
    fn empty_slots_go_first() {
        assert_eq!(place((EMPTY, &[]), (EMPTY, &[])), 0, "at home");
        assert_eq!(place((EMPTY, &[(0, 500)]), (EMPTY, &[])), 8, "in the emptier home");
        assert_eq!(place((9, &[(5, EMPTY)]), (9, &[])), 5, "even before an idle one at home");
        assert_eq!(place((9, &[]), (900, &[(7, EMPTY)])), 15, "even in a set of offenders");
        let (three, one) = ([(3, EMPTY), (4, EMPTY), (5, EMPTY)], [(0, EMPTY)]);
        assert_eq!(place((9, &three), (9, &one)), 8, "at home rather than in the emptier set");
        assert_eq!(place((9, &three[1..]), (9, &one)), 4, "but not when few are left");
    }

    #[test]
    fn then_idle_ones() {
        assert_eq!(place((90, &[(3, 1)]), (90, &[(5, 2), (6, 3)])), 13, "where there are more");
        assert_eq!(place((9, &[]), (9, &[])), 0, "at home, if there are enough");
        assert_eq!(place((500, &[(1, 8), (6, -90)]), (500, &[])), 6, "else the lowest");
    }

    #[test]
    fn then_lower_ones() {
        assert_eq!(
            place((500, &[(0, 50)]), (500, &[(5, 60), (6, 99)])),
            13,
            "where there are more"
        );
        assert_eq!(place((500, &[(1, 12), (6, 11)]), (500, &[])), 6, "the lowest");
    }

    #[test]
    fn at_last_the_lowest_of_all() {
        assert_eq!(place((500, &[(0, 400)]), (500, &[(5, 300)])), 13);
        let claim = Entry::claim(7, 0);
        assert!(rank(claim) > rank(Entry::new(7, super::super::entry::MAX_WORD)));
    }
}
