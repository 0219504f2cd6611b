//! Parsers of log formats, which convert the lines of a log to [`Record`]s.
//!
//! A record finds the value of a field only when the field is read.

mod aws;
mod common;
mod csv;
mod detect;
mod envoy;
mod error_logs;
mod field;
mod haproxy;
mod hints;
mod json;
mod list;
mod logfmt;
mod ltsv;
mod mail;
mod names;
pub mod notation;
mod pattern;
mod sshd;
mod sshd_lines;
mod vendors;
mod w3c;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) use detect::mostly;
pub(crate) use detect::{LINES, detect, envelope_of};
pub use field::Field;
use field::{path_of, target};
use hints::ChosenFields;
pub use hints::Hints;
pub use list::Format;
use list::Syntax;
pub use pattern::LinePattern;

use crate::envelope::{Envelope, Opener};
use crate::line::Skip;
use crate::line::Years;

/// Parses the lines of one log.
pub(crate) struct Parser {
    opener: Opener,
    years: Years,
    body: Body,
}

/// The parser of the log's format, which applies to the part of a line inside the envelope.
enum Body {
    Common(common::Parser),
    Json(json::Parser),
    Csv(csv::Parser),
    W3c(w3c::Parser),
    Logfmt(ChosenFields),
    Ltsv(ChosenFields),
    Pattern(pattern::Parser),
    Sshd(sshd::Parser),
    SshdLines,
}

