//! Two counts among the words of a window: two integers of the same number of bits, and the number of
//! decimals that both have.
//!
//! The fewer decimals the costs have, the more units can be counted. Costs are mostly whole units, so
//! they nearly always fit.

/// The bits of the number of decimals.
pub(super) const SCALE_BITS: u32 = 4;
/// The greatest number of decimals: billionths of a unit.
const FINEST: usize = 9;
/// The billionths in a step of a count, by the number of decimals.
const STEPS: [u64; FINEST + 1] = [
    1_000_000_000,
    100_000_000,
    10_000_000,
    1_000_000,
    100_000,
    10_000,
    1_000,
    100,
    10,
    1,
];

/// The form of two counts in a word.
#[derive(Clone, Copy)]
pub(super) struct TwoCounts {
    /// The bits of each count.
    pub(super) bits: u32,
}

impl TwoCounts {
    /// Returns the form that uses as many as possible of a number of words. With up to 34 bits, the
    /// billionths of a count fit 64 bits.
    #[inline]
    pub(super) fn within(words: u128) -> Self {
        Self {
            bits: ((words.ilog2() - SCALE_BITS) / 2).min(34),
        }
    }

    /// Returns the greatest count, in steps. The greatest number of the bits stands for more.
    #[inline]
    pub(super) fn most(self) -> u64 {
        (1 << self.bits) - 2
    }

    /// Returns the place of two counts of billionths, rounded up if they have too many digits.
    #[inline]
    pub(super) fn place_of(self, current: u128, previous: u128) -> u128 {
        self.exactly(current, previous)
            .unwrap_or_else(|| self.rounded_up(current, previous))
    }

    /// Returns the place of two counts; `None` if they have too many digits.
    #[inline]
    fn exactly(self, current: u128, previous: u128) -> Option<u128> {
        let current = u64::try_from(current).ok()?;
        let previous = u64::try_from(previous).ok()?;
        let is_whole = |step: &u64| current % step == 0 && previous % step == 0;
        let decimals = STEPS.iter().position(is_whole)?;
        let [current, previous] = [current, previous].map(|count| count / STEPS[decimals]);
        let fit = current.max(previous) <= self.most();
        fit.then(|| self.place(decimals as u128, current, previous))
    }

    /// Returns the place of two counts, rounded up to as many decimals as fit. Counts of whole units
    /// that do not fit become endless.
    #[cold]
    fn rounded_up(self, current: u128, previous: u128) -> u128 {
        let most = u128::from(self.most());
        let fits = |step: &u64| current.max(previous).div_ceil((*step).into()) <= most;
        let decimals = STEPS.iter().rposition(fits).unwrap_or(0);
        let steps = |count: u128| count.div_ceil(STEPS[decimals].into()).min(most + 1) as u64;
        self.place(decimals as u128, steps(current), steps(previous))
    }

    /// Returns the counts at a place, in billionths. They are endless at the places of a damaged file,
    /// where nothing is stored.
    #[inline]
    pub(super) fn counts(self, place: u128) -> (u128, u128) {
        let Some(step) = STEPS.get((place >> (2 * self.bits)) as usize) else {
            return (u128::MAX, u128::MAX);
        };
        let count = |steps: u128| match steps & ((1 << self.bits) - 1) {
            steps if steps > self.most().into() => u128::MAX,
            steps => steps * u128::from(*step),
        };
        (count(place >> self.bits), count(place))
    }

    #[inline]
    fn place(self, decimals: u128, current: u64, previous: u64) -> u128 {
        (((decimals << self.bits) | u128::from(current)) << self.bits) | u128::from(previous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A window of a second, one of a minute and one of ten years.
    const WORDS: [u128; 3] = [
        1_000_000_000 << 23,
        60_000_000_000 << 23,
        316_224_000_000_000_000 << 23,
    ];

    #[test]
    fn counts_fit_by_their_digits() {
        let second = TwoCounts::within(WORDS[0]);
        for (current, previous, fits) in [
            (0, 0, true),
            (5_000_000_000, 16_777_214_000_000_000, true),
            (5_000_000_000, 16_777_215_000_000_000, false),
            (5_500_000_000, 1_677_721_000_000_000, true),
            (5_500_000_000, 1_677_722_000_000_000, false),
            (1, 16_777_214, true),
            (1, 1_000_000_000, false),
            (u128::MAX, 0, false),
        ] {
            assert_eq!(
                second.exactly(current, previous).is_some(),
                fits,
                "{current} {previous}"
            );
        }
        // By the finest step whose counts fit.
        let rounded = second.place_of(1_000_000_001, 0);
        assert_eq!(second.counts(rounded), (1_000_000_100, 0));
        let endless = second.place_of(u128::MAX, 3);
        assert_eq!(second.counts(endless), (u128::MAX, 1_000_000_000));
    }

    proptest! {
        #[test]
        fn counts_are_exact_or_rounded_up(
            which in 0..3_usize,
            current in prop_oneof![0..100_u128, any::<u64>().prop_map(u128::from), any::<u128>()],
            previous in prop_oneof![0..100_u128, any::<u64>().prop_map(u128::from)],
            step in 0..=FINEST,
        ) {
            let form = TwoCounts::within(WORDS[which]);
            let current = current.saturating_mul(STEPS[step].into());
            let above = form.place_of(current, previous);
            prop_assert!(above < WORDS[which]);
            let (more, before) = form.counts(above);
            match form.exactly(current, previous) {
                Some(_) => prop_assert_eq!((more, before), (current, previous)),
                None => prop_assert!(more >= current && before >= previous),
            }
            // A rounded count may have two places, of which one has a decimal too many.
            prop_assert_eq!(form.counts(form.place_of(more, before)), (more, before));
        }
    }
}
