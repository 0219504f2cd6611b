//! The `[server.names]` table: the names of clients that the server keeps.

use std::fmt;

use earrrl::internal::NameOptions;

use super::table::{Field, Table};

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
    pub(super) fn read(table: &Table<'_>) -> Self {
        let mut options = NameOptions::default();
        let count = |name, bounds, usual: usize| {
            table
                .number(name, bounds)
                .map_or(usual, |count| count as usize)
        };
        options.from = table
            .field("from")
            .and_then(fraction)
            .unwrap_or(options.from);
        options.capacity = count("capacity", 0..=1_000_000, options.capacity);
        options.max_bytes = count("max_bytes", 16..=4096, options.max_bytes);
        Self {
            options,
            hmac_key: hmac_key(table).map(HmacKey),
        }
    }
}

/// Returns the number from 0 to 1 in a field.
fn fraction(field: Field<'_>) -> Option<f64> {
    let number = field.digits()?.parse();
    let number = number.ok().filter(|number| (0.0..=1.0).contains(number));
    number.or_else(|| field.expected("a number from 0 to 1"))
}

/// Returns the secret key of an HMAC, from the field `hmac_key` or its file.
pub(super) fn hmac_key(table: &Table<'_>) -> Option<String> {
    let (field, key) = table.secret("hmac_key", "hmac_key_file")?;
    if key.len() < MIN_KEY_LEN {
        return field.refuse(format!(
            "{} bytes; expected {MIN_KEY_LEN} or more",
            key.len()
        ));
    }
    Some(key)
}
