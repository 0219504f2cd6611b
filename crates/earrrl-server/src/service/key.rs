//! Keys of several parts, joined so that two different clients never have the same key.
//!
//! A key of one part is that part. A key of several parts has the length in front of each part, as
//! a netstring: `9:192.0.2.7,5:alice,`.
//!
//! A key that is longer than [`MAX_KEY_LEN`] is replaced by its digest, see [`bounded`]. It is not
//! refused, since clients choose the length of most keys, and a proxy lets a request pass if its
//! check fails.

use std::borrow::Cow;
use std::io::Write as _;

use smallvec::SmallVec;

pub use earrrl_tower::{MAX_KEY_LEN, bounded_key as bounded};

/// A client's key. Short keys need no allocation.
pub type Key = SmallVec<[u8; 96]>;

/// Returns the key itself, or its digest if the key is too long to be stored.
pub fn bounded_owned(key: Key) -> Key {
    match bounded(&key) {
        Cow::Owned(digest) => Key::from_vec(digest),
        Cow::Borrowed(_) => key,
    }
}

/// Joins the parts of a key.
pub fn join<P: AsRef<[u8]>>(parts: impl ExactSizeIterator<Item = P>) -> Key {
    let mut key = Key::new();
    let single = parts.len() == 1;
    for part in parts {
        let part = part.as_ref();
        if !single {
            // Writing to memory does not fail.
            let _ = write!(key, "{}:", part.len());
        }
        key.extend_from_slice(part);
        if !single {
            key.push(b',');
        }
    }
    key
}

/// Returns the parts of a key that [`join`] made of `count` parts; `None` if it is not such a key.
pub fn split(key: &[u8], count: usize) -> Option<SmallVec<[&[u8]; 4]>> {
    if count == 1 {
        return Some(SmallVec::from_slice(&[key]));
    }
    let mut parts = SmallVec::new();
    let mut rest = key;
    while !rest.is_empty() {
        let digits = rest
            .iter()
            .position(|&byte| byte == b':')
            .filter(|&at| at <= 9)?;
        let length: usize = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        let (part, tail) = rest[digits + 1..].split_at_checked(length)?;
        rest = tail.strip_prefix(b",")?;
        parts.push(part);
    }
    (parts.len() == count).then_some(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined(parts: &[&[u8]]) -> Key {
        join(parts.iter().copied())
    }

    #[test]
    fn one_part_is_itself_and_several_carry_their_lengths() {
        assert_eq!(joined(&[b"alice"])[..], b"alice"[..]);
        assert_eq!(
            joined(&[b"192.0.2.7", b"alice"])[..],
            b"9:192.0.2.7,5:alice,"[..]
        );
        assert_ne!(joined(&[b"a", b"b,c"]), joined(&[b"a,b", b"c"]));
    }

    #[test]
    fn what_was_not_joined_is_not_split() {
        for key in [
            "alice",
            "5:alice",
            "5:alice,",
            "6:alice,0:,",
            "x:a,0:,",
            "99999999999:a,",
            "-1:,0:,",
        ] {
            assert_eq!(split(key.as_bytes(), 2), None, "{key}");
        }
    }

    proptest! {
        #[test]
        fn parts_come_back(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5)) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let key = joined(&parts);
            let back = split(&key, parts.len()).unwrap();
            prop_assert_eq!(back.as_slice(), &parts[..]);
        }
    }
}
