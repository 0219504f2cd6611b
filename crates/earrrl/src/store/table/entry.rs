//! The content of one slot of the table, in 128 bits: a fingerprint (40 bits) and a state (88
//! bits).
//!
//! The state is a [`Word`] plus 2^87, so that unsigned states sort as the words do. The topmost
//! 1/256 of the range is never a word: a state in it is a numbered *claim* of a slot that a thread
//! is about to fill. The lowest bit of a key's fingerprint is set; that of a free slot is not. A slot of
//! zeroes was never used, which `insert.rs` relies on, and a slot that is free again is *vacated*.

pub use crate::algorithm::Word;

/// A change of a client's state.
///
/// ```
/// use earrrl::internal::table::{Change, KeyHasher, Table};
///
/// let (table, hasher) = (Table::new(100)?, KeyHasher::random()?);
/// table.update(hasher.hash("alice"), || 0, |_| (Change::Store(7), ()));
/// table.update(hasher.hash("alice"), || 0, |_| (Change::Keep, ()));
/// assert_eq!(table.get(hasher.hash("alice")), Some(7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The state stays as it is; nothing is stored for an absent client.
    Keep,
    /// The state becomes this word.
    Store(Word),
    /// The client is removed.
    Remove,
}

/// The smallest storable word; a smaller word is stored as this one.
pub const MIN_WORD: Word = -(1 << 87);
/// The largest storable word; a larger word is stored as this one.
pub const MAX_WORD: Word = (1 << 87) - (1 << 80) - 1;

pub(super) const FINGERPRINT_BITS: u32 = 40;
pub(super) const FINGERPRINT_MASK: u64 = (1 << FINGERPRINT_BITS) - 1;
const TOP_BITS: u32 = 64 - FINGERPRINT_BITS;
const TOP_MASK: u64 = (1 << TOP_BITS) - 1;
const BIAS: i64 = 1 << (TOP_BITS - 1);
/// The least value of a state's top bits that marks a claim.
const CLAIM: u64 = 0xFF << (TOP_BITS - 8);

/// The two halves of a slot's content. The high half is enough to find a client's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The fingerprint, and the top 24 bits of the state.
    pub(super) high: u64,
    /// The low 64 bits of the state.
    pub(super) low: u64,
}

impl Entry {
    /// The content of a slot that was never used. No slot becomes empty again.
    pub(super) const EMPTY: Self = Self { high: 0, low: 0 };
    /// The content of a slot that was used and is free again. Like [`EMPTY`](Self::EMPTY), it has the least state,
    /// and zeros where searches look.
    pub(super) const VACATED: Self = Self {
        high: 2 << TOP_BITS,
        low: 0,
    };

    #[inline(always)]
    pub(super) fn new(fingerprint: u64, word: Word) -> Self {
        let top = (word >> 64) as i64;
        let biased = top.wrapping_add(BIAS) as u64;
        if biased >= CLAIM {
            return Self::new(fingerprint, saturate(top));
        }
        Self {
            high: (fingerprint << TOP_BITS) | biased,
            low: word as u64,
        }
    }

    /// Returns a claim of a slot. `number` must differ from that of every other claim of the same
    /// key.
    pub(super) fn claim(fingerprint: u64, number: u64) -> Self {
        Self {
            high: (fingerprint << TOP_BITS) | CLAIM,
            low: number,
        }
    }

    #[inline(always)]
    pub(super) fn word(self) -> Word {
        let top = (self.high & TOP_MASK) as i64 - BIAS;
        (Word::from(top) << 64) | Word::from(self.low)
    }

    /// Returns the entry's word, if the entry has this fingerprint and is not a claim.
    #[inline(always)]
    pub(super) fn word_of(self, fingerprint: u64) -> Option<Word> {
        let above = self.high.wrapping_sub(fingerprint << TOP_BITS);
        let top = above as i64 - BIAS;
        (above < CLAIM).then(|| (Word::from(top) << 64) | Word::from(self.low))
    }

    #[inline(always)]
    pub(super) fn fingerprint(self) -> u64 {
        self.high >> TOP_BITS
    }

    #[inline(always)]
    pub(super) fn is_claim(self) -> bool {
        self.high & TOP_MASK >= CLAIM
    }

    /// Returns true if the entry is a client's state: neither free nor claimed.
    pub(super) fn is_state(self) -> bool {
        self.fingerprint() & 1 == 1 && !self.is_claim()
    }

    #[inline(always)]
    pub(super) fn to_bits(self) -> u128 {
        (u128::from(self.high) << 64) | u128::from(self.low)
    }

    #[inline(always)]
    pub(super) fn from_bits(bits: u128) -> Self {
        Self {
            high: (bits >> 64) as u64,
            low: bits as u64,
        }
    }
}

#[cold]
fn saturate(top: i64) -> Word {
    if top < 0 { MIN_WORD } else { MAX_WORD }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_outside_the_range_saturate() {
        for (word, stored) in [
            (MAX_WORD, MAX_WORD),
            (MAX_WORD + 1, MAX_WORD),
            (Word::MAX, MAX_WORD),
            (MIN_WORD, MIN_WORD),
            (MIN_WORD - 1, MIN_WORD),
            (Word::MIN, MIN_WORD),
        ] {
            assert_eq!(Entry::new(1, word).word(), stored, "{word}");
        }
    }

    #[test]
    fn claims_and_free_slots_are_no_states() {
        let claim = Entry::claim(1, u64::MAX);
        assert!(claim.is_claim() && !claim.is_state());
        assert_eq!(claim.fingerprint(), 1);
        for free in [Entry::EMPTY, Entry::VACATED] {
            assert!(!free.is_claim() && !free.is_state());
            assert_eq!(free.word(), MIN_WORD);
            assert_eq!(free.word_of(FINGERPRINT_MASK), None);
        }
        assert!(Entry::new(FINGERPRINT_MASK, MAX_WORD).is_state());
        assert!(Entry::new(1, MIN_WORD).is_state());
    }

    proptest! {
        #[test]
        fn an_entry_keeps_what_it_is_given(
            fingerprint in 1..=FINGERPRINT_MASK,
            word in MIN_WORD..=MAX_WORD,
            other in MIN_WORD..=MAX_WORD,
        ) {
            let entry = Entry::new(fingerprint, word);
            prop_assert_eq!(entry.fingerprint(), fingerprint);
            prop_assert_eq!(entry.word(), word);
            prop_assert_eq!(entry.word_of(fingerprint), Some(word));
            prop_assert_eq!(entry.word_of(fingerprint ^ 1), None);
            prop_assert_eq!(Entry::claim(fingerprint, 1).word_of(fingerprint), None);
            prop_assert_eq!(Entry::from_bits(entry.to_bits()), entry);
            prop_assert!(!entry.is_claim());
            let below = entry.to_bits() < Entry::new(fingerprint, other).to_bits();
            prop_assert_eq!(below, word < other);
        }
    }
}
