//! Arithmetic that the algorithms share: elementary functions, 256-bit products and a fast
//! logarithm.

mod float;
mod softplus;
mod wide;

pub(crate) use float::{exp, exp_m1, ln, ln_1p};
pub(crate) use softplus::{CELLS, softplus_of_cells};
pub(crate) use wide::{mul_div_ceil, mul_div_floor, product_at_most};

/// Converts ticks to nanoseconds, rounded up.
#[inline]
pub(crate) fn div_ceil(ticks: i128, ticks_per_nano: i128) -> i128 {
    if let (Ok(ticks), Ok(ticks_per_nano)) = (u64::try_from(ticks), u64::try_from(ticks_per_nano)) {
        return ticks.div_ceil(ticks_per_nano).into();
    }
    let floor = ticks.div_euclid(ticks_per_nano);
    floor + (floor * ticks_per_nano != ticks) as i128
}

/// Returns `⌊a / b⌋` of numbers that are not negative. Uses the compiler's slow 128-bit division
/// only if 64 bits are not enough. The signed division would be slower still.
#[inline]
pub(crate) fn div_floor(a: i128, b: i128) -> i128 {
    match (u64::try_from(a), u64::try_from(b)) {
        (Ok(a), Ok(b)) => (a / b).into(),
        _ => (a.unsigned_abs() / b.unsigned_abs()) as i128,
    }
}

/// Returns a count as a double. Uses the compiler's slow 128-bit conversion only if 64 bits are not
/// enough.
#[inline]
pub(crate) fn count_as_f64(count: u128) -> f64 {
    u64::try_from(count).map_or_else(|_| count as f64, |count| count as f64)
}

/// Returns a count of ticks as a double, with a relative error of at most 2^-53 for counts of up to
/// 103 bits. This is several times faster than the compiler's 128-bit conversion.
#[inline]
pub(crate) fn ticks_as_f64(ticks: i128) -> f64 {
    if let Ok(ticks) = i64::try_from(ticks) {
        return ticks as f64;
    }
    const LOW: u32 = 40;
    let high = (ticks >> LOW) as i64 as f64;
    let low = (ticks as u64 & ((1 << LOW) - 1)) as i64 as f64;
    high * (1u64 << LOW) as f64 + low
}
