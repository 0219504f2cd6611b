//! The `[server.names]` table: the names of clients that the server keeps.

use std::fmt;

use earrrl::NameOptions;

use super::file;
use super::problem::Problems;
use super::value::{number, secret};

/// The length of the shortest key of the HMAC, in bytes.
const MIN_KEY_LEN: usize = 16;

/// The validated `[server.names]` table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamesConfig {
    /// The bounds of each rule's directory of names. With a capacity of 0, no names are kept.
    pub options: NameOptions,
    /// The key of the HMAC that replaces names; `None` if names are kept as they are.
    pub hmac_key: Option<HmacKey>,
}

/// The secret key of an HMAC, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct HmacKey(pub String);

impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacKey(…)")
    }
}

impl NamesConfig {
    pub(super) fn validate(file: &file::NamesTable, problems: &mut Problems) -> Self {
        let mut options = NameOptions::default();
        if let Some(from) = &file.from {
            options.from = *from.get_ref();
            if !(0.0..=1.0).contains(&options.from) {
                problems.add(
                    from.span(),
                    format!("from: {} is not from 0 to 1", options.from),
                );
            }
        }
        let mut count = |name, field: &file::Placed<u64>, default: usize, bounds| {
            number(name, field.as_ref(), default as u64, bounds, problems) as usize
        };
        options.capacity = count("capacity", &file.capacity, options.capacity, 0..=1_000_000);
        options.max_bytes = count("max_bytes", &file.max_bytes, options.max_bytes, 16..=4096);
        Self {
            options,
            hmac_key: hmac_key(file, problems),
        }
    }
}

fn hmac_key(file: &file::NamesTable, problems: &mut Problems) -> Option<HmacKey> {
    let inline = file.hmac_key.as_ref();
    let from_file = file.hmac_key_file.as_ref();
    let (span, key) = secret("hmac_key", inline, from_file, problems)?;
    let key = key.trim().to_owned();
    if key.len() < MIN_KEY_LEN {
        problems.add(
            span,
            format!("hmac_key: {} bytes; at least {MIN_KEY_LEN}", key.len()),
        );
    }
    Some(HmacKey(key))
}
