//! The fixed part of a state file: what its states are, and how they are laid out. It is written
//! when the file is created, copied when the file is opened, and never read from the mapping.
//!
//! | bytes | content |
//! |---|---|
//! | 0–7 | `EARRRL` and two bytes that text editors change |
//! | 8–11 | byte order: 0x01020304 as this machine writes it |
//! | 12–15 | layout version |
//! | 16–27 | slots in a line, lines in a set, bits of a fingerprint |
//! | 28–31 | hash function |
//! | 32–47 | hash key |
//! | 48–55 | the hash of a known key |
//! | 56–63 | sets |
//! | 64–71 | capacity in clients |
//! | 72–79 | a random id, by which reservations know the states that they have charged |
//! | 80–81 | length of the rule's text |
//! | 128–4087 | the rule's text when the file was created; see `rule_text.rs` |
//! | 4088–4095 | checksum of everything before |

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use super::error::StateError;
use crate::algorithm::Limit;
use crate::store::checksum;
use crate::store::table::{LAYOUT, SET_BYTES};

/// The bytes of the fixed part.
pub(super) const FIXED: usize = 4096;
/// The number of the layout. Software of another layout refuses the file.
const VERSION: u32 = 4;
const MAGIC: [u8; 8] = *b"EARRRL\r\x1a";
const BYTE_ORDER: u32 = 0x0102_0304;
/// The numbers after the magic that are the same in every file of this software and machine.
const CONSTANTS: [(&str, u32); 5] = [
    ("byte order", BYTE_ORDER),
    ("layout version", VERSION),
    ("slots in a line", LAYOUT[0]),
    ("lines in a set", LAYOUT[1]),
    ("bits of a fingerprint", LAYOUT[2]),
];
const TEXT: usize = 128;
const CHECKSUM: usize = FIXED - 8;

/// The fixed part of a state file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    /// The number of the hash function.
    pub(super) hash: u32,
    pub(super) key: [u8; 16],
    /// The hash of a known key, which shows that this process hashes as the creator did.
    pub(super) known: u64,
    pub(super) sets: u64,
    pub(super) capacity: u64,
    /// The id of the states in this file.
    pub(super) id: u64,
    /// The rule's text, with every option spelled out.
    pub(super) rule: String,
}

impl FileHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut page = Vec::from(MAGIC);
        let constants = CONSTANTS.map(|(_, number)| number);
        let numbers = constants.iter().chain([&self.hash]);
        page.extend(numbers.flat_map(|number| number.to_ne_bytes()));
        page.extend(self.key);
        let numbers = [self.known, self.sets, self.capacity, self.id];
        page.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        let text = self.rule.as_bytes();
        let text = &text[..text.len().min(CHECKSUM - TEXT)];
        page.extend((text.len() as u16).to_ne_bytes());
        page.resize(TEXT, 0);
        page.extend(text);
        sealed(page, FIXED)
    }

    /// Reads the fixed part of a file that has `bytes` bytes in all, of which `before_sets` precede
    /// the sets.
    pub(super) fn decode(page: &[u8], bytes: u64, before_sets: usize) -> Result<Self, StateError> {
        let header = Self::read(page)?;
        let wanted = header.sets.checked_mul(SET_BYTES as u64);
        let wanted = wanted.and_then(|sets| sets.checked_add(before_sets as u64));
        if wanted != Some(bytes) || header.sets < 2 {
            let expected = wanted.map_or_else(|| "fewer sets".into(), |wanted| wanted.to_string());
            return Err(StateError::fault(
                "length",
                format!("{bytes} bytes"),
                expected,
            ));
        }
        Ok(header)
    }

    fn read(page: &[u8]) -> Result<Self, StateError> {
        if page[..8] != MAGIC {
            let found = format!("{:02x?}", &page[..8]);
            let expected = "the first bytes of a state file";
            return Err(StateError::fault("magic", found, expected));
        }
        for (nth, (field, expected)) in CONSTANTS.into_iter().enumerate() {
            let found = four(page, MAGIC.len() + 4 * nth);
            if found != expected {
                let [found, expected] = [found, expected].map(|number| format!("{number:#x}"));
                return Err(StateError::fault(field, found, expected));
            }
        }
        let found = eight(page, CHECKSUM);
        let expected = checksum(&page[..CHECKSUM]);
        if found != expected {
            let expected = format!("{expected:016x}: the header is damaged");
            return Err(StateError::fault(
                "checksum",
                format!("{found:016x}"),
                expected,
            ));
        }
        let length = usize::from(u16::from_ne_bytes([page[80], page[81]]));
        let rule = page.get(TEXT..TEXT + length).unwrap_or_default();
        Ok(Self {
            hash: four(page, 28),
            key: page[32..48].try_into().unwrap_or_default(),
            known: eight(page, 48),
            sets: eight(page, 56),
            capacity: eight(page, 64),
            id: eight(page, 72),
            rule: String::from_utf8_lossy(rule).into_owned(),
        })
    }
}

