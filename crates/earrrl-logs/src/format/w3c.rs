//! The W3C extended log format, as IIS and CloudFront write it, and Zeek's similar format. The
//! directive `#Fields:` names the columns.
//!
//! ```text
//! #Fields: date time c-ip cs-username cs-method cs-uri-stem sc-status
//! 2024-01-01 12:00:00 192.0.2.7 - GET /index.html 200
//! ```
//!
//! Zeek writes `#fields`, and has the time since the epoch in the column `ts`.
//!
//! Times are in UTC. CloudFront separates columns by tabs, IIS by blanks, other programs by several of
//! them, with quotes around values that contain blanks.

use std::borrow::Cow;

use super::{Field, Hints, LineFields, field};
use crate::envelope::Message;
use crate::line::Skip;
use crate::line::time::{self, Stamp};

/// The names of columns for each field, in order of preference.
const CLIENTS: [&str; 3] = ["c-ip", "c-dns", "id.orig_h"];
const USERS: [&str; 3] = ["cs-username", "x-cs-username", "username"];
const PATHS: [&str; 3] = ["cs-uri-stem", "cs-uri", "uri"];
const FORWARDED: [&str; 3] = ["x-forwarded-for", "cs(x-forwarded-for)", "x-forwarded"];

/// Parses lines in the W3C extended log format.
#[derive(Default)]
pub(super) struct Parser {
    names: Vec<Vec<u8>>,
}

/// A line and the names of its columns.
pub(super) struct Line<'a> {
    line: &'a [u8],
    /// True if quotes enclose values with blanks.
    is_quoted: bool,
    names: &'a [Vec<u8>],
}

impl Parser {
    pub(super) fn parse<'a>(
        &'a mut self,
        message: Message<'a>,
    ) -> Result<Option<(Stamp, Line<'a>)>, Skip> {
        let line = message.text;
        if line.first() == Some(&b'#') {
            if let Some(names) = column_names(line) {
                self.names = names;
            }
            return Ok(None);
        }
        // A value of a client may begin with a quote, so quotes count only where the columns do not fit
        // without them.
        let fits = |is_quoted: &bool| columns(line, *is_quoted).count() == self.names.len();
        let is_quoted = [false, true].into_iter().find(fits).ok_or(Skip::Columns)?;
        let names = &self.names;
        let line = Line {
            line,
            is_quoted,
            names,
        };
        let time = line.when().ok_or(Skip::Time)?;
        Ok(Some((time, line)))
    }
}

impl<'a> LineFields<'a> for Line<'a> {
    fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        let column = |name: &str| self.column(name);
        let first = |names: &[&str]| names.iter().find_map(|name| self.column(name));
        let value = match field {
            Field::Client => field::address(&CLIENTS, column),
            Field::User => first(&USERS),
            Field::Path => first(&PATHS).map(super::path_of),
            Field::Forwarded => first(&FORWARDED),
            Field::Named(name) => column(name),
        };
        value.map(Cow::Borrowed)
    }
}

impl<'a> Line<'a> {
    /// Returns the value of a column; `None` if it is missing, empty or `-`.
    fn column(&self, name: &str) -> Option<&'a [u8]> {
        let named = |known: &Vec<u8>| known.eq_ignore_ascii_case(name.as_bytes());
        // If several columns have the same name, the last one counts, as in the other formats.
        let place = self.names.iter().rposition(named)?;
        let value = columns(self.line, self.is_quoted).nth(place)?;
        (value != b"-" && !value.is_empty()).then_some(value)
    }

    /// Returns the time of the request, from the columns `date` and `time`, or from `ts`.
    fn when(&self) -> Option<Stamp> {
        let nanos = match self.column("date") {
            Some(date) => time::parse_iso(&[date, b" ", self.column("time")?].concat()),
            None => time::parse_recent(self.column("ts")?),
        };
        nanos.map(Stamp::utc)
    }
}

/// Returns true if a line is a directive with which logs in this format start.
pub(super) fn is_header(line: &[u8], _: &Hints) -> bool {
    let directives: [&[u8]; 6] = [
        b"#Fields:",
        b"#Version:",
        b"#Software:",
        b"#Date:",
        b"#Start-Date:",
        b"#separator ",
    ];
    directives
        .iter()
        .any(|directive| line.starts_with(directive))
}

fn column_names(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let names = line
        .strip_prefix(b"#Fields:")
        .or_else(|| line.strip_prefix(b"#fields\t"))?;
    let names = names.split(u8::is_ascii_whitespace);
    Some(
        names
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect(),
    )
}

