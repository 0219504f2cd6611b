//! Parsers of log formats, which convert the lines of a log to [`Record`]s.
//!
//! A record finds the value of a field only when the field is read.

mod columns;
mod common;
mod detect;
mod field;
mod hints;
mod json;
mod list;
mod named;
pub mod notation;
mod pairs;
mod pattern;
mod sshd;
mod vendors;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use detect::mostly;
pub(crate) use detect::{LINES, detect, envelope_of};
pub use field::Field;
pub(crate) use field::path_of;
pub use hints::Hints;
pub use list::Format;
use list::Syntax;
pub use pattern::LinePattern;

use crate::envelope::{Envelope, Opener};
use crate::line::time::Stamp;
use crate::line::{Skip, Years};

/// Parses the lines of one log.
pub(crate) struct Parser {
    opener: Opener,
    years: Years,
    body: Body,
}

/// The parser of the log's format, which applies to the part of a line inside the envelope.
enum Body {
    Common(common::Parser),
    Named(named::Parser),
    Pattern(pattern::Parser),
}

impl Parser {
    /// Creates a parser for a log in this format and envelope. The log was last modified at
    /// `modified`, which determines the year of times that have none.
    pub(crate) fn new(
        (envelope, format): (Envelope, Format),
        hints: &Hints,
        modified: SystemTime,
    ) -> Self {
        Self {
            opener: Opener::new(envelope),
            years: Years::new(hints.year, modified),
            body: Body::new(format, hints),
        }
    }

    /// Returns this parser with the current year of `last`, the parser of an earlier log.
    pub(crate) fn following(self, last: Self) -> Self {
        Self {
            years: last.years,
            ..self
        }
    }

    /// Returns another parser for the same log; `None` if its lines depend on lines before them.
    pub(crate) fn fork(&self) -> Option<Self> {
        Some(Self {
            opener: self.opener.fork()?,
            years: self.years.clone(),
            body: match &self.body {
                Body::Common(parser) => Body::Common(parser.clone()),
                Body::Named(parser) => Body::Named(parser.fork()?),
                Body::Pattern(_) => return None,
            },
        })
    }

    /// Returns the names of the format's fields; `None` if each log or each line has its own
    /// names.
    pub(crate) fn fields(&self) -> Option<Vec<&str>> {
        match &self.body {
            Body::Common(_) => Some(common::FIELDS.to_vec()),
            Body::Pattern(parser) => Some(parser.fields()),
            Body::Named(_) => None,
        }
    }

    /// Returns the names of a log's fields with examples of their values, in formats whose lines name
    /// them. `start` is the log's first two lines.
    pub(crate) fn named_fields(&mut self, start: &[u8]) -> Vec<(String, String)> {
        let mut opened = Vec::new();
        for line in start.split(|&b| b == b'\n') {
            if let Ok(message) = self.opener.open(line, &mut self.years) {
                opened.extend_from_slice(message.text);
                opened.push(b'\n');
            }
        }
        named_fields(&opened)
    }

    /// Returns true if `--time-field` and `--key-field` apply to the format.
    pub(crate) fn takes_names(&self) -> bool {
        matches!(&self.body, Body::Named(parser) if parser.takes_names())
    }

    /// Returns the request on a line; `None` if the line is a header.
    ///
    /// # Errors
    /// Returns the reason for skipping the line if it is not a request.
    #[inline]
    pub(crate) fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Option<Record<'a>>, Skip> {
        let message = self.opener.open(line, &mut self.years)?;
        let mut count = message.count;
        let (time, line) = match &mut self.body {
            Body::Common(parser) => {
                let (time, line) = parser.parse(message.text)?;
                (time, Line::Common(line))
            }
            Body::Named(parser) => match parser.parse(message)? {
                Some((time, line)) => (time, Line::Named(line)),
                None => return Ok(None),
            },
            Body::Pattern(parser) => {
                let (time, line) = parser.parse(message)?;
                count = count.saturating_mul(line.attempts()?);
                (time, Line::Pattern(line))
            }
        };
        Ok(Some(Record { time, count, line }))
    }
}

