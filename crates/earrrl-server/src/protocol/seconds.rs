//! Durations as seconds: exact to the nanosecond, without zeros at the end.

use std::time::Duration;

/// Room for the longest duration's text.
#[derive(Debug, Default)]
pub struct SecondsText([u8; 32]);

impl SecondsText {
    /// The duration's text, as `12.3`.
    #[inline]
    pub fn format(&mut self, duration: Duration) -> &[u8] {
        let mut integer = itoa::Buffer::new();
        let whole = integer.format(duration.as_secs()).as_bytes();
        self.0[..whole.len()].copy_from_slice(whole);
        let mut fraction = duration.subsec_nanos();
        if fraction == 0 {
            return &self.0[..whole.len()];
        }
        self.0[whole.len()] = b'.';
        let digits = &mut self.0[whole.len() + 1..whole.len() + 10];
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (fraction % 10) as u8;
            fraction /= 10;
        }
        let zeros = digits.iter().rev().take_while(|&&digit| digit == b'0').count();
        &self.0[..whole.len() + 10 - zeros]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact_and_short() {
        for (duration, text) in [
            (Duration::ZERO, "0"),
            (Duration::from_nanos(1), "0.000000001"),
            (Duration::from_millis(12_300), "12.3"),
            (Duration::from_secs(60), "60"),
            (Duration::MAX, "18446744073709551615.999999999"),
        ] {
            assert_eq!(SecondsText::default().format(duration), text.as_bytes());
        }
    }
}
