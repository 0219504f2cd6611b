//! Reads the spellings of one path from `testdata/paths/spellings.txt`.
#![allow(unreachable_pub)]

use std::path::Path;

/// The path that all spellings stand for.
pub const PATH: &str = "/v1/login";

/// A request target as a client sends it.
pub struct Spelling {
    pub shown: String,
    pub target: Vec<u8>,
    /// The applications that treat the spelling as the path.
    pub takers: Vec<String>,
}

pub fn all() -> Vec<Spelling> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/paths/spellings.txt");
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let spelling = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let shown = words.next().unwrap();
        Spelling {
            target: bytes(&shown),
            shown,
            takers: words.collect(),
        }
    };
    lines.map(spelling).collect()
}

/// Returns the bytes of a text in which `{A0}`, for example, stands for that byte.
fn bytes(shown: &str) -> Vec<u8> {
    let mut parts = shown.split('{');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        let (byte, rest) = part.split_once('}').unwrap();
        bytes.push(u8::from_str_radix(byte, 16).unwrap());
        bytes.extend(rest.as_bytes());
    }
    bytes
}
