//! A compact map from byte strings to positions, for configurations that list a hundred thousand values.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher as _;

/// A map from byte strings to ascending lists of positions, mostly of one position. Beside the bytes of a
/// string, an entry takes about 24 bytes.
#[derive(Debug, Default)]
pub(super) struct ByteMap {
    /// All strings, one after the other.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// The indexes of `entries`, by the hashes of their strings.
    index: HashTable<u32>,
    /// The later positions of the entries that have several, by the indexes of the entries.
    more: HashMap<u32, Vec<u32>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Entry {
    /// The end of the string in `bytes`, which begins where the string before it ends.
    end: usize,
    /// The first of the string's positions.
    place: u32,
}

impl ByteMap {
    /// Adds a position of a string. The positions of each string must be added in ascending order.
    pub(super) fn add(&mut self, string: &[u8], place: u32) {
        if let Some(entry) = self.find(string) {
            self.more.entry(entry).or_default().push(place);
            return;
        }
        let Ok(entry) = u32::try_from(self.entries.len()) else {
            return;
        };
        self.bytes.extend_from_slice(string);
        self.entries.push(Entry {
            end: self.bytes.len(),
            place,
        });
        let Self {
            bytes,
            entries,
            index,
            hasher,
            ..
        } = self;
        let hash = |entry: &u32| hasher.hash_one(string_at(bytes, entries, *entry));
        index.insert_unique(hash(&entry), entry, hash);
    }

    /// Calls `visit` with the positions of a string.
    pub(super) fn each(&self, string: &[u8], mut visit: impl FnMut(&[u32])) {
        let Some(entry) = self.find(string) else {
            return;
        };
        visit(&[self.entries[entry as usize].place]);
        if !self.more.is_empty()
            && let Some(places) = self.more.get(&entry)
        {
            visit(places);
        }
    }

    /// Returns true if there are no strings.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Frees the memory that was reserved for further strings.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// Returns the index of a string's entry.
    fn find(&self, string: &[u8]) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let is_it = |entry: &u32| string_at(&self.bytes, &self.entries, *entry) == string;
        self.index
            .find(self.hasher.hash_one(string), is_it)
            .copied()
    }
}

fn string_at<'a>(bytes: &'a [u8], entries: &[Entry], entry: u32) -> &'a [u8] {
    let entry = entry as usize;
    let start = if entry == 0 {
        0
    } else {
        entries[entry - 1].end
    };
    &bytes[start..entries[entry].end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(map: &ByteMap, string: &str) -> Vec<u32> {
        let mut found = Vec::new();
        map.each(string.as_bytes(), |places| found.extend_from_slice(places));
        found
    }

    #[test]
    fn every_string_has_its_positions() {
        let mut map = ByteMap::default();
        assert!(places(&map, "0").is_empty());
        let lists = 5000;
        for list in 0..lists {
            map.add(list.to_string().as_bytes(), list);
            map.add((list % 10).to_string().as_bytes(), lists + list);
        }
        map.add(b"", 20_000);
        map.shrink();
        for list in 0..lists {
            let more = (lists..2 * lists).filter(|place| list < 10 && place % 10 == list);
            let expected: Vec<u32> = std::iter::once(list).chain(more).collect();
            assert_eq!(places(&map, &list.to_string()), expected);
        }
        assert_eq!(places(&map, ""), [20_000]);
        assert!(places(&map, "5000").is_empty());
    }
}
