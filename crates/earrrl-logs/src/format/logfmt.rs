//! Lines of `name=value` pairs, as Heroku's router and many other programs write.
//!
//! `2012-10-11T03:47:20+00:00 heroku[router]: at=info method=GET path="/" host=app.example.org
//! fwd="192.0.2.7" dyno=web.1 connect=1ms service=18ms status=200 bytes=13`
//!
//! The time is in one of the pairs, or at the start of the line.

use std::borrow::Cow;

use super::hints::ChosenFields;
use super::{Field, LineFields, field, path_of};
use crate::envelope::Message;
use crate::line::Skip;
use crate::line::time::{self, Stamp};

/// Parses lines of `name=value` pairs.
pub(super) struct Parser(pub(super) ChosenFields);

/// A line of `name=value` pairs.
pub(super) struct Line<'a> {
    line: &'a [u8],
    /// The name of the field with the client, if the user has chosen one.
    client: Option<&'a str>,
}

impl Parser {
    pub(super) fn parse<'a>(&'a mut self, message: Message<'a>) -> Result<(Stamp, Line<'a>), Skip> {
        let Self(chosen) = self;
        let line = message.text;
        pairs(line).next().ok_or(Skip::Malformed)?;
        let time = match &chosen.time {
            Some(name) => find(line, name).and_then(|text| Stamp::of(time::parse_any, text)),
            None => {
                let recent = |name| Stamp::of(time::parse_recent, find(line, name)?);
                field::TIMES.into_iter().find_map(recent).or(message.time)
            }
        };
        let time = time.ok_or(Skip::Time)?;
        let client = chosen.client.as_deref();
        Ok((time, Line { line, client }))
    }
}

impl<'a> LineFields<'a> for Line<'a> {
    fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        let find = |name: &str| find(self.line, name);
        let value = match (field, self.client) {
            (Field::Client, Some(name)) => find(name),
            (Field::Path, _) => field::first(field, find).map(path_of),
            _ => field::first(field, find),
        };
        value.map(Cow::Borrowed)
    }
}

/// Returns the value of the pair with this name; `None` if it is empty or `-`. If several pairs
/// have the name, the last is used, since programs append pairs of their own.
fn find<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (_, value) = pairs(line)
        .filter(|(known, _)| *known == name.as_bytes())
        .last()?;
    (!value.is_empty() && value != b"-").then_some(value)
}

/// Returns the pairs of a line, without the quotes around the values. A name starts only after a
/// blank, so that a value without blanks cannot contain a pair.
pub(super) fn pairs(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = line;
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_ascii_start();
            let end = memchr::memchr2(b'=', b' ', rest)?;
            let name = &rest[..end];
            if rest[end] == b' ' || name.is_empty() {
                rest = &rest[end + 1..];
                continue;
            }
            let (value, after) = value(&rest[end + 1..]);
            rest = after;
            return Some((name, value));
        }
    })
}

/// Splits a text after the value at its start: a word, or a text in quotes, in which a backslash
/// escapes a quote. The value is returned without its quotes.
fn value(text: &[u8]) -> (&[u8], &[u8]) {
    let Some(inner) = text.strip_prefix(b"\"") else {
        return text.split_at(memchr::memchr(b' ', text).unwrap_or(text.len()));
    };
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'"', b'\\', &inner[at.min(inner.len())..]) {
        at += found;
        if inner[at] == b'"' {
            return (&inner[..at], &inner[at + 1..]);
        }
        at += 2;
    }
    (inner, b"")
}

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    const PAIRS: &str = r#"at=info method=GET path="/a?b=c" host=app.example.org fwd="9.9.9.9, 192.0.2.7" dyno=web.1 connect=1ms status=200 note="x \" client_ip=9.9.9.9 ""#;

    #[test]
    fn heroku() {
        for start in [
            "2012-10-11T03:47:20+00:00 heroku[router]:",
            "<158>1 2012-10-11T03:47:20+00:00 host heroku router -",
        ] {
            let found = last_request(&format!("{start} {PAIRS}"), &["client", "path", "status"]);
            assert_eq!(
                found,
                (Format::Logfmt, "1349927240 192.0.2.7 /a 200".into()),
                "{start}"
            );
        }
    }

    #[test]
    fn a_field_with_the_time() {
        let line = format!("ts=2012-10-11T03:47:20.5Z level=info {PAIRS} client_ip=192.0.2.8");
        let found = last_request(&line, &["client", "level", "nothing"]);
        assert_eq!(
            found,
            (Format::Logfmt, "1349927240.5 192.0.2.8 info -".into())
        );
    }
}
