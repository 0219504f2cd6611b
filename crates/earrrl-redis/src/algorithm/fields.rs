//! Little-endian fields of records and of scripts' arguments, as Lua's `struct` packs them.

use std::time::Duration;

use earrrl::Nanos;
use earrrl::algorithm::TokenBucket;

/// The longest time that a state may lie ahead of now. Doubles represent microseconds since 1970
/// exactly only for a limited time beyond it.
pub(crate) const FARTHEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Reads little-endian fields, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// Reads a double that is a time, an amount or a count. Returns `None` if it is below zero, NaN or
    /// above all that a rule counts.
    pub(crate) fn number(&mut self) -> Option<f64> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(f64::from_le_bytes(*field)).filter(|number| (0.0..1e300).contains(number))
    }

    /// Reads an unsigned integer of `bytes` bytes, at most eight.
    pub(crate) fn whole(&mut self, bytes: usize) -> Option<u64> {
        let field = self.bytes(bytes)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }

    /// Reads this many bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Writes little-endian fields, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Packed(pub(crate) Vec<u8>);

impl Packed {
    pub(crate) fn numbers(&mut self, numbers: &[f64]) {
        numbers
            .iter()
            .for_each(|number| self.0.extend(number.to_le_bytes()));
    }

    /// Writes the lowest `bytes` bytes of an integer, at most eight.
    pub(crate) fn whole(&mut self, number: u64, bytes: usize) {
        self.0.extend(&number.to_le_bytes()[..bytes]);
    }
}

/// Converts microseconds since 1970 to an instant.
pub(crate) fn nanos(micros: f64) -> Nanos {
    Nanos::new((micros as u64).saturating_mul(1000))
}

/// Converts an instant to whole microseconds since 1970.
pub(crate) fn micros(now: Nanos) -> f64 {
    (now.get() / 1000) as f64
}

pub(super) fn span_micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

pub(super) fn whole_micros(nanos: u64) -> f64 {
    (nanos / 1000) as f64
}

/// The number of ticks per microsecond.
pub(super) const TICKS_PER_MICRO: i128 = TokenBucket::TICKS_PER_NANO * 1000;

/// Splits ticks into whole microseconds and the remaining ticks.
pub(super) fn in_two(ticks: i128) -> (f64, f64) {
    (
        ticks.div_euclid(TICKS_PER_MICRO) as f64,
        ticks.rem_euclid(TICKS_PER_MICRO) as f64,
    )
}
