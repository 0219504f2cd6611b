//! An index of lists of conditions, which finds a list by the attributes of a request without
//! comparing every list.
//!
//! A list is indexed under one of its conditions that names single values or networks. Lists that
//! have only conditions on text prefixes cannot be indexed, and are compared one by one.

use std::collections::HashMap;

use foldhash::fast::RandomState;
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

/// The positions of lists, in ascending order and mostly one, by what they are indexed under.
type Places<K> = HashMap<K, SmallVec<[u32; 2]>, RandomState>;

/// The positions of the lists that are indexed under values of one attribute.
#[derive(Debug, Default)]
struct ByValue {
    attribute: String,
    /// The positions by texts, which are stored in the map itself. Between the texts of the whole configuration, most
    /// of which is freed after the start, they would keep its memory in use.
    texts: Places<SmallVec<[u8; 23]>>,
    networks: Places<IpNet>,
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
                ..ByValue::default()
            });
            self.attributes.len() - 1
        });
        &mut self.attributes[place]
    }
}

impl ByValue {
    fn add(&mut self, key: IndexKey<'_>, place: u32) {
        let places = match key {
            IndexKey::Text(text) => self.texts.entry(text.as_bytes().into()).or_default(),
            IndexKey::Network(network) => {
                if !self.lengths.contains(&network.prefix_len()) {
                    self.lengths.push(network.prefix_len());
                }
                self.networks.entry(network.trunc()).or_default()
            }
        };
        places.push(place);
    }

    /// Calls `visit` with the positions of lists indexed under a value, and under each network that
    /// contains it.
    fn each(&self, value: &[u8], mut visit: impl FnMut(&[u32])) {
        if let Some(places) = self.texts.get(value) {
            visit(places);
        }
        let Some(address) = (!self.networks.is_empty())
            .then(|| address(value))
            .flatten()
        else {
            return;
        };
        for length in &self.lengths {
            let network = IpNet::new(address, *length).ok();
            if let Some(places) = network.and_then(|network| self.networks.get(&network.trunc())) {
                visit(places);
            }
        }
    }
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
