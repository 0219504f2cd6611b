//! Hashes without a secret: of keys that are hashes already, of bytes that an accident may change, of nothing.

use core::hash::{BuildHasher, Hasher};
use std::hash::RandomState;

use siphasher::sip::SipHasher13;

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

/// Returns a checksum that detects accidents. Whoever may write the bytes can also compute it.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(bytes);
    hasher.finish()
}

/// Returns a random number, which no other process draws.
pub(crate) fn random_id() -> u64 {
    RandomState::new().build_hasher().finish()
}
