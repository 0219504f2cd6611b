//! An index of lists of conditions, which finds a list by the attributes of a request without
//! comparing every list.
//!
//! A list is indexed under one of its conditions that names single values or networks. Lists that
//! have only conditions on text prefixes cannot be indexed, and are compared one by one.
//!
//! The values are kept in a compact map from byte strings to positions, for configurations that list a hundred
//! thousand of them.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use ipnet::IpNet;
use smallvec::SmallVec;

use super::attribute::{Condition, IndexKey, address};

/// An index of lists of conditions. The first list whose conditions all hold is the match.
#[derive(Debug, Default)]
pub struct ConditionIndex {
    attributes: Vec<ByValue>,
    /// The positions of the lists that are compared one by one, in ascending order.
    others: Vec<u32>,
}

/// The positions of the lists that are indexed under values of one attribute.
#[derive(Debug)]
struct ByValue {
    attribute: String,
    texts: ByteMap,
    /// The positions under networks, by their [`network_key`]s.
    networks: ByteMap,
    /// The lengths of the prefixes of all indexed networks.
    lengths: Vec<u8>,
}

impl ConditionIndex {
    /// Adds the list of conditions at the position `place`. Lists must be added in ascending order
    /// of position. Returns the index of the condition under which the list is found: that condition
    /// holds for every value by which [`find`](Self::find) finds the list.
    pub fn add(&mut self, place: usize, conditions: &[Condition]) -> Option<usize> {
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        let mut each = conditions.iter().enumerate();
        let Some((nth, keys)) = each.find_map(|(nth, one)| Some((nth, one.index_keys()?))) else {
            self.others.push(place);
            return None;
        };
        let by_value = self.attribute(&conditions[nth].attribute);
        for key in keys {
            by_value.add(key, place);
        }
        Some(nth)
    }

    /// Frees the memory that was reserved for further lists.
    pub fn shrink(&mut self) {
        for by_value in &mut self.attributes {
            by_value.texts.shrink();
            by_value.networks.shrink();
        }
    }

    /// Returns the names of the attributes by whose values lists are found.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        self.attributes
            .iter()
            .map(|by_value| by_value.attribute.as_str())
    }

    /// Returns the number of lists that are compared one by one because they cannot be indexed.
    pub fn compared(&self) -> usize {
        self.others.len()
    }

    /// Returns the first position for which `holds` returns true. `holds` is called only for the
    /// lists that the index cannot rule out.
    pub fn find<'v>(
        &self,
        value: impl Fn(&str) -> Option<&'v [u8]>,
        holds: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut first = u32::MAX;
        let mut visit = |places: &[u32]| {
            let mut sooner = places.iter().take_while(|place| **place < first);
            let found = sooner.find(|place| holds(**place as usize));
            first = found.copied().unwrap_or(first);
        };
        for by_value in &self.attributes {
            if let Some(value) = value(&by_value.attribute) {
                by_value.each(value, &mut visit);
            }
        }
        visit(&self.others);
        (first != u32::MAX).then_some(first as usize)
    }

    fn attribute(&mut self, name: &str) -> &mut ByValue {
        let known = self
            .attributes
            .iter()
            .position(|by_value| by_value.attribute == name);
        let place = known.unwrap_or_else(|| {
            self.attributes.push(ByValue {
                attribute: name.to_owned(),
                texts: ByteMap::default(),
                networks: ByteMap::default(),
                lengths: Vec::new(),
            });
            self.attributes.len() - 1
        });
        &mut self.attributes[place]
    }
}

impl ByValue {
    fn add(&mut self, key: IndexKey<'_>, place: u32) {
        match key {
            IndexKey::Text(text) => self.texts.add(text.as_bytes(), place),
            IndexKey::Network(network) => {
                if !self.lengths.contains(&network.prefix_len()) {
                    self.lengths.push(network.prefix_len());
                }
                self.networks.add(&network_key(network), place);
            }
        }
    }

