//! The fields that identify a client: `--key`.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;

use crate::format::{Field, Record};
use crate::line::Skip;
use crate::line::{is_client, last_of_list};
use earrrl_tower::Prefixes;

/// A key that is computed from a whole record instead of from named fields.
pub trait RecordKey: fmt::Debug + Send + Sync {
    /// Returns the key of a record. If `strict`, a client must be an address or a host name.
    ///
    /// # Errors
    /// Returns the reason for skipping a record that has no key.
    fn key(&self, record: &Record<'_>, strict: bool) -> Result<Vec<u8>, Skip>;

    /// Returns the parts of the key that a format with these fields does not have.
    fn missing(&self, fields: &[&str]) -> Vec<String>;
}

/// The fields of a request that identify its client.
#[derive(Debug, Clone)]
pub struct LogKey {
    /// One field, or several that make a compound key.
    fields: Vec<Field>,
    /// Replaces the fields if present.
    computed: Option<Arc<dyn RecordKey>>,
}

impl LogKey {
    /// Creates a key that `key` computes from whole records.
    pub fn computed(key: Arc<dyn RecordKey>) -> Self {
        Self { fields: Vec::new(), computed: Some(key) }
    }

    /// Returns the parts of a computed key that a format with these fields does not have.
    pub fn missing(&self, known: &[&str]) -> Vec<String> {
        self.computed.as_ref().map_or(Vec::new(), |key| key.missing(known))
    }

    /// The fields.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }
}

impl Display for LogKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.fields.iter().map(Field::name).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for LogKey {
    type Err = String;

    /// Field names with commas between them.
    fn from_str(text: &str) -> Result<Self, String> {
        let names = || text.split(',').map(str::trim);
        if names().any(str::is_empty) {
            return Err("expected names with commas between them, such as client,user".into());
        }
        Ok(Self { fields: names().map(Field::new).collect(), computed: None })
    }
}

/// Makes keys of records, in memory of its own.
#[derive(Debug)]
pub struct KeyMaker {
    key: LogKey,
    prefixes: Prefixes,
    /// True if a client must be an address or a host name.
    strict: bool,
    address: Vec<u8>,
    compound: Vec<u8>,
}

impl KeyMaker {
    /// Creates a maker of such keys that cuts addresses to these prefixes.
    pub fn new(key: LogKey, prefixes: Prefixes, strict: bool) -> Self {
        Self { key, prefixes, strict, address: Vec::new(), compound: Vec::new() }
    }

    /// Returns the definition of the keys.
    pub fn key(&self) -> &LogKey {
        &self.key
    }

    /// Hands the record's key to `take`.
    ///
    /// Parts of a compound key stand behind each other with commas between them; a comma or
    /// backslash in a part has a backslash before it, so different parts never make the same key.
    ///
    /// # Errors
    /// [`Skip::Key`] where a part is missing, [`Skip::Client`] where a client is none.
    #[inline]
    pub fn with<T>(
        &mut self,
        record: &Record<'_>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Skip> {
        let (prefixes, strict, address) = (self.prefixes, self.strict, &mut self.address);
        if let [field] = &self.key.fields[..] {
            let part = record.get(field).ok_or(Skip::Key)?;
            if is_address(field, record) {
                return Ok(take(client(&part, prefixes, strict, address)?));
            }
            return Ok(take(&part));
        }
        if let Some(computed) = &self.key.computed {
            return Ok(take(&computed.key(record, strict)?));
        }
        self.compound.clear();
        for (place, field) in self.key.fields.iter().enumerate() {
            let part = record.get(field).ok_or(Skip::Key)?;
            let part = match is_address(field, record) {
                true => client(&part, prefixes, strict, address)?,
                false => &part,
            };
            if place > 0 {
                self.compound.push(b',');
            }
            append_escaped(part, &mut self.compound);
        }
        Ok(take(&self.compound))
    }
}

#[inline]
fn is_address(field: &Field, record: &Record<'_>) -> bool {
    matches!(field, Field::Client | Field::Forwarded) && record.has_addresses()
}

/// The client of an address or a list of them.
#[inline]
fn client<'a>(
    text: &'a [u8],
    prefixes: Prefixes,
    strict: bool,
    buffer: &'a mut Vec<u8>,
) -> Result<&'a [u8], Skip> {
    let last = last_of_list(text);
    // No host's name has a colon; an address that has one is read once.
    if strict && last.contains(&b':') {
        return prefixes.key_of_address(last, buffer).ok_or(Skip::Client);
    }
    if strict && !is_client(last) {
        return Err(Skip::Client);
    }
    Ok(prefixes.key_of_text(last, buffer))
}

fn append_escaped(part: &[u8], out: &mut Vec<u8>) {
    for &byte in part {
        if matches!(byte, b',' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::envelope::Envelope;
    use crate::format::{Format, Hints, Parser};

    fn key(names: &str, format: Format, lines: &[&str]) -> Option<String> {
        let mut parser = Parser::new((Envelope::None, format), &Hints::default(), UNIX_EPOCH);
        let mut maker = KeyMaker::new(names.parse().unwrap(), Prefixes::default(), true);
        let mut found = None;
        for line in lines {
            if let Some(record) = parser.parse(line.as_bytes()).ok()? {
                let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
                found = maker.with(&record, text).ok();
            }
        }
        found
    }

    #[test]
    fn one_field_or_several() {
        let line = r#"2001:db8::1 - a,b\ [17/May/2015:10:05:03 +0000] "GET /x HTTP/1.1" 200 5"#;
        let get = |names| key(names, Format::Common, &[line]);
        assert_eq!(get("client").as_deref(), Some("2001:db8::/64"));
        assert_eq!(get("user").as_deref(), Some(r"a,b\"));
        assert_eq!(get("client, user,path").as_deref(), Some(r"2001:db8::/64,a\,b\\,/x"));
        assert_eq!(get("client,agent"), None);
    }

    #[test]
    fn names_are_not_empty() {
        assert_eq!("client, agent".parse::<LogKey>().unwrap().to_string(), "client,agent");
        for text in ["", ",", "client,", "client,,user"] {
            assert!(text.parse::<LogKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn prefixes_never_apply_to_csv() {
        let lines = ["time,key", "1,2001:db8::1"];
        assert_eq!(key("client", Format::Csv, &lines).as_deref(), Some("2001:db8::1"));
    }
}
