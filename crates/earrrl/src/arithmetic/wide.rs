//! Products of up to 256 bits. A quota in billionths times a window in nanoseconds does not fit 128
//! bits.

/// Returns `a · b` as its (high, low) 128-bit halves.
const fn product(a: u128, b: u128) -> (u128, u128) {
    const MASK: u128 = u64::MAX as u128;
    let a1 = a >> 64;
    let a0 = a & MASK;
    let b1 = b >> 64;
    let b0 = b & MASK;
    let low = a0 * b0;
    let mid = a1 * b0 + (low >> 64);
    let (mid, carry) = mid.overflowing_add(a0 * b1);
    let high = a1 * b1 + (mid >> 64) + ((carry as u128) << 64);
    (high, (mid << 64) | (low & MASK))
}

/// Returns true if `a·b ≤ c·d`.
pub(crate) const fn product_at_most((a, b): (u128, u128), (c, d): (u128, u128)) -> bool {
    let left = product(a, b);
    let right = product(c, d);
    left.0 < right.0 || (left.0 == right.0 && left.1 <= right.1)
}

/// Returns `⌊a·b / divisor⌋`, and true if the division is exact; `None` if the quotient does not
/// fit 128 bits or the divisor is 0.
fn mul_div(a: u128, b: u128, divisor: u128) -> Option<(u128, bool)> {
    if let Some(product) = a.checked_mul(b) {
        return Some((product.checked_div(divisor)?, product % divisor == 0));
    }
    let (mut rest, low) = product(a, b);
    if rest >= divisor {
        return None;
    }
    let mut quotient = 0;
    for bit in (0..128).rev() {
        let carry = rest >> 127;
        rest = (rest << 1) | ((low >> bit) & 1);
        if carry == 1 || rest >= divisor {
            rest = rest.wrapping_sub(divisor);
            quotient |= 1 << bit;
        }
    }
    Some((quotient, rest == 0))
}

/// Returns `⌊a·b / divisor⌋`; `None` if the quotient does not fit 128 bits or the divisor is 0.
pub(crate) fn mul_div_floor(a: u128, b: u128, divisor: u128) -> Option<u128> {
    mul_div(a, b, divisor).map(|(quotient, _)| quotient)
}

/// Returns `⌈a·b / divisor⌉`; `None` if the quotient does not fit 128 bits or the divisor is 0.
pub(crate) fn mul_div_ceil(a: u128, b: u128, divisor: u128) -> Option<u128> {
    let (quotient, exact) = mul_div(a, b, divisor)?;
    quotient.checked_add(u128::from(!exact))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wide_products_and_quotients() {
        assert_eq!(product(u128::MAX, u128::MAX), (u128::MAX - 1, 1));
        assert_eq!(
            mul_div_floor(u128::MAX, u128::MAX, u128::MAX),
            Some(u128::MAX)
        );
        assert_eq!(mul_div_ceil(u128::MAX, 3, 4), Some(u128::MAX / 4 * 3 + 3));
        assert_eq!(mul_div_floor(u128::MAX, 2, 1), None);
        assert_eq!(mul_div_floor(1, 1, 0), None);
        assert!(product_at_most((u128::MAX, 2), (2, u128::MAX)));
        assert!(!product_at_most((u128::MAX, 3), (u128::MAX, 2)));
    }

    proptest! {
        #[test]
        fn dividing_a_product_by_a_factor_gives_the_other(a: u128, b in 1u128.., r: u128) {
            let r = r % b;
            let (high, low) = product(a, b);
            let (low, carry) = low.overflowing_add(r);
            prop_assume!(high.checked_add(u128::from(carry)).is_some());
            prop_assert_eq!(mul_div_floor(a, b, b), Some(a));
            prop_assert!(product_at_most((a, b), (a, b)));
            prop_assert!(low >= r || carry);
        }
    }
}
