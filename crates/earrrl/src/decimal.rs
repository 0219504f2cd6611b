//! Exact decimal numbers: digits and a power of ten, without rounding.

/// The value `digits` · 10^`exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    digits: u128,
    exponent: i32,
}

/// Parses `12`, `0.5` or `1e-3`. A sign before the number, blanks, and more than 38 significant
/// digits are rejected.
pub(crate) fn parse(text: &str) -> Option<Decimal> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent_of(exponent)?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let blank = whole.is_empty() || (fraction.is_empty() && mantissa.contains('.'));
    if blank || text.len() > 64 {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let mut digits = 0u128;
    for byte in whole.bytes().chain(fraction.bytes()) {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        digits = digits.checked_mul(10)?.checked_add(u128::from(digit))?;
    }
    Some(Decimal {
        digits,
        exponent: exponent - fraction.len() as i32,
    })
}

/// Returns the number of a text of 1 to 18 digits, as most costs are; `None` for any other text.
pub(crate) fn short_whole(text: &str) -> Option<u64> {
    if !(1..=18).contains(&text.len()) {
        return None;
    }
    text.bytes().try_fold(0, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        Some(10 * number + u64::from(digit))
    })
}

fn exponent_of(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

impl Decimal {
    /// Returns the value · 10^`places`, or `None` if that is no whole number or does not fit.
    pub(crate) fn scaled(self, places: i32) -> Option<u128> {
        let exponent = self.exponent + places;
        let power = 10u128.checked_pow(exponent.unsigned_abs());
        match (self.digits, power, exponent >= 0) {
            (0, ..) => Some(0),
            (digits, Some(power), true) => digits.checked_mul(power),
            (digits, Some(power), false) if digits % power == 0 => Some(digits / power),
            _ => None,
        }
    }
}
