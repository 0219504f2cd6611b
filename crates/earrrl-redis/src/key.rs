//! The format of keys: `prefix:{client}:rule:a1b2c3d4e`, in which the last letter stands for the algorithm, and the
//! digits for the parameters without which a record cannot be interpreted.
//!
//! On a Cluster a tag of its own comes first, as in `prefix:{17}{client}:rule:a1b2c3d4e`. Redis chooses the
//! slot by the first braces, so all records of a client are in the same slot, and clients share 1024
//! slots. Each node's receipts are a key in every slot that it uses; fewer slots are fewer keys.
//!
//! The prefix ends with the version of the record format. A client's name may contain any bytes, so
//! braces, `%` and non-printing bytes are escaped, like `%7B`. If names must not be stored in Redis,
//! a keyed hash replaces them.

use std::collections::BTreeMap;

use crc16::{State, XMODEM};
use earrrl::HoldId;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The version of the record format. It is changed whenever an older version would misinterpret a
/// new record.
const VERSION: &str = "2";
/// The number of slots of a Cluster, and the number of tags. Each tag stands for 16 slots in a row,
/// of which it uses one.
const SLOTS: u16 = 16_384;
const TAGS: usize = 1024;
const SLOTS_A_TAG: u16 = SLOTS / TAGS as u16;

/// The form of clients' names in keys.
///
/// ```
/// use earrrl_redis::{ClientKeys, Options};
///
/// let mut options = Options::new("redis://127.0.0.1:6379");
/// options.clients = ClientKeys::Hashed(b"a secret of all servers".to_vec());
/// assert!(!format!("{options:?}").contains("secret"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientKeys {
    /// The escaped name. Keys can be read and listed.
    #[default]
    Escaped,
    /// A 128-bit HMAC-SHA-256 of the name under this secret. Names, addresses and tokens are not
    /// stored in Redis.
    Hashed(Vec<u8>),
}

impl std::fmt::Debug for ClientKeys {
    /// Omits the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Escaped => "Escaped",
            Self::Hashed(_) => "Hashed(…)",
        })
    }
}

/// Composes the keys of an engine.
#[derive(Debug)]
pub(crate) struct Keys {
    prefix: String,
    clients: ClientKeys,
    /// The tags of a Cluster's keys; empty without a Cluster.
    tags: Vec<u32>,
}

impl Keys {
    pub(crate) fn new(prefix: &str, clients: ClientKeys, cluster: bool) -> Self {
        let tags = if cluster { tags() } else { Vec::new() };
        Self {
            prefix: format!("{prefix}{VERSION}:"),
            clients,
            tags,
        }
    }

    /// Returns the tags of receipts, one for each slot in which there are records.
    pub(crate) fn receipt_tags(&self) -> &[u32] {
        if self.tags.is_empty() {
            &[0]
        } else {
            &self.tags
        }
    }

    /// Returns the key of a client's record. `name` consists of the rule's name and the tag of its records.
    pub(crate) fn record(&self, client: &[u8], name: &str) -> Vec<u8> {
        let client = match &self.clients {
            ClientKeys::Escaped => escaped(client),
            ClientKeys::Hashed(secret) => hashed(secret, client),
        };
        let prefix = &self.prefix;
        if self.tags.is_empty() {
            return format!("{prefix}{{{client}}}:{name}").into_bytes();
        }
        let tag = self.tags[place_of(slot(client.as_bytes()))];
        format!("{prefix}{{{tag}}}{{{client}}}:{name}").into_bytes()
    }

    /// Returns the key of the numbers of the last contributions to a client's record, in the same slot.
    pub(crate) fn added(&self, record: &[u8]) -> Vec<u8> {
        [record, b":added"].concat()
    }

    /// Returns the key of the entries that servers share beside records; `None` if names of clients must not be
    /// stored in Redis.
    pub(crate) fn shared_entries(&self) -> Option<Vec<u8>> {
        let is_readable = self.clients == ClientKeys::Escaped;
        is_readable.then(|| format!("{}overrides", self.prefix).into_bytes())
    }

    /// Returns the key of a reservation, in the slot of the tag at this place.
    pub(crate) fn hold(&self, id: HoldId, place: usize) -> Vec<u8> {
        let tag = self.receipt_tags().get(place).copied().unwrap_or_default();
        format!("{}hold:{{{tag}}}:{id}", self.prefix).into_bytes()
    }