impl Body {
    fn new(format: Format, hints: &Hints) -> Self {
        Self::Pattern(match format.entry().syntax {
            Syntax::Common { vhost } => return Self::Common(common::Parser::new(vhost)),
            Syntax::Named(notation) => return Self::Named(named::Parser::new(notation, hints)),
            Syntax::Expression(text, program) => {
                let pattern = Arc::new(LinePattern::preset(text, program));
                pattern::Parser::new(pattern, format == Format::Sshd)
            }
            Syntax::Given => pattern::Parser::new(hints.pattern.clone().unwrap_or_default(), false),
        })
    }
}

/// One request in a log.
pub struct Record<'a> {
    time: Stamp,
    /// The number of equal requests that the line stands for.
    count: u64,
    line: Line<'a>,
}

/// A parsed line of one of the formats.
enum Line<'a> {
    Common(common::Line<'a>),
    Named(named::Line<'a>),
    Pattern(pattern::Line<'a>),
}

impl<'a> Record<'a> {
    /// Returns the time of the request, in nanoseconds since the epoch.
    #[inline]
    pub fn time(&self) -> u64 {
        self.time.nanos
    }

    /// Returns true if the line names the zone of its time.
    #[inline]
    pub(crate) fn has_zone(&self) -> bool {
        self.time.has_zone
    }

    /// Returns the number of equal requests that the line stands for: of `auth failed, 40 attempts` and of
    /// lines that syslog has merged.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the value of a field; `None` if the line does not have it.
    #[inline]
    pub fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        match &self.line {
            Line::Common(line) => line.get(field).map(Cow::Borrowed),
            Line::Named(line) => line.get(field),
            Line::Pattern(line) => line.get(field).map(Cow::Borrowed),
        }
    }

    /// Returns the cost of the request; `None` if the format has no field for the cost.
    pub fn cost(&self) -> Option<Cow<'a, [u8]>> {
        match &self.line {
            Line::Common(_) => None,
            Line::Named(line) => line.cost(),
            Line::Pattern(line) => line.cost().map(Cow::Borrowed),
        }
    }

    /// Returns true if the format's clients are addresses, which are then cut to prefixes.
    #[inline]
    pub(crate) fn has_addresses(&self) -> bool {
        !matches!(&self.line, Line::Named(line) if line.is_csv())
    }
}

/// Returns true if a line looks like a header of CSV, whatever its names.
pub(crate) fn is_csv_header(line: &[u8]) -> bool {
    columns::csv_example(line, b"").is_some()
}

/// Returns the names of the fields of a log that begins with these lines, with examples of their values: of
/// a JSON object, of the columns under a CSV header, or of logfmt's pairs.
pub(crate) fn named_fields(start: &[u8]) -> Vec<(String, String)> {
    let mut lines = start.split(|&b| b == b'\n');
    let line = lines.next().unwrap_or_default();
    let next = lines.next().unwrap_or_default();
    if let Some(columns) = columns::csv_example(line, next) {
        return columns;
    }
    let pairs = || {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        pairs::logfmt(line)
            .map(|(name, value)| (text(name), text(&value)))
            .collect()
    };
    json::fields(line).unwrap_or_else(pairs)
}

/// Returns the format detected for a log, and the time and the fields of its last line. Addresses
/// are cut to prefixes as in keys.
#[cfg(test)]
fn last_request(log: &str, fields: &[&str]) -> (Format, String) {
    use crate::reading::KeyMaker;
    use earrrl_tower::Prefixes;

    let hints = Hints {
        year: Some(2009),
        ..Hints::default()
    };
    let Some(found) = detect(log.as_bytes(), &hints) else {
        panic!("no format: {log}")
    };
    let mut parser = Parser::new(found, &hints, SystemTime::UNIX_EPOCH);
    let mut shown = String::new();
    for line in log.lines() {
        let Ok(Some(record)) = parser.parse(line.as_bytes()) else {
            continue;
        };
        shown = format!("{}", (record.time() / 1_000) as f64 / 1e6);
        for field in fields {
            let Ok(key) = field.parse() else {
                panic!("no field: {field}")
            };
            let mut keys = KeyMaker::new(key, Prefixes::new(32, 128), true);
            let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
            shown += " ";
            shown += &keys.with(&record, text).unwrap_or_else(|_| "-".into());
        }
    }
    (found.1, shown)
}
