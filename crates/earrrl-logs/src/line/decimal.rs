//! Exact parsing of decimal numbers.

/// Returns the number in `text` times `10^scale`, rounded towards zero.
///
/// The text may have a sign, a fraction and an exponent. Returns `None` if it is not such a
/// number, or if the result overflows.
pub(super) fn parse(text: &[u8], scale: i32) -> Option<i128> {
    let (negative, text) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let (mantissa, exponent) = match memchr::memchr2(b'e', b'E', text) {
        Some(at) => (&text[..at], exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (whole, fraction) = match memchr::memchr(b'.', mantissa) {
        Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        None => (mantissa, &[][..]),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let shift = scale.checked_add(exponent)?;
    let value = shifted(whole, fraction, shift)?;
    Some(if negative { -value } else { value })
}

/// Returns the nanoseconds that the digits after a decimal point stand for; `None` without a
/// digit.
pub(super) fn fraction(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() {
        return None;
    }
    u32::try_from(shifted(b"", digits, 9)?).ok()
}

/// Returns the number with these digits, with the decimal point moved `shift` places to the right.
fn shifted(whole: &[u8], fraction: &[u8], shift: i32) -> Option<i128> {
    let kept = i64::try_from(whole.len()).ok()? + i64::from(shift);
    let mut value: i128 = 0;
    for (at, &digit) in (0i64..).zip(whole.iter().chain(fraction)) {
        if !digit.is_ascii_digit() {
            return None;
        }
        if at < kept {
            value = value
                .checked_mul(10)?
                .checked_add(i128::from(digit - b'0'))?;
        }
    }
    let missing = kept - i64::try_from(whole.len() + fraction.len()).ok()?;
    if value == 0 || missing <= 0 {
        return Some(value);
    }
    value.checked_mul(10i128.checked_pow(u32::try_from(missing).ok()?)?)
}

fn exponent(text: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|e| (-400..=400).contains(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_to_the_last_digit() {
        let cases: [(&str, Option<i128>); 16] = [
            ("1111111111.123456789", Some(1_111_111_111_123_456_789)),
            ("0.1", Some(100_000_000)),
            (".5", Some(500_000_000)),
            ("5.", Some(5_000_000_000)),
            ("-2", Some(-2_000_000_000)),
            ("1.5e9", Some(1_500_000_000_000_000_000)),
            ("15E-1", Some(1_500_000_000)),
            ("0.0000000019", Some(1)),
            ("1e-400", Some(0)),
            ("0e300", Some(0)),
            ("1e300", None),
            (".", None),
            ("", None),
            ("1e", None),
            ("1.2.3", None),
            ("NaN", None),
        ];
        for (text, value) in cases {
            assert_eq!(parse(text.as_bytes(), 9), value, "{text}");
        }
    }
}
