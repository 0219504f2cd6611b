//! The ids of reservations.

use alloc::borrow::ToOwned;
use core::fmt;
use core::str::FromStr;

use crate::error::RuleError;

/// The id of a reservation: 128 bits, which its holder cannot guess from another id.
///
/// ```
/// use earrrl::HoldId;
/// let id: HoldId = "00112233445566778899aabbccddeeff".parse()?;
/// assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
/// # Ok::<(), earrrl::RuleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId(u128);

impl HoldId {
    /// Returns the id with these bits.
    ///
    /// ```
    /// let id = earrrl::HoldId::from_bits(0xff);
    /// assert_eq!(id.to_string(), "000000000000000000000000000000ff");
    /// ```
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Returns the id's bits.
    ///
    /// ```
    /// assert_eq!(earrrl::HoldId::from_bits(7).bits(), 7);
    /// ```
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl FromStr for HoldId {
    type Err = RuleError;

    /// Parses 32 hexadecimal digits in lower case.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let bits = Some(text)
            .filter(|text| text.len() == 32 && text.bytes().all(is_digit))
            .and_then(|text| u128::from_str_radix(text, 16).ok());
        bits.map(Self).ok_or_else(|| {
            RuleError::syntax("expected 32 hexadecimal digits in lower case".to_owned())
                .of("reservation")
        })
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn ids_are_written_as_they_are_parsed() {
        for bits in [0, 1, 0xf, 1 << 63, 1 << 64, u128::MAX, u128::MAX / 0xf * 7] {
            let id = HoldId::from_bits(bits);
            assert_eq!(id.to_string(), format!("{bits:032x}"));
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let digits = "00112233445566778899aabbccddeeff";
        let short = &digits[1..];
        for text in [
            "",
            short,
            &format!("{digits}0"),
            &format!("{short}F"),
            &format!("+{short}"),
        ] {
            assert!(text.parse::<HoldId>().is_err(), "{text:?}");
        }
        // 32 bytes, of which two are one character.
        assert!(format!("{}é", &digits[2..]).parse::<HoldId>().is_err());
    }
}
