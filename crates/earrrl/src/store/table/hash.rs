//! The hash of a client's key: a pseudo-random function with a random secret, so that no client can
//! choose a key that collides with another client's. Only the hash is stored.
//!
//! The function is AES-CMAC if the processor has instructions for AES, and SipHash-1-3 otherwise.

use core::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::cmac::Cmac;

/// The 64-bit keyed hash of a client's key, which is all that a table knows of the key.
///
/// The hash determines the two sets in which the client's entry may be, and its low 40 bits are the
/// fingerprint. Two keys are taken for the same client only if their fingerprints agree and they
/// share a set: with ten million clients this happens in fewer than one of a thousand tables, and
/// then to one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Returns a hash that was computed elsewhere. Its 64 bits must be uniformly distributed.
    ///
    /// ```
    /// assert_eq!(earrrl::internal::table::KeyHash::from_bits(0x11).fingerprint(), 0x11);
    /// ```
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns all 64 bits of the hash.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the low 40 bits with the lowest bit set, which is all that a table stores of a key. A
    /// fingerprint is never 0, which marks an empty slot.
    ///
    /// ```
    /// # use earrrl::internal::table::KeyHash;
    /// assert_eq!(KeyHash::from_bits(0xabcd_0000_0000_0010).fingerprint(), 0x11);
    /// ```
    #[inline(always)]
    #[must_use]
    pub fn fingerprint(self) -> u64 {
        (self.0 & super::entry::FINGERPRINT_MASK) | 1
    }

    /// Returns the line of the first set where a search begins: a number below `lines`, computed
    /// from the top bits.
    #[inline(always)]
    pub(super) fn first_line(self, lines: usize) -> usize {
        scale(self.0, lines)
    }

    /// Returns the line of the second set where a search continues: a number below `lines` that
    /// depends on every bit of the hash.
    #[inline(always)]
    pub(super) fn second_line(self, lines: usize) -> usize {
        scale(self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15), lines)
    }
}

/// Returns `hash / 2^64 * below` by one multiplication.
#[inline(always)]
fn scale(hash: u64, below: usize) -> usize {
    ((u128::from(hash) * below as u128) >> 64) as usize
}

/// Hashes keys of any type that implements [`Hash`], with a secret.
///
/// ```
/// use earrrl::internal::table::KeyHasher;
///
/// let hasher = KeyHasher::random()?;
/// assert_eq!(hasher.hash("alice"), hasher.hash("alice"));
/// assert_ne!(hasher.hash("alice"), hasher.hash("bob"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct KeyHasher(Keyed);

#[derive(Clone, Copy)]
enum Keyed {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Cmac(Cmac),
    Sip(SipHasher13),
}

impl KeyHasher {
    /// Returns a hasher with a random secret from the operating system.
    ///
    /// # Errors
    /// Returns an error if the operating system returns no random bytes.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut key = [0; 16];
        getrandom::fill(&mut key)?;
        Ok(Self::with_key(&key))
    }

    /// Returns a hasher with a given secret, for tests and for tables that several processes share.
    /// Its hashes are equal on machines of the same kind: those with AES instructions, or those
    /// without.
    ///
    /// ```
    /// # use earrrl::internal::table::KeyHasher;
    /// let (one, other) = (KeyHasher::with_key(&[7; 16]), KeyHasher::with_key(&[7; 16]));
    /// assert_eq!(one.hash("alice"), other.hash("alice"));
    /// ```
    #[must_use]
    pub fn with_key(key: &[u8; 16]) -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Some(cmac) = Cmac::new(key) {
            return Self(Keyed::Cmac(cmac));
        }
        Self(Keyed::Sip(SipHasher13::new_with_key(key)))
    }

    /// Returns the number of the hash function, by which files know it.
    pub(crate) fn algorithm(&self) -> u32 {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Keyed::Cmac(_) => 1,
            Keyed::Sip(_) => 2,
        }
    }

    /// Hashes a key that consists only of bytes. This is cheaper than [`hash`](Self::hash), and
    /// returns another hash for the same bytes.
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
    /// Leaves out the secret, with which a client could choose colliding keys.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("KeyHasher").finish_non_exhaustive()
    }
}

/// A key that consists only of bytes. No length is hashed before them, since nothing follows.
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
        assert_ne!(
            random.hash("alice"),
            KeyHasher::random().unwrap().hash("alice")
        );
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
