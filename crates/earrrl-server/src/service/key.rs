//! Keys of several parts, joined so that no two different clients share one.
//!
//! A key of one part is that part. Of several, each is written with its length before it, as a
//! netstring: `9:192.0.2.7,5:alice,`.
//!
//! A key that is longer than [`MAX_KEY_LEN`] is stored as its digest, [`bounded`]. It is never refused:
//! clients choose the length of most keys, and a proxy serves a request whose check failed.

use std::borrow::Cow;
use std::io::Write as _;

use smallvec::SmallVec;

pub use earrrl_tower::{MAX_KEY_LEN, bounded_key as bounded};

/// A key, short ones without an allocation.
pub type Key = SmallVec<[u8; 96]>;

/// Returns the key that is stored for an owned one.
pub fn bounded_owned(key: Key) -> Key {
    match bounded(&key) {
        Cow::Owned(digest) => Key::from_vec(digest),
        Cow::Borrowed(_) => key,
    }
}

/// Joins the parts of a key.
pub fn join<'a>(parts: impl ExactSizeIterator<Item = &'a [u8]>) -> Key {
    let mut key = Key::new();
    let single = parts.len() == 1;
    for part in parts {
        if !single {
            // Writing to memory can't fail.
            let _ = write!(key, "{}:", part.len());
        }
        key.extend_from_slice(part);
        if !single {
            key.push(b',');
        }
    }
    key
}

/// Returns the parts of a key that [`join`] made of `count`; `None` for any other.
pub fn split(key: &[u8], count: usize) -> Option<SmallVec<[&[u8]; 4]>> {
    if count == 1 {
        return Some(SmallVec::from_slice(&[key]));
    }
    let mut parts = SmallVec::new();
    let mut rest = key;
    while !rest.is_empty() {
        let digits = rest.iter().position(|&byte| byte == b':').filter(|&at| at <= 9)?;
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
        assert_eq!(joined(&[b"192.0.2.7", b"alice"])[..], b"9:192.0.2.7,5:alice,"[..]);
        assert_ne!(joined(&[b"a", b"b,c"]), joined(&[b"a,b", b"c"]));
    }

    #[test]
    fn what_was_not_joined_is_not_split() {
        for key in
            ["alice", "5:alice", "5:alice,", "6:alice,0:,", "x:a,0:,", "99999999999:a,", "-1:,0:,"]
        {
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
