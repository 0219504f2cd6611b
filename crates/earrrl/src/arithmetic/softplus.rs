//! `ln(1 + e^-x)` for x ≥ 0 by a small table.
//!
//! This is the logarithm by which one request moves a recent-average state (see
//! `recent_average.rs`). Computed by `exp` and `ln_1p` it takes 24 ns. Its relative error must stay
//! well below 1e-9.
//!
//! Each cell of the table is a Taylor polynomial of degree 3 about the cell's middle, computed at
//! compile time. Since |f⁽⁴⁾| ≤ f on the whole range, the relative error is at most (1/256)^4/24 =
//! 1e-11. A higher degree with fewer cells would have a longer latency. The table has 128 kB, but
//! clients that send at similar rates use only a few of its cache lines.

use super::float::exp;

/// The number of the table's cells per unit of its argument x.
const CELLS_PER_UNIT: usize = 128;
/// The x beyond which the table ends and a series is used. A state reaches it after 10^14 requests
/// in one averaging period.
const TABLE_END: usize = 32;
const TABLE_CELLS: usize = CELLS_PER_UNIT * TABLE_END + 1;
const DEGREE: usize = 3;

static TABLE: [Cell; TABLE_CELLS] = table();

/// The coefficients of one cell, aligned so that they never cross two cache lines.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Cell([f64; DEGREE + 1]);

/// A constant that rounds: added to a double below 2^51, it leaves the nearest whole number in the
/// low bits. This is faster than a conversion to an integer, which must check the range.
const ROUND: f64 = (1u64 << 52) as f64;

/// The number of cells in a unit of x. [`softplus_of_cells`] expects x multiplied by it: a caller
/// that multiplies anyway includes this factor, which saves a step on every decision's critical
/// path.
pub(crate) const CELLS: f64 = CELLS_PER_UNIT as f64;

/// Returns `ln(1 + e^-x)` for x ≥ 0, given `x · CELLS`.
#[inline]
pub(crate) fn softplus_of_cells(cells: f64) -> f64 {
    let nearest = cells + ROUND;
    let cell = (nearest.to_bits() ^ ROUND.to_bits()) as usize;
    match TABLE.get(cell) {
        Some(Cell(c)) => {
            let d = cells - (nearest - ROUND);
            (c[0] + c[2] * d) + d * d * (c[1] + c[3] * d)
        }
        None => tail(cells / CELLS),
    }
}

/// Returns `e^-x`, which for x ≥ 32 is within a relative 1e-14 of `ln(1 + e^-x)`.
#[cold]
fn tail(x: f64) -> f64 {
    exp(-x)
}

const fn table() -> [Cell; TABLE_CELLS] {
    let mut table = [Cell([0.0; DEGREE + 1]); TABLE_CELLS];
    let mut cell = 0;
    while cell < TABLE_CELLS {
        table[cell] = taylor(cell as f64 / CELLS_PER_UNIT as f64);
        cell += 1;
    }
    table
}

/// Returns the Taylor coefficients about `x`, in units of a cell. With `s = 1/(1+e^x)`, `f' = -s`
/// and `s' = -s(1-s)`.
const fn taylor(x: f64) -> Cell {
    let e = const_exp_minus(x);
    let s = e / (1.0 + e);
    let p = s * (1.0 - s);
    let h = 1.0 / CELLS_PER_UNIT as f64;
    Cell([
        const_ln_1p(e),
        p * h * h / 2.0,
        -s * h,
        -p * (1.0 - 2.0 * s) * h * h * h / 6.0,
    ])
}

/// Returns `e^-x` for 0 ≤ x ≤ 32: inverts the series of `e^(x/256)` and squares it eight times.
const fn const_exp_minus(x: f64) -> f64 {
    let z = x / 256.0;
    let mut term = 1.0;
    let mut sum = 1.0;
    let mut n = 1.0;
    while n < 12.0 {
        term *= z / n;
        sum += term;
        n += 1.0;
    }
    let mut power = 1.0 / sum;
    let mut squarings = 0;
    while squarings < 8 {
        power *= power;
        squarings += 1;
    }
    power
}

/// Returns `ln(1+u)` for 0 ≤ u ≤ 1, computed as twice the inverse hyperbolic tangent of `u/(2+u)` ≤
/// 1/3.
const fn const_ln_1p(u: f64) -> f64 {
    let t = u / (2.0 + u);
    let mut power = t;
    let mut sum = 0.0;
    let mut n = 1.0;
    while n < 40.0 {
        sum += power / n;
        power *= t * t;
        n += 2.0;
    }
    2.0 * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn softplus(x: f64) -> f64 {
        softplus_of_cells(x * CELLS)
    }

    #[test]
    fn agrees_with_the_elementary_functions_relative_to_itself() {
        let mut worst = 0f64;
        for step in 0..600_000 {
            let x = f64::from(step) * 1e-4;
            let exact = (-x).exp().ln_1p();
            worst = worst.max(((softplus(x) - exact) / exact).abs());
        }
        assert!(worst < 1e-11, "{worst:e}");
    }

    #[test]
    fn ends_of_the_range() {
        assert!((softplus(0.0) - core::f64::consts::LN_2).abs() < 1e-12);
        assert_eq!(softplus(1e9), 0.0);
        assert_eq!(softplus(f64::INFINITY), 0.0);
    }
}