pub(super) fn four(page: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(page[at..at + 4].try_into().unwrap_or_default())
}

fn eight(page: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(page[at..at + 8].try_into().unwrap_or_default())
}

/// Returns the part of a file's name that stands for the meaning of its states: the algorithm, the parameters
/// that states depend on, and the version of the file.
pub(super) fn tag_of(limit: &Limit) -> String {
    let (name, parameters) = limit.meaning();
    let meaning = format!("{name} {parameters:?} {VERSION}");
    format!("{:08x}", checksum(meaning.as_bytes()) as u32)
}

/// Returns the bytes, zeros after them, and the checksum of both as the last of `length` bytes.
pub(super) fn sealed(mut bytes: Vec<u8>, length: usize) -> Vec<u8> {
    bytes.resize(length - 8, 0);
    let sum = checksum(&bytes);
    bytes.extend(sum.to_ne_bytes());
    bytes
}

/// Returns the bytes before the checksum, if it is right.
pub(super) fn content(sealed: &[u8]) -> Option<&[u8]> {
    let (content, sum) = sealed.split_last_chunk()?;
    (checksum(content) == u64::from_ne_bytes(*sum)).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FileHeader {
        let rule = "token-bucket 5 refill=1/s".into();
        let hash = 1;
        let key = [7; 16];
        let known = 3;
        let sets = 4;
        let capacity = 40;
        FileHeader {
            hash,
            key,
            known,
            sets,
            capacity,
            id: 9,
            rule,
        }
    }

    const BYTES: u64 = 8192 + 4 * SET_BYTES as u64;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let page = header().encode();
        assert_eq!(FileHeader::decode(&page, BYTES, 8192), Ok(header()));
        for bytes in [0, BYTES - 1, BYTES + 1, u64::MAX] {
            assert_eq!(
                FileHeader::decode(&page, bytes, 8192).unwrap_err().field(),
                "length"
            );
        }
        for sets in [0, 1, u64::MAX / 2] {
            let page = FileHeader { sets, ..header() }.encode();
            assert_eq!(
                FileHeader::decode(&page, BYTES, 8192).unwrap_err().field(),
                "length"
            );
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let page = header().encode();
        for at in 0..FIXED {
            for bit in 0..8 {
                let mut flipped = page.clone();
                flipped[at] ^= 1 << bit;
                assert!(
                    FileHeader::decode(&flipped, BYTES, 8192).is_err(),
                    "bit {bit} of byte {at}"
                );
            }
        }
    }

    #[test]
    fn a_fault_names_its_field() {
        for (at, field) in [
            (0, "magic"),
            (8, "byte order"),
            (12, "layout version"),
            (16, "slots in a line"),
            (20, "lines in a set"),
            (24, "bits of a fingerprint"),
            (28, "checksum"),
            (4000, "checksum"),
            (4090, "checksum"),
        ] {
            let mut page = header().encode();
            page[at] ^= 0x40;
            assert_eq!(
                FileHeader::decode(&page, BYTES, 8192).unwrap_err().field(),
                field
            );
        }
    }
}
