//! Numbers as the unevaluated sum of two doubles: about 31 decimal digits, for references.
//!
//! Dekker's and Knuth's error-free transformations, as in Hida, Li and Bailey's QD library.

use std::ops::{Add, Div, Mul, Neg, Sub};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DoubleDouble {
    high: f64,
    low: f64,
}

impl DoubleDouble {
    pub(crate) const ZERO: Self = Self {
        high: 0.0,
        low: 0.0,
    };
    pub(crate) const ONE: Self = Self {
        high: 1.0,
        low: 0.0,
    };
    pub(crate) const LN_2: Self = Self {
        high: core::f64::consts::LN_2,
        low: 2.319_046_813_846_299_6e-17,
    };

    pub(crate) fn of(value: f64) -> Self {
        Self {
            high: value,
            low: 0.0,
        }
    }

    /// Converts a whole number; exact up to 2^106.
    pub(crate) fn whole(value: u128) -> Self {
        let high = value as f64;
        let low = value.wrapping_sub(high as u128) as i128 as f64;
        two_sum(high, low)
    }

    pub(crate) fn to_f64(self) -> f64 {
        self.high + self.low
    }

    pub(crate) fn is_above(self, other: Self) -> bool {
        (self - other).to_f64() > 0.0
    }

    /// `e^-x` for x ≥ 0: the series of a small part of x, squared as often as it was halved.
    pub(crate) fn exp_of_minus(self) -> Self {
        if self.high > 700.0 {
            return Self::ZERO;
        }
        let halvings = (self.high * 64.0).log2().ceil().max(0.0) as i32;
        let x = -self * Self::of(0.5f64.powi(halvings));
        let mut term = Self::ONE;
        let mut sum = Self::ONE;
        let mut n = 1.0;
        while term.high.abs() > 1e-34 && n < 40.0 {
            term = term * x / Self::of(n);
            sum = sum + term;
            n += 1.0;
        }
        (0..halvings).fold(sum, |power, _| power * power)
    }
}

/// Returns `a + b` exactly, as a sum and its error.
fn two_sum(a: f64, b: f64) -> DoubleDouble {
    let high = a + b;
    let of_b = high - a;
    DoubleDouble {
        high,
        low: (a - (high - of_b)) + (b - of_b),
    }
}

/// Splits a double into its upper 26 bits and the rest.
fn split(a: f64) -> (f64, f64) {
    const SHIFT: f64 = ((1u32 << 27) + 1) as f64;
    let shifted = SHIFT * a;
    let high = shifted - (shifted - a);
    (high, a - high)
}

/// Returns `a · b` exactly, as a product and its error.
fn two_product(a: f64, b: f64) -> DoubleDouble {
    let high = a * b;
    let (a1, a0) = split(a);
    let (b1, b0) = split(b);
    DoubleDouble {
        high,
        low: ((a1 * b1 - high) + a1 * b0 + a0 * b1) + a0 * b0,
    }
}

impl Add for DoubleDouble {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let sum = two_sum(self.high, other.high);
        two_sum(sum.high, sum.low + (self.low + other.low))
    }
}

impl Neg for DoubleDouble {
    type Output = Self;
    fn neg(self) -> Self {
        Self {
            high: -self.high,
            low: -self.low,
        }
    }
}

impl Sub for DoubleDouble {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for DoubleDouble {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let product = two_product(self.high, other.high);
        let cross = self.high * other.low + self.low * other.high;
        two_sum(product.high, product.low + cross)
    }
}

impl Div for DoubleDouble {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let first = self.high / other.high;
        let rest = self - other * Self::of(first);
        let second = rest.to_f64() / other.high;
        two_sum(first, second)
    }
}

#[test]
fn has_thirty_digits() {
    let third = DoubleDouble::ONE / DoubleDouble::of(3.0);
    let one = third + third + third - DoubleDouble::ONE;
    assert!(one.to_f64().abs() < 1e-31);
    let half = DoubleDouble::LN_2.exp_of_minus() - DoubleDouble::of(0.5);
    assert!(half.to_f64().abs() < 1e-30, "{half:?}");
    let thousandth = (DoubleDouble::LN_2 * DoubleDouble::of(10.0)).exp_of_minus();
    assert!(
        (thousandth * DoubleDouble::of(1024.0) - DoubleDouble::ONE)
            .to_f64()
            .abs()
            < 1e-29
    );
    let big = DoubleDouble::whole((1 << 100) + 1) - DoubleDouble::whole(1 << 100);
    assert_eq!(big, DoubleDouble::ONE);
}