/// Returns the columns of a line: those between tabs, if it has any, or else those between runs of blanks. If
/// `is_quoted` is true, a column that begins with a quote goes on to the next quote before a blank.
fn columns(line: &[u8], is_quoted: bool) -> impl Iterator<Item = &[u8]> {
    let has_tabs = line.contains(&b'\t');
    let mut rest = Some(if has_tabs { line } else { line.trim_ascii() });
    std::iter::from_fn(move || {
        let text = rest?;
        if has_tabs {
            let (column, behind) = split(text, memchr::memchr(b'\t', text));
            rest = behind;
            return Some(column);
        }
        let end = match text.strip_prefix(b"\"") {
            Some(inner) if is_quoted => memchr::memmem::find(inner, b"\" ").map(|at| at + 2),
            _ => memchr::memchr(b' ', text),
        };
        let (column, behind) = split(text, end);
        rest = behind.map(<[u8]>::trim_ascii_start);
        let inner = column
            .strip_prefix(b"\"")
            .and_then(|inner| inner.strip_suffix(b"\""));
        Some(inner.unwrap_or(column))
    })
}

/// Splits a text at a separator of one byte; `None` means that it has none.
fn split(text: &[u8], at: Option<usize>) -> (&[u8], Option<&[u8]>) {
    match at {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use crate::format::{Format, last_request};

    #[test]
    fn the_last_of_equal_names_counts() {
        let log = "#Fields: date time c-ip c-ip\n2024-01-01 12:00:00 9.9.9.9 192.0.2.7";
        let found = last_request(log, &["client"]);
        assert_eq!(found, (Format::W3c, "1704110400 192.0.2.7".into()));
    }

    #[test]
    fn iis() {
        let log = "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n\
            #Date: 2024-01-01 00:00:00\n\
            #Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) sc-status time-taken X-Forwarded-For\n\
            2024-01-01 12:00:00 10.0.0.1 GET /a x=1 443 ann 2001:db8::1 curl/8 200 15 9.9.9.9,192.0.2.9";
        let found = last_request(
            log,
            &["client", "user", "path", "sc-status", "x-forwarded-for"],
        );
        let expected = "1704110400 2001:db8::1 ann /a 200 192.0.2.9";
        assert_eq!(found, (Format::W3c, expected.into()));
    }

    #[test]
    fn zeek() {
        let log = "#separator \\x09\n#path\thttp\n#fields\tts\tuid\tid.orig_h\tid.orig_p\tmethod\turi\tuser_agent\tusername\n\
            #types\ttime\tstring\taddr\tport\tstring\tstring\tstring\tstring\n\
            1431857103.500000\tC1\t192.0.2.7\t4711\tGET\t/a?b\tan agent 9.9.9.9\t-";
        let found = last_request(log, &["client", "path", "method", "user"]);
        assert_eq!(
            found,
            (Format::W3c, "1431857103.5 192.0.2.7 /a GET -".into())
        );
    }

    #[test]
    fn cloudfront() {
        let log = "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer)\n\
            2024-01-01\t12:00:00\tFRA2\t2390\t192.0.2.7\tGET\td111.cloudfront.net\t/a%20b\t200\t-";
        let found = last_request(log, &["client", "path", "sc-bytes", "cs(Referer)"]);
        assert_eq!(
            found,
            (Format::W3c, "1704110400 192.0.2.7 /a%20b 2390 -".into())
        );
    }

    #[test]
    fn blanks_and_quotes() {
        let log = "#Fields: date time c-ip cs-username cs(User-Agent) sc-status\n";
        for (line, agent) in [
            ("2024-01-01  12:00:00   192.0.2.7 ann curl/8 200 ", "curl/8"),
            (
                r#"2024-01-01 12:00:00 192.0.2.7 "ann" "curl 8, 9.9.9.9  x" 200"#,
                "curl 8, 9.9.9.9  x",
            ),
            (
                r#"2024-01-01 12:00:00 192.0.2.7 ann "curl"8 200"#,
                r#""curl"8"#,
            ),
            (r#"2024-01-01 12:00:00 192.0.2.7 ann "curl 200"#, r#""curl"#),
        ] {
            let found = last_request(
                &format!("{log}{line}"),
                &["client", "user", "cs(User-Agent)", "sc-status"],
            );
            let expected = format!("1704110400 192.0.2.7 ann {agent} 200");
            assert_eq!(found, (Format::W3c, expected), "{line}");
        }
    }
}
