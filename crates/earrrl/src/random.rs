//! A small seeded generator of pseudo-random numbers (SplitMix64) for tests and simulations. Not
//! for secrets.

/// A stream of pseudo-random numbers. Equal seeds give equal streams on every machine.
///
/// ```
/// use earrrl::internal::Random;
///
/// let (mut one, mut other) = (Random::new(7), Random::new(7));
/// assert_eq!(one.next_u64(), other.next_u64());
/// assert!(one.below(6) < 6 && (0.0..1.0).contains(&one.unit()));
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the stream that belongs to `seed`.
    ///
    /// ```
    /// # use earrrl::internal::Random;
    /// assert_ne!(Random::new(1).next_u64(), Random::new(2).next_u64());
    /// ```
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`; 0 for a bound of 0.
    ///
    /// ```
    /// assert!(earrrl::internal::Random::new(7).below(6) < 6);
    /// ```
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `[0, 1)`.
    ///
    /// ```
    /// assert!(earrrl::internal::Random::new(7).unit() < 1.0);
    /// ```
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns one of the items at random. Panics if `items` is empty.
    ///
    /// ```
    /// let names = ["alice", "bob"];
    /// assert!(names.contains(earrrl::internal::Random::new(7).pick(&names)));
    /// ```
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}