    /// Returns the key of what commits of a client's reservations have given back to a bucket.
    pub(crate) fn given(&self, record: &[u8]) -> Vec<u8> {
        [record, b":given-back"].concat()
    }

    /// Returns the key of a node's receipts, in the slot of this tag.
    pub(crate) fn receipts(&self, tag: u32, node: &str) -> String {
        format!("{}receipts:{{{tag}}}:{node}", self.prefix)
    }

    /// Returns a key with which the engine tests if Redis accepts a write.
    pub(crate) fn probe(&self, number: u32) -> String {
        format!("{}probe:{{{number}}}", self.prefix)
    }
}

/// Returns the place of a slot's tag in the list of tags.
pub(crate) fn place_of(slot: u16) -> usize {
    usize::from(slot / SLOTS_A_TAG)
}

/// Returns the tags: for each of the slots' ranges the smallest number that is in the range if it is
/// used as a hash tag.
fn tags() -> Vec<u32> {
    let mut tags = BTreeMap::new();
    let mut number = 0;
    while tags.len() < TAGS {
        let place = place_of(slot(number.to_string().as_bytes()));
        tags.entry(place).or_insert(number);
        number += 1;
    }
    tags.into_values().collect()
}

/// Returns an escaped name. That of the empty name is `%`, since Redis ignores an empty hash tag and
/// hashes the whole key.
fn escaped(client: &[u8]) -> String {
    if client.is_empty() {
        return "%".to_owned();
    }
    let mut escaped = String::with_capacity(client.len());
    for &byte in client {
        if byte.is_ascii_graphic() && !b"{}%".contains(&byte) {
            escaped.push(byte.into());
        } else {
            escaped += &format!("%{byte:02X}");
        }
    }
    escaped
}

fn hashed(secret: &[u8], client: &[u8]) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        return String::new();
    };
    mac.update(client);
    let hash = mac.finalize().into_bytes();
    hash[..16]
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect()
}

/// Returns the slot of a key: the hash of the text between its first braces.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let tag = &key[open + 1..];
        let close = tag.iter().position(|byte| *byte == b'}')?;
        (close > 0).then_some(&tag[..close])
    });
    State::<XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(client: &[u8]) -> String {
        String::from_utf8(Keys::new("earrrl", ClientKeys::Escaped, false).record(client, "login"))
            .unwrap()
    }

    #[test]
    fn clients_are_escaped_and_never_end_the_tag() {
        assert_eq!(key(b"192.0.2.7"), "earrrl2:{192.0.2.7}:login");
        assert_eq!(key(b"a}b{%\n"), "earrrl2:{a%7Db%7B%25%0A}:login");
        assert_eq!(key(b""), "earrrl2:{%}:login");
        assert_ne!(key(b"%"), key(b""));
    }

    #[test]
    fn hashed_clients_don_t_show() {
        let keys = Keys::new("earrrl", ClientKeys::Hashed(b"secret".to_vec()), false);
        let key = String::from_utf8(keys.record(b"alice", "login")).unwrap();
        assert!(!key.contains("alice") && key.len() == "earrrl2:{}:login".len() + 32);
        let other = Keys::new("earrrl", ClientKeys::Hashed(b"other".to_vec()), false);
        assert_ne!(key.as_bytes(), other.record(b"alice", "login"));
    }

    #[test]
    fn a_cluster_has_keys_in_few_slots() {
        let keys = Keys::new("earrrl", ClientKeys::Escaped, true);
        let key = |client: u32| keys.record(client.to_string().as_bytes(), "login");
        let slots: std::collections::HashSet<_> =
            (0..100_000).map(|client| slot(&key(client))).collect();
        let places: std::collections::HashSet<_> =
            slots.iter().map(|slot| place_of(*slot)).collect();
        assert_eq!((slots.len(), places.len()), (TAGS, TAGS), "spread evenly");
        let name = String::from_utf8(key(7)).unwrap();
        assert!(
            name.starts_with("earrrl2:{") && name.ends_with("}{7}:login"),
            "{name}"
        );
    }

    #[test]
    fn slots_are_those_of_redis() {
        // The expected values are from the Cluster specification and from `CLUSTER KEYSLOT`.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"somekey"), 11_058);
        assert_eq!(slot(b"foo{hash_tag}"), 2515);
        assert_eq!(slot(b"x{hash_tag}:y"), slot(b"{hash_tag}"));
    }
}
