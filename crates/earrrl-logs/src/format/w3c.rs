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
//! Times are in UTC. CloudFront separates columns by tabs, IIS by blanks.

use super::{Field, Hints};
use crate::line::Skip;
use crate::line::time;

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
pub struct Record<'a> {
    /// The time of the request, in nanoseconds since the Unix epoch.
    pub time: u64,
    line: &'a [u8],
    names: &'a [Vec<u8>],
}

impl Parser {
    /// Parses a line; returns `None` if the line is a directive.
    pub(super) fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Option<Record<'a>>, Skip> {
        if line.first() == Some(&b'#') {
            if let Some(names) = names(line) {
                self.names = names;
            }
            return Ok(None);
        }
        if columns(line).count() != self.names.len() {
            return Err(Skip::Malformed);
        }
        let mut record = Record {
            time: 0,
            line,
            names: &self.names,
        };
        record.time = record.when().ok_or(Skip::Time)?;
        Ok(Some(record))
    }
}

impl<'a> Record<'a> {
    /// Returns the value of a column; `None` if it is missing, empty or `-`.
    pub fn get(&self, field: &Field) -> Option<&'a [u8]> {
        match field {
            Field::Client => self.first(&CLIENTS),
            Field::User => self.first(&USERS),
            Field::Path => self.first(&PATHS).map(super::path_of),
            Field::Forwarded => self.first(&FORWARDED),
            Field::Named(name) => self.column(name),
        }
    }

    fn first(&self, names: &[&str]) -> Option<&'a [u8]> {
        names.iter().find_map(|name| self.column(name))
    }

    fn column(&self, name: &str) -> Option<&'a [u8]> {
        let named = |known: &Vec<u8>| known.eq_ignore_ascii_case(name.as_bytes());
        // If several columns have the same name, the last one counts, as in the other formats.
        let value = columns(self.line).nth(self.names.iter().rposition(named)?)?;
        (value != b"-" && !value.is_empty()).then_some(value)
    }

    /// Returns the time of the request, from the columns `date` and `time`, or from `ts`.
    fn when(&self) -> Option<u64> {
        match self.column("date") {
            Some(date) => time::parse_iso(&[date, b" ", self.column("time")?].concat()),
            None => time::parse_recent(self.column("ts")?),
        }
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

fn names(line: &[u8]) -> Option<Vec<Vec<u8>>> {
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

fn columns(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let separator = if line.contains(&b'\t') { b'\t' } else { b' ' };
    line.split(move |&b| b == separator)
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
}
