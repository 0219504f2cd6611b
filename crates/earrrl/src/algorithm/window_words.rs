//! The words of windows: a window's number and a count, in 88 bits.
//!
//! A window of `w` ns has 2^23·w words, and the windows' words follow each other: the words of the
//! window that begins `t` ns after the epoch begin at 2^23·t. So every window of the 584 years that a
//! clock can show has its words, and a later window has greater ones. With counts in billionths of a
//! unit, they are enough for 2^23 units per second of the window.
//!
//! The period of a calendar with the number `n` has the 2^70 words from n·2^70, which are enough for 10^12 units.
//! They do not depend on the instant at which it begins, which a later version of a time zone may move.
//!
//! A window that begins with a request in the millisecond `n` has the 2^43 words from n·2^43: 4 bits for the number of
//! decimals of its count, and 39 bits for its digits.

use super::calendar::Calendar;
use super::contract::Word;
use super::two_counts::{SCALE_BITS, TwoCounts};
use super::windowed::Windowed;

/// The base-2 logarithm of the number of words for each nanosecond.
const BITS: u32 = 23;
/// The distance from the least word to 0.
const OFFSET: i128 = 1 << 87;

/// Returns the word at a place among those from the multiple of 2^`bits` with this number.
#[inline]
fn word_at(number: u64, bits: u32, place: u128) -> Word {
    (i128::from(number) << bits) + place as i128 - OFFSET
}

/// Returns the number and the place of a word.
#[inline]
fn number_and_place(word: Word, bits: u32) -> (u64, u128) {
    let ticks = word.wrapping_add(OFFSET) as u128;
    let number = u64::try_from(ticks >> bits).unwrap_or(u64::MAX);
    (number, ticks % (1 << bits))
}

impl Windowed {
    /// Returns the number of words of one window.
    #[inline]
    pub(super) fn words(&self) -> u128 {
        u128::from(self.window) << BITS
    }

    /// Returns the word at a place among those of the window with the given index.
    #[inline]
    pub(super) fn word(&self, window: u64, place: u128) -> Word {
        word_at(window.saturating_mul(self.window), BITS, place)
    }

    /// Returns the index of the window that a word belongs to, and the word's place among its words.
    /// Words that no clock reaches, as in a damaged file, belong to the last window.
    #[inline]
    pub(super) fn window_and_place(&self, word: Word) -> (u64, u128) {
        let (nanos, place) = number_and_place(word, BITS);
        let before = u128::from(nanos % self.window) << BITS;
        (nanos / self.window, before + place)
    }
}

/// The base-2 logarithm of the number of words of a calendar's period. Days of the 584 years need 18 bits beside it.
const PERIOD_BITS: u32 = 70;

impl Calendar {
    /// The number of words of one period.
    pub(super) const WORDS: u128 = 1 << PERIOD_BITS;

    /// Returns the word at a place among those of the period with the given number.
    #[inline]
    pub(super) fn word(period: u64, place: u128) -> Word {
        word_at(period, PERIOD_BITS, place)
    }

    /// Returns the number of the period that a word belongs to, and the word's place among its words.
    #[inline]
    pub(super) fn period_and_place(word: Word) -> (u64, u128) {
        number_and_place(word, PERIOD_BITS)
    }
}

/// A window that begins with a client's first request.
pub(super) struct FirstWindow;

impl FirstWindow {
    /// The nanoseconds to which the start is rounded down.
    pub(super) const NANOS: u64 = 1_000_000;
    /// The form of the count in a word: that of two counts, without the second, which is always 0.
    pub(super) const COUNT: TwoCounts = TwoCounts { bits: 39 };
    const BITS: u32 = Self::COUNT.bits + SCALE_BITS;

    /// Returns the word of a count in billionths, rounded up if it has too many digits.
    #[inline]
    pub(super) fn word(start: u64, count: u128) -> Word {
        let place = Self::COUNT.place_of(count, 0) >> Self::COUNT.bits;
        word_at(start, Self::BITS, place)
    }

    /// Returns the millisecond with which the window of a word began, and its count.
    #[inline]
    pub(super) fn start_and_count(word: Word) -> (u64, u128) {
        let (start, place) = number_and_place(word, Self::BITS);
        (start, Self::COUNT.counts(place << Self::COUNT.bits).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cost;
    use core::time::Duration;
    use proptest::prelude::*;

    const LEAST: Word = -(1 << 87);

    proptest! {
        #[test]
        fn a_word_is_a_window_and_a_place(
            millis in 1..400_000_000_000_u64,
            now in 0..u64::MAX / 2,
            share in 0.0..1.0_f64,
            any in LEAST..-(LEAST + 1),
        ) {
            let terms = Windowed::new(Cost::ONE, Duration::from_millis(millis.min(3_000_000_000)));
            let terms = terms.unwrap();
            let window = now / terms.window;
            let place = (terms.words() as f64 * share) as u128;
            let word = terms.word(window, place);
            prop_assert_eq!(terms.window_and_place(word), (window, place));
            prop_assert!((LEAST..0).contains(&word));
            prop_assert!(word < terms.word(window + 1, 0));
            let (_, place) = terms.window_and_place(any);
            prop_assert!(place < terms.words());
        }
    }
}
