//! Keys: `prefix:{client}:rule:a`, where the last letter is the algorithm's.
//!
//! The braces are Cluster's hash tag, so all of a client's records share a slot; the prefix ends with the version of
//! the records. Clients are any bytes, so braces, `%` and bytes that do not print are escaped as `%7B`; or a client
//! is replaced by a keyed hash, if its name must not be in Redis.

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The version of the records: changed whenever an old reader would misread a new record.
const VERSION: &str = "1";

/// The form of clients' names in keys.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientKeys {
    /// The name itself, escaped: keys can be read and listed.
    #[default]
    Escaped,
    /// 128 bits of an HMAC-SHA-256 under this secret: names, addresses and tokens stay out of Redis.
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

/// The keys of an engine.
#[derive(Debug)]
pub(crate) struct Keys {
    prefix: String,
    clients: ClientKeys,
}

impl Keys {
    pub(crate) fn new(prefix: &str, clients: ClientKeys) -> Self {
        Self { prefix: format!("{prefix}{VERSION}:"), clients }
    }

    /// Returns the key of a client's record; `name` is that of a rule and its algorithm.
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

    /// Returns the key of the claims on a client, in its record's slot.
    pub(crate) fn claims(&self, record: &[u8]) -> Vec<u8> {
        [record, b":near"].concat()
    }

    /// Returns the key of a node's receipts, in the slot of this tag.
    pub(crate) fn receipts(&self, tag: &str, node: &str) -> String {
        format!("{}receipts:{{{tag}}}:{node}", self.prefix)
    }

    /// Returns the key of the set of nodes that are alive.
    pub(crate) fn nodes(&self) -> String {
        format!("{}nodes", self.prefix)
    }

    /// Returns the key of the hash of a rule's earlier parameters.
    pub(crate) fn history(&self, rule: &str) -> String {
        format!("{}rules:{rule}", self.prefix)
    }

    /// Returns a key by which the engine probes whether Redis takes a write.
    pub(crate) fn probe(&self, number: u32) -> String {
        format!("{}probe:{{{number}}}", self.prefix)
    }
}

/// Writes an escaped name. An empty tag would hash the whole key, so the empty name is a lone `%`.
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

/// Returns the slot of a key: that of the text between its first braces.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let tag = &key[open + 1..];
        let close = tag.iter().position(|byte| *byte == b'}')?;
        (close > 0).then_some(&tag[..close])
    });
    crc16(tag.unwrap_or(key)) % 16_384
}

/// Returns the CRC-16/XMODEM.
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
        // From the Cluster specification, and `CLUSTER KEYSLOT`.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"somekey"), 11_058);
        assert_eq!(slot(b"foo{hash_tag}"), 2515);
        assert_eq!(slot(b"x{hash_tag}:y"), slot(b"{hash_tag}"));
    }
}
