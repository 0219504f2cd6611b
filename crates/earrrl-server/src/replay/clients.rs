//! Every key seen, each under a small number.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Bytes of all keys together.
const MOST: usize = 1 << 32;

/// Keys in the order of their first request.
///
/// The hash is keyed at random on each run. That is weaker than a pseudo-random function, but
/// whoever wrote the log can't see how long one run of this tool took, so can't choose against it.
pub(crate) struct Clients {
    numbers: HashTable<u32>,
    hasher: RandomState,
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`.
    ends: Vec<usize>,
}

impl Clients {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            numbers: HashTable::new(),
            hasher: RandomState::default(),
            bytes: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// The number of `key`, a new one if it has not been seen; `None` where there is no room.
    #[inline]
    pub(crate) fn number(&mut self, key: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let known = |&number: &u32| slice(&self.bytes, &self.ends, number) == key;
        if let Some(&number) = self.numbers.find(hash, known) {
            return Some(number);
        }
        let number = u32::try_from(self.ends.len()).ok()?;
        if key.len() > MOST - self.bytes.len() {
            return None;
        }
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
        let (bytes, ends, hasher) = (&self.bytes, &self.ends, &self.hasher);
        let rehash = |&number: &u32| hasher.hash_one(slice(bytes, ends, number));
        self.numbers.insert_unique(hash, number, rehash);
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
    fn a_key_keeps_its_number() {
        let mut clients = Clients::new();
        let keys: Vec<String> = (0..10_000).map(|n| format!("{:x}", n * 7919)).collect();
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