    /// Calls `visit` with the positions of lists indexed under a value, and under each network that
    /// contains it.
    fn each(&self, value: &[u8], mut visit: impl FnMut(&[u32])) {
        self.texts.each(value, &mut visit);
        let Some(address) = (!self.networks.is_empty())
            .then(|| address(value))
            .flatten()
        else {
            return;
        };
        for length in &self.lengths {
            if let Some(network) = network(address, *length) {
                self.networks.each(&network_key(network), &mut visit);
            }
        }
    }
}

fn network(address: IpAddr, length: u8) -> Option<IpNet> {
    IpNet::new(address, length).ok()
}

/// Returns the length of a network's prefix, and the bytes of the network's first address.
fn network_key(network: IpNet) -> SmallVec<[u8; 17]> {
    let mut key = SmallVec::from_slice(&[network.prefix_len()]);
    match network.network() {
        IpAddr::V4(address) => key.extend_from_slice(&address.octets()),
        IpAddr::V6(address) => key.extend_from_slice(&address.octets()),
    }
    key
}

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
    use crate::config::Config;

    /// Returns the conditions of a rule's overrides, each written as `key = { … }` in a
    /// configuration.
    fn overrides(keys: &[&str]) -> Vec<Vec<Condition>> {
        let rule = "[[rule]]\nname = \"r\"\nlimit = \"gcra 1/s burst=1\"\n\
                    key = [\"client\", \"user\", \"attribute:plan\"]\n";
        let one = |key: &&str| {
            format!("[[rule.override]]\nkey = {{ {key} }}\nlimit = \"gcra 2/s burst=2\"\n")
        };
        let text = format!("{rule}{}", keys.iter().map(one).collect::<String>());
        let config = Config::parse(&text, "f").unwrap();
        config.rules[0]
            .overrides
            .iter()
            .map(|entry| entry.conditions.clone())
            .collect()
    }

    #[test]
    fn the_index_finds_the_first_list_that_holds() {
        let lists = overrides(&[
            r#"user = "alice", "attribute:plan" = "pro*""#,
            r#"client = "10.1.2.3""#,
            r#"user = "guest-*""#,
            r#"client = ["10.0.0.0/8", "2001:db8::/32"]"#,
            r#"user = ["alice", "bob"]"#,
            r#""attribute:plan" = "pro""#,
        ]);
        let mut index = ConditionIndex::default();
        for (place, list) in lists.iter().enumerate() {
            index.add(place, list);
        }
        assert_eq!(index.compared(), 1);
        let clients = [
            "",
            "10.1.2.3",
            "10.9.9.9",
            "2001:db8::7",
            "2001:db8::/64",
            "192.0.2.1",
        ];
        for client in clients {
            for user in ["", "alice", "bob", "guest-7"] {
                for plan in ["", "pro", "pro-plus"] {
                    let value = |name: &str| match name {
                        "client" => Some(client.as_bytes()),
                        "user" => Some(user.as_bytes()),
                        "plan" => Some(plan.as_bytes()),
                        _ => None,
                    };
                    let meets = |one: &Condition| {
                        value(&one.attribute).is_some_and(|value| one.holds(value))
                    };
                    let expected = lists.iter().position(|list| list.iter().all(meets));
                    let holds = |place: usize| lists[place].iter().all(meets);
                    assert_eq!(index.find(value, holds), expected, "{client} {user} {plan}");
                }
            }
        }
    }

    #[test]
    fn few_of_many_lists_are_compared() {
        let keys: Vec<String> = (0..500).map(|nth| format!("user = \"u{nth}\"")).collect();
        let lists = overrides(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        let mut index = ConditionIndex::default();
        for (place, list) in lists.iter().enumerate() {
            index.add(place, list);
        }
        let compared = std::cell::Cell::new(0);
        let value = |name: &str| (name == "user").then_some(&b"u321"[..]);
        let holds = |place| {
            compared.set(compared.get() + 1);
            place == 321
        };
        assert_eq!((index.find(value, holds), compared.get()), (Some(321), 1));
    }
}

#[cfg(test)]
mod byte_map_tests {
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
