//! The key that identifies the client of a logged request, as `--key` sets it.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::Arc;

use crate::format::{Field, Record};
use crate::line::Skip;
use crate::line::{is_client, is_dotted, last_of_list};
use earrrl_tower::Prefixes;

/// A way to compute the key from a whole record instead of from named fields.
///
/// ```
/// use earrrl_logs::format::{Field, Record};
/// use earrrl_logs::line::Skip;
/// use earrrl_logs::reading::{LogKey, RecordKey};
/// use std::sync::Arc;
///
/// /// The first part of the path, such as `/shop`.
/// #[derive(Debug)]
/// struct Tenant;
///
/// impl RecordKey for Tenant {
///     fn key(&self, record: &Record<'_>, _strict: bool) -> Result<Vec<u8>, Skip> {
///         let path = record.get(&Field::Path).ok_or(Skip::Key)?;
///         path.split(|byte| *byte == b'/').nth(1).map(<[u8]>::to_vec).ok_or(Skip::Key)
///     }
///
///     fn missing(&self, fields: &[&str]) -> Vec<String> {
///         if fields.contains(&"path") { Vec::new() } else { vec!["path".to_owned()] }
///     }
/// }
/// assert_eq!(LogKey::computed(Arc::new(Tenant)).missing(&["client"]), ["path"]);
/// ```
pub trait RecordKey: fmt::Debug + Send + Sync {
    /// Returns the key of a record. If `strict` is true, a client must be an address or a host
    /// name.
    ///
    /// # Errors
    /// Returns the reason for which the record is skipped if it has no key.
    fn key(&self, record: &Record<'_>, strict: bool) -> Result<Vec<u8>, Skip>;

    /// Returns the parts of the key that need fields not in `fields`, the fields of a format.
    fn missing(&self, fields: &[&str]) -> Vec<String>;
}

/// The definition of the key: the fields of a request that identify its client.
///
/// ```
/// use earrrl_logs::reading::LogKey;
///
/// let key: LogKey = "client, user".parse()?;
/// assert_eq!((key.fields().len(), key.to_string().as_str()), (2, "client,user"));
/// assert!("client,".parse::<LogKey>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct LogKey {
    /// The fields whose values form the key; several form a compound key.
    fields: Vec<Field>,
    /// The computation of the key, which replaces `fields` if present.
    computed: Option<Arc<dyn RecordKey>>,
}

impl LogKey {
    /// Creates a definition whose keys `key` computes from whole records.
    pub fn computed(key: Arc<dyn RecordKey>) -> Self {
        Self {
            fields: Vec::new(),
            computed: Some(key),
        }
    }

    /// Returns the parts of a computed key that need fields not in `known`, the fields of a format.
    pub fn missing(&self, known: &[&str]) -> Vec<String> {
        self.computed
            .as_ref()
            .map_or(Vec::new(), |key| key.missing(known))
    }

    /// Returns the fields that form the key; none if the key is computed.
    ///
    /// ```
    /// # use earrrl_logs::{format::Field, reading::LogKey};
    /// assert_eq!("user".parse::<LogKey>()?.fields(), [Field::User]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Parses field names that are separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let names = || text.split(',').map(str::trim);
        if names().any(str::is_empty) {
            return Err("expected names with commas between them, such as client,user".into());
        }
        Ok(Self {
            fields: names().map(Field::new).collect(),
            computed: None,
        })
    }
}

/// Makes the keys of records. It reuses its buffers, so that most keys need no allocation.
#[derive(Debug, Clone)]
pub(crate) struct KeyMaker {
    key: LogKey,
    prefixes: Prefixes,
    /// True if a client must be an address or a host name.
    strict: bool,
    address: Vec<u8>,
    compound: Vec<u8>,
}

impl KeyMaker {
    /// Creates a maker of the keys that `key` defines. Addresses are cut to `prefixes`; if `strict`
    /// is true, a client must be an address or a host name.
    pub(crate) fn new(key: LogKey, prefixes: Prefixes, strict: bool) -> Self {
        Self {
            key,
            prefixes,
            strict,
            address: Vec::new(),
            compound: Vec::new(),
        }
    }

    /// Makes the key of a record and passes it to `take`.
    ///
    /// A compound key has commas between its parts. A comma or backslash within a part is escaped
    /// by a backslash, so that different parts never make the same key.
    ///
    /// # Errors
    /// Returns [`Skip::Key`] if the record lacks a part of the key, and [`Skip::Client`] if a
    /// client is neither an address nor a host name.
    #[inline]
    pub(crate) fn with<T>(
        &mut self,
        record: &Record<'_>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Skip> {
        let prefixes = self.prefixes;
        let strict = self.strict;
        let address = &mut self.address;
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

/// Returns the key of a client, given its address or a list of addresses, of which the last counts.
#[inline]
fn client<'a>(
    text: &'a [u8],
    prefixes: Prefixes,
    strict: bool,
    buffer: &'a mut Vec<u8>,
) -> Result<&'a [u8], Skip> {
    if is_dotted(text) && prefixes.keeps_ipv4() {
        return Ok(text);
    }
    let last = last_of_list(text);
    // Host names contain no colon, so a text with one must be an IPv6 address. Parsing it here
    // avoids parsing it twice.
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
        assert_eq!(
            get("client, user,path").as_deref(),
            Some(r"2001:db8::/64,a\,b\\,/x")
        );
        assert_eq!(get("client,agent"), None);
    }

    #[test]
    fn names_are_not_empty() {
        assert_eq!(
            "client, agent".parse::<LogKey>().unwrap().to_string(),
            "client,agent"
        );
        for text in ["", ",", "client,", "client,,user"] {
            assert!(text.parse::<LogKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn prefixes_never_apply_to_csv() {
        let lines = ["time,key", "1,2001:db8::1"];
        assert_eq!(
            key("client", Format::Csv, &lines).as_deref(),
            Some("2001:db8::1")
        );
    }
}
