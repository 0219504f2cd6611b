//! Keys are hashed by a pseudo-random function under a random key, so no client can
//! choose a key that takes another client's place. Only the hash is ever stored.
//!
//! The function is AES-CMAC where the processor has instructions for it, else SipHash-1-3.

use core::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::cmac::Cmac;

/// The table's knowledge of a key: 64 bits of its keyed hash.
///
/// They choose the two sets an entry may live in, and the low 40 are its fingerprint. Two
/// keys are taken for one only when their fingerprints agree and they share a set: with ten
/// million clients that happens to fewer than one in a thousand tables, and then to one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Takes over a hash that was computed elsewhere. All 64 bits must be uniformly distributed.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the whole hash.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the low 40 bits, the lowest of them set: never 0, which marks an empty slot.
    #[inline(always)]
    pub(super) fn fingerprint(self) -> u64 {
        (self.0 & super::entry::FINGERPRINT_MASK) | 1
    }

    /// Returns a number below `lines`, from the top bits: where the search begins.
    #[inline(always)]
    pub(super) fn first_line(self, lines: usize) -> usize {
        scale(self.0, lines)
    }

    /// Returns a number below `lines` that depends on every bit of the hash: where it continues.
    #[inline(always)]
    pub(super) fn second_line(self, lines: usize) -> usize {
        scale(self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15), lines)
    }
}

/// `hash / 2^64 * below`, by one multiplication.
#[inline(always)]
fn scale(hash: u64, below: usize) -> usize {
    ((u128::from(hash) * below as u128) >> 64) as usize
}

/// Hashes keys of any hashable type.
#[derive(Clone, Copy)]
pub struct KeyHasher(Keyed);

#[derive(Clone, Copy)]
enum Keyed {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Cmac(Cmac),
    Sip(SipHasher13),
}

impl KeyHasher {
    /// Returns a hasher with a random key from the operating system.
    ///
    /// # Errors
    /// When the operating system has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut key = [0; 16];
        getrandom::fill(&mut key)?;
        Ok(Self::with_key(&key))
    }

    /// Returns a hasher with a given key, for tests and for tables that several processes share. Its hashes are
    /// the same on machines of one kind.
    #[must_use]
    pub fn with_key(key: &[u8; 16]) -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(cmac) = Cmac::new(key) {
            return Self(Keyed::Cmac(cmac));
        }
        Self(Keyed::Sip(SipHasher13::new_with_key(key)))
    }

    /// Hashes a key that is nothing but bytes: cheaper than [`hash`](Self::hash), and another hash than
    /// that gives of the same bytes.
    #[inline]
    pub fn hash_bytes(&self, key: &[u8]) -> KeyHash {
        self.hash(&Bytes(key))
    }

    /// Hashes a key.
    #[inline(always)]
    pub fn hash<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        match &self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Keyed::Cmac(cmac) => finish(cmac.hasher(), key),
            Keyed::Sip(sip) => finish(*sip, key),
        }
    }
}

impl core::fmt::Debug for KeyHasher {
    /// Without its key: with that, keys can be chosen that collide.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("KeyHasher").finish_non_exhaustive()
    }
}

/// Bytes by themselves, which need no length before them: nothing follows.
struct Bytes<'a>(&'a [u8]);

impl Hash for Bytes<'_> {
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.0);
    }
}

#[inline(always)]
fn finish<K: Hash + ?Sized>(mut hasher: impl Hasher, key: &K) -> KeyHash {
    key.hash(&mut hasher);
    KeyHash(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_decides_the_hash() {
        let one = KeyHasher::with_key(&[1; 16]);
        let two = KeyHasher::with_key(&[2; 16]);
        assert_eq!(one.hash("alice"), one.hash("alice"));
        assert_ne!(one.hash("alice"), one.hash("bob"));
        assert_ne!(one.hash("alice"), two.hash("alice"));
        assert_eq!(one.hash_bytes(b"alice"), one.hash_bytes(b"alice"));
        assert_ne!(one.hash_bytes(b"alice"), one.hash_bytes(b"alicf"));
        let random = KeyHasher::random().unwrap();
        assert_ne!(random.hash("alice"), KeyHasher::random().unwrap().hash("alice"));
    }

    #[test]
    fn lines_are_in_range_and_fingerprints_are_never_zero() {
        for bits in [0, 1, u64::MAX, 1 << 40, 0x8000_0000_0000_0000] {
            for lines in [8, 12, 1 << 20] {
                assert!(KeyHash(bits).first_line(lines) < lines);
                assert!(KeyHash(bits).second_line(lines) < lines);
            }
            assert_ne!(KeyHash(bits).fingerprint(), 0);
        }
    }
}
