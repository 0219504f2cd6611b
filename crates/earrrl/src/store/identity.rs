//! The hasher of maps whose keys are hashes already.

use core::hash::Hasher;

/// A hasher that returns the 64-bit integer in its input, for a map whose keys are hashes already, or contain one.
#[derive(Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Takes the mark of a reservation's id, and spreads its bits.
    fn write_u128(&mut self, id: u128) {
        self.0 = ((id >> 96) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
