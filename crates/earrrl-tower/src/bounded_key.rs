//! A bound on the length of keys that keeps different clients apart.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// The longest key that the layer passes to an engine, in bytes. [`bounded_key`] shortens longer
/// keys.
pub const MAX_KEY_LEN: usize = 4096;

/// The beginning of a shortened key. It is visible ASCII, so that such keys can be recognised in
/// Redis and in logs.
const PREFIX: &[u8] = b"long-key:sha256:";

/// The length of a shortened key: the prefix and a digest of 32 bytes in hexadecimal.
const SHORTENED_LEN: usize = PREFIX.len() + 64;

/// Returns the key unless it is longer than [`MAX_KEY_LEN`], else `long-key:sha256:` and its
/// SHA-256 digest in hexadecimal.
///
/// If a rule skipped long keys, a client could evade its limit by sending one; if it truncated
/// them, two clients could share a limit. Two different keys have the same result only if their
/// digests collide: a short key that looks like a result is replaced by its digest too. No secret
/// is involved, so all servers compute the same keys.
///
/// ```
/// use earrrl_tower::{MAX_KEY_LEN, bounded_key};
/// assert_eq!(bounded_key(b"alice"), &b"alice"[..]);
/// let long = bounded_key(&[b'a'; MAX_KEY_LEN + 1]);
/// assert!(long.starts_with(b"long-key:sha256:"));
/// assert_ne!(bounded_key(&long), long);
/// ```
#[inline]
pub fn bounded_key(key: &[u8]) -> Cow<'_, [u8]> {
    if is_kept(key) {
        Cow::Borrowed(key)
    } else {
        Cow::Owned(shortened(key).to_vec())
    }
}

/// Returns true if a key is not shortened.
#[inline]
pub(crate) fn is_kept(key: &[u8]) -> bool {
    key.len() <= MAX_KEY_LEN && (key.len() != SHORTENED_LEN || !key.starts_with(PREFIX))
}

#[cold]
pub(crate) fn shortened(key: &[u8]) -> [u8; SHORTENED_LEN] {
    let mut text = [0; SHORTENED_LEN];
    let (prefix, hexadecimal) = text.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(PREFIX);
    for (pair, byte) in hexadecimal.chunks_exact_mut(2).zip(Sha256::digest(key)) {
        pair.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 15)]);
    }
    text
}

const fn hex_digit(value: u8) -> u8 {
    b"0123456789abcdef"[value as usize]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_up_to_the_bound_stay_as_they_are() {
        for len in [0, 1, SHORTENED_LEN, MAX_KEY_LEN] {
            let key = vec![b'l'; len];
            assert!(
                matches!(bounded_key(&key), Cow::Borrowed(same) if same == key),
                "{len}"
            );
        }
        assert_eq!(bounded_key(PREFIX), PREFIX);
    }

    /// The digest is that of `python3 -c 'import hashlib; print(hashlib.sha256(b"a"*4097).hexdigest())'`.
    #[test]
    fn longer_keys_become_their_digest() {
        let expected: &[u8] =
            b"long-key:sha256:4e369b5618643c3abddd027b650bfa54810be3b418028a7c9d82299a59d008e8";
        assert_eq!(bounded_key(&[b'a'; MAX_KEY_LEN + 1]), expected);
    }

    #[test]
    fn no_two_keys_share_a_result() {
        let mut keys: Vec<Vec<u8>> = vec![b"a".to_vec(), vec![b'a'; MAX_KEY_LEN]];
        let mut long = vec![b'a'; MAX_KEY_LEN + 1];
        keys.push(long.clone());
        long[MAX_KEY_LEN] = b'b';
        keys.push(long);
        // Another client's shortened key, as a client might send it, shortened again and again.
        for step in 2..6 {
            keys.push(bounded_key(&keys[step]).into_owned());
        }
        let results: HashSet<_> = keys
            .iter()
            .map(|key| bounded_key(key).into_owned())
            .collect();
        assert_eq!(results.len(), keys.len());
        assert!(results.iter().all(|result| result.len() <= MAX_KEY_LEN));
    }
}
