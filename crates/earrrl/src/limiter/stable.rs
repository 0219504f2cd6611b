//! Keys whose hash is the same in every process.

use std::string::String;
use std::vec::Vec;

use crate::store::table::{KeyHash, KeyHasher};

/// A key that limiters with a state file can have: text, bytes, or an integer.
///
/// Rust does not promise that other types hash alike in every process and every version of the
/// compiler. The file records the hash of a known key of its type; a process that computes another
/// hash is refused.
///
/// ```
/// use earrrl::{Limiter, Rule};
/// # let directory = std::env::temp_dir().join(format!("earrrl-key-{}", std::process::id()));
///
/// let rule: Rule = "gcra 1/h burst=2".parse()?;
/// // `u64` is a stable key; a type with a derived `Hash` is none.
/// let limiter: Limiter<u64> =
///     Limiter::builder(rule).capacity(100).state_file(directory.join("users.earrrl")).build()?;
/// assert!(limiter.check(&7).is_allowed());
/// # std::fs::remove_dir_all(directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait StableKey: sealed::Sealed {
    /// Returns the hash of a known key of this type.
    #[doc(hidden)]
    fn hash_of_known_key(hasher: &KeyHasher) -> KeyHash;
}

mod sealed {
    /// A type that only this crate can implement.
    pub trait Sealed {}
}

macro_rules! stable {
    ($($Key:ty, $known:expr;)*) => {
        $(
            impl sealed::Sealed for $Key {}
            impl StableKey for $Key {
                fn hash_of_known_key(hasher: &KeyHasher) -> KeyHash {
                    let known: &$Key = $known;
                    hasher.hash(known)
                }
            }
        )*
    };
}

stable! {
    str, "a known key of some length";
    String, &String::from("a known key of some length");
    [u8], b"a known key of some length";
    Vec<u8>, &b"a known key of some length".to_vec();
    u32, &0x0102_0304;
    u64, &0x0102_0304_0506_0708;
    u128, &0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_and_borrowed_keys_hash_alike_and_other_types_differ() {
        let hasher = KeyHasher::with_key(&[1; 16]);
        fn hash<K: StableKey + ?Sized>(hasher: &KeyHasher) -> KeyHash {
            K::hash_of_known_key(hasher)
        }
        assert_eq!(hash::<str>(&hasher), hash::<String>(&hasher));
        assert_eq!(hash::<[u8]>(&hasher), hash::<Vec<u8>>(&hasher));
        assert_ne!(hash::<str>(&hasher), hash::<[u8]>(&hasher));
        assert_ne!(hash::<u32>(&hasher), hash::<u64>(&hasher));
    }
}
