//! Labelled tab-separated values, such as this line, which has `|` in place of tabs:
//! `time:[17/May/2015:10:05:03 +0000]|host:192.0.2.7|status:200`.
//!
//! Servers escape tabs in values, so that a client cannot add a pair. The labels are those of
//! ltsv.org, where `host` is the client.

use super::hints::ChosenFields;
use super::{Field, names, path_of, target};
use crate::line::{Skip, time};

/// A line of labelled values.
pub struct Record<'a> {
    /// The time of the request, in nanoseconds since the Unix epoch.
    pub time: u64,
    line: &'a [u8],
    /// The name of the field with the client, if the user has chosen one.
    client: Option<&'a str>,
}

/// Parses a line.
///
/// # Errors
/// Returns the reason for skipping the line if it is not a request.
pub(super) fn parse<'a>(line: &'a [u8], chosen: &'a ChosenFields) -> Result<Record<'a>, Skip> {
    if !line.contains(&b'\t') {
        return Err(Skip::Malformed);
    }
    let bare = |text: &'a [u8]| {
        text.strip_prefix(b"[")
            .and_then(|text| text.strip_suffix(b"]"))
            .unwrap_or(text)
    };
    let time = match &chosen.time {
        Some(name) => find(line, name).map(bare).and_then(time::parse_any),
        None => names::TIMES
            .into_iter()
            .find_map(|name| time::parse_recent(bare(find(line, name)?))),
    };
    Ok(Record {
        time: time.ok_or(Skip::Time)?,
        line,
        client: chosen.client.as_deref(),
    })
}

impl<'a> Record<'a> {
    /// Returns the value of a field.
    pub fn get(&self, field: &Field) -> Option<&'a [u8]> {
        let find = |name: &str| find(self.line, name);
        match (field, self.client) {
            (Field::Client, Some(name)) => find(name),
            (Field::Client, None) => find("host").or_else(|| names::first(field, find)),
            (Field::Path, _) => {
                let request = || target(find("req")?);
                names::first(field, find).or_else(request).map(path_of)
            }
            (Field::Forwarded, _) => find("forwardedfor").or_else(|| names::first(field, find)),
            (Field::Named(name), _) => match name.as_str() {
                "agent" | "user_agent" => find("ua").or_else(|| find(name)),
                "bytes" => find("size").or_else(|| find(name)),
                _ => find(name),
            },
            (Field::User, _) => names::first(field, find),
        }
    }
}

/// Returns the value with this label. If several values have the label, the last is used.
fn find<'a>(line: &'a [u8], label: &str) -> Option<&'a [u8]> {
    let value = |pair: &'a [u8]| pair.strip_prefix(label.as_bytes())?.strip_prefix(b":");
    let found = line.rsplit(|&byte| byte == b'\t').find_map(value)?;
    (!found.is_empty() && found != b"-").then_some(found)
}

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    #[test]
    fn labels() {
        let line = "time:[17/May/2015:12:05:03 +0200]\thost:192.0.2.7\tforwardedfor:9.9.9.9, 192.0.2.8\treq:GET /a?b=host:9.9.9.9 HTTP/1.1\tstatus:200\tua:x \\thost:9.9.9.9 \tuser:ann";
        let found = last_request(line, &["client", "forwarded_for", "path", "status", "user"]);
        assert_eq!(
            found,
            (
                Format::Ltsv,
                "1431857103 192.0.2.7 192.0.2.8 /a 200 ann".into()
            )
        );
        let epoch = "time:1431857103.5\tremote_addr:192.0.2.7\turi:/a";
        assert_eq!(
            last_request(epoch, &["client", "path"]).1,
            "1431857103.5 192.0.2.7 /a"
        );
    }
}
