//! Every key seen, each under a small number.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Bytes of all keys together.
const MOST: usize = 1 << 32;

/// Bytes of a key that stand in the table itself: an IPv6 network has 23 at most.
const SHORT: usize = 27;

/// The length of a longer key, in its label.
const LONG: u8 = u8::MAX;

/// Keys in the order of their first request.
///
/// The hash is keyed at random on each run. That is weaker than a pseudo-random function, but
/// whoever wrote the log can't see how long one run of this tool took, so can't choose against it.
#[derive(Default)]
pub(crate) struct Clients {
    table: HashTable<Entry>,
    hasher: RandomState,
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`.
    ends: Vec<usize>,
}

/// What a client is found by: the hash of its key, and the key itself where it is short.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    hash: u64,
    text: Text,
}

/// Length and bytes; of a long key its hash.
type Text = [u8; SHORT + 1];

/// Half a cache line, so that finding a client takes one place of the table's and no other memory.
struct Entry {
    text: Text,
    number: u32,
}

impl Label {
    /// The label of a key.
    #[inline]
    pub(crate) fn new(key: &[u8], hasher: &RandomState) -> Self {
        let hash = hasher.hash_one(key);
        let mut text = [0; SHORT + 1];
        if key.len() <= SHORT {
            text[0] = key.len() as u8;
            text[1..=key.len()].copy_from_slice(key);
        } else {
            text[0] = LONG;
            text[1..9].copy_from_slice(&hash.to_ne_bytes());
        }
        Self { hash, text }
    }
}

impl Clients {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// What makes labels.
    pub(crate) fn hasher(&self) -> RandomState {
        self.hasher.clone()
    }

    /// The number of `key`, a new one if it has not been seen; `None` where there is no room.
    #[cfg(any(feature = "serve", test))]
    pub(crate) fn number(&mut self, key: &[u8]) -> Option<u32> {
        self.labelled(&Label::new(key, &self.hasher), key)
    }

    /// The number of a key with its label, a new one if it has not been seen; `None` where there is no room.
    pub(crate) fn labelled(&mut self, label: &Label, key: &[u8]) -> Option<u32> {
        self.find(label, key).or_else(|| self.insert(label, key))
    }

    /// The number of a key that has been seen.
    #[inline]
    pub(crate) fn find(&self, label: &Label, key: &[u8]) -> Option<u32> {
        let known = |entry: &Entry| {
            entry.text == label.text && (label.text[0] != LONG || self.key(entry.number) == key)
        };
        self.table.find(label.hash, known).map(|entry| entry.number)
    }

    #[cold]
    fn insert(&mut self, label: &Label, key: &[u8]) -> Option<u32> {
        let number = u32::try_from(self.ends.len()).ok()?;
        if key.len() > MOST - self.bytes.len() {
            return None;
        }
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
        let hasher = &self.hasher;
        let rehash = |entry: &Entry| match entry.text {
            [LONG, a, b, c, d, e, f, g, h, ..] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            text => hasher.hash_one(&text[1..=usize::from(text[0])]),
        };
        self.table.insert_unique(label.hash, Entry { text: label.text, number }, rehash);
        Some(number)
    }

    /// The key with this number.
    pub(crate) fn key(&self, number: u32) -> &[u8] {
        slice(&self.bytes, &self.ends, number)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}

#[inline]
fn slice<'a>(bytes: &'a [u8], ends: &[usize], number: u32) -> &'a [u8] {
    let number = number as usize;
    let start = if number == 0 { 0 } else { ends[number - 1] };
    &bytes[start..ends[number]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_half_a_cache_line() {
        assert_eq!(size_of::<Entry>(), 32);
    }

    #[test]
    fn a_key_keeps_its_number() {
        let mut clients = Clients::new();
        let key = |n: u64| format!("{:x}", n * 7919) + &"-".repeat(n as usize % 40);
        let keys: Vec<String> = (0..10_000).map(key).collect();
        for _ in 0..2 {
            for (number, key) in (0..).zip(&keys) {
                assert_eq!(clients.number(key.as_bytes()), Some(number));
            }
        }
        assert_eq!(clients.number(b""), Some(10_000));
        assert_eq!(clients.len(), 10_001);
        assert_eq!(clients.key(10_000), b"");
        assert_eq!(clients.key(0), b"0");
    }
}
