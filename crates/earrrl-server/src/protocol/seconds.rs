//! Formats durations in seconds, exact to the nanosecond and without trailing zeros.

use std::time::Duration;

/// A buffer for a duration's text in seconds, long enough for the longest duration.
#[derive(Debug, Default)]
pub struct SecondsText([u8; 32]);

impl SecondsText {
    /// Returns the duration in seconds as decimal text, such as `12.3`.
    #[inline]
    pub fn format(&mut self, duration: Duration) -> &[u8] {
        let mut integer = itoa::Buffer::new();
        let seconds = integer.format(duration.as_secs()).as_bytes();
        let point = seconds.len();
        self.0[..point].copy_from_slice(seconds);
        let nanos = duration.subsec_nanos();
        if nanos == 0 {
            return &self.0[..point];
        }
        // The leading digit 1 preserves the zeros that the fraction begins with. The decimal point
        // then replaces this digit.
        let fraction = integer.format(1_000_000_000 + nanos).as_bytes();
        let zeros = fraction
            .iter()
            .rev()
            .take_while(|&&digit| digit == b'0')
            .count();
        self.0[point..point + fraction.len()].copy_from_slice(fraction);
        self.0[point] = b'.';
        &self.0[..point + fraction.len() - zeros]
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
