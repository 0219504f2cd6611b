//! An index of lists of conditions, which finds a list by the attributes of a request without
//! comparing every list.
//!
//! A list is indexed under one of its conditions that names single values or networks. Lists that
//! have only conditions on text prefixes cannot be indexed, and are compared one by one.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::attribute::{Condition, IndexKey, address};

/// The positions of the lists that are indexed under one value; mostly a single position.
type Places = Vec<u32>;

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
    texts: HashMap<Box<str>, Places>,
    networks: HashMap<IpNet, Places>,
    /// The lengths of the prefixes of all indexed networks.
    lengths: Vec<u8>,
}

impl ConditionIndex {
    /// Adds the list of conditions at the position `place`. Lists must be added in ascending order
    /// of position.
    pub fn add(&mut self, place: usize, conditions: &[Condition]) {
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        let indexed = conditions.iter().find_map(|one| Some((one, one.index_keys()?)));
        let Some((condition, keys)) = indexed else { return self.others.push(place) };
        let by_value = self.attribute(&condition.attribute);
        for key in keys {
            by_value.add(key, place);
        }
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
        for by_value in &self.attributes {
            if let Some(value) = value(&by_value.attribute) {
                by_value.each(value, |places| {
                    let mut sooner = places.iter().take_while(|place| **place < first);
                    first = sooner.find(|place| holds(**place as usize)).copied().unwrap_or(first);
                });
            }
        }
        let mut sooner = self.others.iter().take_while(|place| **place < first);
        first = sooner.find(|place| holds(**place as usize)).copied().unwrap_or(first);
        (first != u32::MAX).then_some(first as usize)
    }

    fn attribute(&mut self, name: &str) -> &mut ByValue {
        let known = self.attributes.iter().position(|by_value| by_value.attribute == name);
        let place = known.unwrap_or_else(|| {
            self.attributes.push(ByValue {
                attribute: name.to_owned(),
                texts: HashMap::new(),
                networks: HashMap::new(),
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
            IndexKey::Text(text) => self.texts.entry(text.into()).or_default().push(place),
            IndexKey::Network(network) => {
                let network = network.trunc();
                if !self.lengths.contains(&network.prefix_len()) {
                    self.lengths.push(network.prefix_len());
                }
                self.networks.entry(network).or_default().push(place);
            }
        }
    }

    /// Calls `visit` with the positions of lists indexed under a value, and under each network that
    /// contains it.
    fn each(&self, value: &[u8], mut visit: impl FnMut(&[u32])) {
        if let Some(places) = str::from_utf8(value).ok().and_then(|text| self.texts.get(text)) {
            visit(places);
        }
        let Some(address) = (!self.networks.is_empty()).then(|| address(value)).flatten() else {
            return;
        };
        for length in &self.lengths {
            if let Some(places) = network(address, *length).and_then(|at| self.networks.get(&at)) {
                visit(places);
            }
        }
    }
}

fn network(address: IpAddr, length: u8) -> Option<IpNet> {
    Some(IpNet::new(address, length).ok()?.trunc())
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
        config.rules[0].overrides.iter().map(|entry| entry.conditions.clone()).collect()
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
        lists.iter().enumerate().for_each(|(place, list)| index.add(place, list));
        assert_eq!(index.compared(), 1);
        let clients = ["", "10.1.2.3", "10.9.9.9", "2001:db8::7", "2001:db8::/64", "192.0.2.1"];
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
        lists.iter().enumerate().for_each(|(place, list)| index.add(place, list));
        let compared = std::cell::Cell::new(0);
        let value = |name: &str| (name == "user").then_some(&b"u321"[..]);
        let holds = |place| {
            compared.set(compared.get() + 1);
            place == 321
        };
        assert_eq!((index.find(value, holds), compared.get()), (Some(321), 1));
    }
}
