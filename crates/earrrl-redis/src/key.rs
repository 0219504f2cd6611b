//! The format of keys: `prefix:{client}:rule:a`, in which the last letter stands for the algorithm.
//!
//! The braces are Cluster's hash tag, so all records of a client are in the same slot. The prefix
//! ends with the version of the record format. A client's name may contain any bytes, so braces,
//! `%` and non-printing bytes are escaped, like `%7B`. If names must not be stored in Redis, a
//! keyed hash replaces them.

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The version of the record format. It is changed whenever an older version would misinterpret a
/// new record.
const VERSION: &str = "1";

/// The form of clients' names in keys.
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
}

impl Keys {
    pub(crate) fn new(prefix: &str, clients: ClientKeys) -> Self {
        Self { prefix: format!("{prefix}{VERSION}:"), clients }
    }

    /// Returns the key of a client's record. `name` consists of the rule's name and the algorithm's
    /// letter.
    pub(crate) fn record(&self, client: &[u8], name: &str) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + client.len() + name.len() + 3);
        key.extend(self.prefix.as_bytes());
        key.push(b'{');
        match &self.clients {
            ClientKeys::Escaped => escape(client, &mut key),
            ClientKeys::Hashed(secret) => hash(secret, client, &mut key),
        }
        key.extend(b"}:");
        key.extend(name.as_bytes());
        key
    }

    /// Returns the key of nodes' claims on a client, in the same slot as its record.
    pub(crate) fn claims(&self, record: &[u8]) -> Vec<u8> {
        [record, b":near"].concat()
    }

    /// Returns the key of a node's receipts, in the slot of this tag.
    pub(crate) fn receipts(&self, tag: &str, node: &str) -> String {
        format!("{}receipts:{{{tag}}}:{node}", self.prefix)
    }

    /// Returns the key of the set of live nodes.
    pub(crate) fn nodes(&self) -> String {
        format!("{}nodes", self.prefix)
    }

    /// Returns the key of the hash with a rule's earlier parameters.
    pub(crate) fn history(&self, rule: &str) -> String {
        format!("{}rules:{rule}", self.prefix)
    }

    /// Returns a key with which the engine tests if Redis accepts a write.
    pub(crate) fn probe(&self, number: u32) -> String {
        format!("{}probe:{{{number}}}", self.prefix)
    }
}

/// Writes an escaped name. The empty name becomes `%`, since Redis ignores an empty hash tag and
/// hashes the whole key.
fn escape(client: &[u8], key: &mut Vec<u8>) {
    if client.is_empty() {
        key.push(b'%');
    }
    for &byte in client {
        if byte.is_ascii_graphic() && !b"{}%".contains(&byte) {
            key.push(byte);
        } else {
            key.extend([b'%', hex(byte >> 4), hex(byte & 15)]);
        }
    }
}

fn hash(secret: &[u8], client: &[u8], key: &mut Vec<u8>) {
    if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) {
        mac.update(client);
        let digest = mac.finalize().into_bytes();
        key.extend(digest[..16].iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]));
    }
}

fn hex(digit: u8) -> u8 {
    b"0123456789ABCDEF"[usize::from(digit & 15)]
}

/// Returns the slot of a key: the hash of the text between its first braces.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let tag = &key[open + 1..];
        let close = tag.iter().position(|byte| *byte == b'}')?;
        (close > 0).then_some(&tag[..close])
    });
    crc16(tag.unwrap_or(key)) % 16_384
}

/// Returns the CRC-16/XMODEM checksum, which Cluster uses.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(client: &[u8]) -> String {
        String::from_utf8(Keys::new("earrrl", ClientKeys::Escaped).record(client, "login")).unwrap()
    }

    #[test]
    fn clients_are_escaped_and_never_end_the_tag() {
        assert_eq!(key(b"192.0.2.7"), "earrrl1:{192.0.2.7}:login");
        assert_eq!(key(b"a}b{%\n"), "earrrl1:{a%7Db%7B%25%0A}:login");
        assert_eq!(key(b""), "earrrl1:{%}:login");
        assert_ne!(key(b"%"), key(b""));
    }

    #[test]
    fn hashed_clients_don_t_show() {
        let keys = Keys::new("earrrl", ClientKeys::Hashed(b"secret".to_vec()));
        let key = String::from_utf8(keys.record(b"alice", "login")).unwrap();
        assert!(!key.contains("alice") && key.len() == "earrrl1:{}:login".len() + 32);
        let other = Keys::new("earrrl", ClientKeys::Hashed(b"other".to_vec()));
        assert_ne!(key.as_bytes(), other.record(b"alice", "login"));
    }

    #[test]
    fn slots_are_those_of_redis() {
        // The expected values are from the Cluster specification and from `CLUSTER KEYSLOT`.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"somekey"), 11_058);
        assert_eq!(slot(b"foo{hash_tag}"), 2515);
        assert_eq!(slot(b"x{hash_tag}:y"), slot(b"{hash_tag}"));
    }
}