impl Parser {
    /// Creates a parser for a log in this format and envelope. The log was last modified at
    /// `modified`, which determines the year of times that have none.
    pub(crate) fn new(
        (envelope, format): (Envelope, Format),
        hints: &Hints,
        modified: SystemTime,
    ) -> Self {
        let years = Years::new(hints.year, modified);
        Self {
            opener: Opener::new(envelope),
            years,
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

    /// Returns the names of the format's fields; `None` if each log or each line has its own
    /// names.
    pub(crate) fn fields(&self) -> Option<Vec<&str>> {
        match &self.body {
            Body::Common(_) => Some(common::FIELDS.to_vec()),
            Body::Pattern(parser) => Some(parser.fields()),
            Body::Sshd(_) | Body::SshdLines => Some(sshd::FIELDS.to_vec()),
            Body::Json(_) | Body::Csv(_) | Body::W3c(_) | Body::Logfmt(_) | Body::Ltsv(_) => None,
        }
    }

    /// Returns the names and values of a line's fields, in formats whose lines name them.
    pub(crate) fn named_fields(&mut self, line: &[u8]) -> Vec<(String, String)> {
        let message = self.opener.open(line, &mut self.years);
        message.map_or_else(|_| Vec::new(), |message| named_fields(message.text))
    }

    /// Returns true if `--time-field` and `--key-field` apply to the format.
    pub(crate) fn takes_names(&self) -> bool {
        match self.body {
            Body::Json(_) | Body::Csv(_) | Body::Logfmt(_) | Body::Ltsv(_) => true,
            Body::Common(_) | Body::W3c(_) | Body::Pattern(_) | Body::Sshd(_) | Body::SshdLines => {
                false
            }
        }
    }

    /// Returns the request on a line; `None` if the line is a header.
    ///
    /// # Errors
    /// Returns the reason for skipping the line if it is not a request.
    #[inline]
    pub(crate) fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Option<Record<'a>>, Skip> {
        let message = self.opener.open(line, &mut self.years)?;
        match &mut self.body {
            Body::Common(parser) => parser.parse(message.text).map(|r| Some(Record::Common(r))),
            Body::Json(parser) => parser.parse(message).map(|r| Some(Record::Json(r))),
            Body::Csv(parser) => Ok(parser.parse(message.text)?.map(Record::Csv)),
            Body::W3c(parser) => Ok(parser.parse(message.text)?.map(Record::W3c)),
            Body::Logfmt(chosen) => logfmt::parse(message, chosen).map(|r| Some(Record::Logfmt(r))),
            Body::Ltsv(chosen) => ltsv::parse(message.text, chosen).map(|r| Some(Record::Ltsv(r))),
            Body::Pattern(parser) => parser.parse(message).map(|r| Some(Record::Pattern(r))),
            Body::Sshd(parser) => parser.parse(message).map(|r| Some(Record::Sshd(r))),
            Body::SshdLines => {
                sshd_lines::parse(message.text, &mut self.years).map(|r| Some(Record::SshdLines(r)))
            }
        }
    }
}

impl Body {
    fn new(format: Format, hints: &Hints) -> Self {
        let expression = |pattern: Arc<LinePattern>| Self::Pattern(pattern::Parser::new(pattern));
        match format.entry().syntax {
            Syntax::Common { vhost } => Self::Common(common::Parser::new(vhost)),
            Syntax::Json => Self::Json(json::Parser::new(hints)),
            Syntax::Csv => Self::Csv(csv::Parser::new(hints)),
            Syntax::W3c => Self::W3c(w3c::Parser::default()),
            Syntax::Logfmt => Self::Logfmt(hints.into()),
            Syntax::Ltsv => Self::Ltsv(hints.into()),
            Syntax::Sshd => Self::Sshd(sshd::Parser::default()),
            Syntax::SshdLines => Self::SshdLines,
            Syntax::Expression(text, program) => {
                expression(Arc::new(LinePattern::preset(text, program)))
            }
            Syntax::Given => expression(hints.pattern.clone().unwrap_or_default()),
        }
    }
}

/// One request in a log.
pub enum Record<'a> {
    /// A line in the common or the combined log format.
    Common(common::Record<'a>),
    /// A line with a JSON object.
    Json(json::Record<'a>),
    /// A row of CSV.
    Csv(csv::Record<'a>),
    /// A line in the W3C extended log format.
    W3c(w3c::Record<'a>),
    /// A line of `name=value` pairs.
    Logfmt(logfmt::Record<'a>),
    /// A line of labelled tab-separated values.
    Ltsv(ltsv::Record<'a>),
    /// A line that matches a pattern.
    Pattern(pattern::Record<'a>),
    /// A failed attempt to log in by SSH.
    Sshd(sshd::Record<'a>),
    /// A line of the SSH daemon that contains an address.
    SshdLines(sshd_lines::Record<'a>),
}

impl<'a> Record<'a> {
    /// Returns the time of the request, in nanoseconds since the epoch.
    #[inline]
    pub fn time(&self) -> u64 {
        match self {
            Self::Common(record) => record.time,
            Self::Json(record) => record.time,
            Self::Csv(record) => record.time,
            Self::W3c(record) => record.time,
            Self::Logfmt(record) => record.time,
            Self::Ltsv(record) => record.time,
            Self::Pattern(record) => record.time,
            Self::Sshd(record) => record.time,
            Self::SshdLines(record) => record.time,
        }
    }

    /// Returns the value of a field; `None` if the line does not have it.
    #[inline]
    pub fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::Common(record) => record.get(field).map(Cow::Borrowed),
            Self::Json(record) => record.get(field),
            Self::Csv(record) => record.get(field),
            Self::W3c(record) => record.get(field).map(Cow::Borrowed),
            Self::Logfmt(record) => record.get(field).map(Cow::Borrowed),
            Self::Ltsv(record) => record.get(field).map(Cow::Borrowed),
            Self::Pattern(record) => record.get(field).map(Cow::Borrowed),
            Self::Sshd(record) => record.get(field).map(Cow::Borrowed),
            Self::SshdLines(record) => record.get(field).map(Cow::Borrowed),
        }
    }

    /// Returns the cost of the request; `None` if the format has no field for the cost.
    pub fn cost(&self) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::Csv(record) => record.cost(),
            Self::Pattern(record) => record.cost().map(Cow::Borrowed),
            Self::Sshd(record) => record.cost().map(Cow::Borrowed),
            Self::Common(_)
            | Self::Json(_)
            | Self::W3c(_)
            | Self::Logfmt(_)
            | Self::Ltsv(_)
            | Self::SshdLines(_) => None,
        }
    }

    /// Returns true if the format's clients are addresses, which are then cut to prefixes.
    #[inline]
    pub(crate) fn has_addresses(&self) -> bool {
        match self {
            Self::Csv(_) => false,
            Self::Common(_)
            | Self::Json(_)
            | Self::W3c(_)
            | Self::Logfmt(_)
            | Self::Ltsv(_)
            | Self::Pattern(_)
            | Self::Sshd(_)
            | Self::SshdLines(_) => true,
        }
    }
}

/// Returns the names and values of the fields of a line in JSON or logfmt.
pub(crate) fn named_fields(line: &[u8]) -> Vec<(String, String)> {
    let pairs = || {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        logfmt::pairs(line)
            .map(|(name, value)| (text(name), text(value)))
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
