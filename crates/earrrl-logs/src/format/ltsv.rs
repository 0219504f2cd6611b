//! Labelled tab-separated values, such as this line, which has `|` in place of tabs:
//! `time:[17/May/2015:10:05:03 +0000]|host:192.0.2.7|status:200`.
//!
//! Servers escape tabs in values, so that a client cannot add a pair. The labels are those of
//! ltsv.org, where `host` is the client.

use std::borrow::Cow;

use super::hints::ChosenFields;
use super::{Field, LineFields, field, path_of, target};
use crate::envelope::Message;
use crate::line::time::{self, Stamp};
use crate::line::{Skip, is_address, last_of_list};

/// Parses lines of labelled values.
pub(super) struct Parser(pub(super) ChosenFields);

/// A line of labelled values.
pub(super) struct Line<'a> {
    line: &'a [u8],
    /// The name of the field with the client, if the user has chosen one.
    client: Option<&'a str>,
}

impl Parser {
    pub(super) fn parse<'a>(&'a mut self, message: Message<'a>) -> Result<(Stamp, Line<'a>), Skip> {
        let Self(chosen) = self;
        let line = message.text;
        if !line.contains(&b'\t') {
            return Err(Skip::Malformed);
        }
        let bare = |text: &'a [u8]| {
            let inner = text
                .strip_prefix(b"[")
                .and_then(|text| text.strip_suffix(b"]"));
            inner.unwrap_or(text)
        };
        let time = match &chosen.time {
            Some(name) => Stamp::of(time::parse_any, bare(find(line, name).unwrap_or_default())),
            None => field::TIMES
                .into_iter()
                .find_map(|name| Stamp::of(time::parse_recent, bare(find(line, name)?))),
        };
        let time = time.ok_or(Skip::Time)?;
        let client = chosen.client.as_deref();
        Ok((time, Line { line, client }))
    }
}

impl<'a> LineFields<'a> for Line<'a> {
    fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        let find = |name: &str| find(self.line, name);
        let usual = || field::first(field, find);
        let value = match (field, self.client) {
            (Field::Client, Some(name)) => find(name),
            // A label `host` that is no address is that of the site, if another field has an address.
            (Field::Client, None) => find("host")
                .filter(|host| is_address(last_of_list(host)))
                .or_else(usual)
                .or_else(|| find("host")),
            (Field::Path, _) => usual().or_else(|| target(find("req")?)).map(path_of),
            (Field::Forwarded, _) => find("forwardedfor").or_else(usual),
            (Field::Named(name), _) => match name.as_str() {
                "agent" | "user_agent" => find("ua").or_else(|| find(name)),
                "bytes" => find("size").or_else(|| find(name)),
                _ => find(name),
            },
            (Field::User, _) => usual(),
        };
        value.map(Cow::Borrowed)
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
