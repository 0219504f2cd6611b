//! Logs whose lines or headers name their fields: JSON, CSV, the W3C format, logfmt and LTSV.
//!
//! Each notation has a function that splits a line into names and values. The time, the client and all other
//! fields are then found alike, by the names that the user has given or by the usual ones in [`super::field`].

use std::borrow::Cow;

use super::field::{self, Field, path_of, target};
use super::json::{self, JsonMembers};
use super::{Hints, columns, pairs};
use crate::envelope::Message;
use crate::line::time::{self, Stamp};
use crate::line::{Skip, is_address, last_of_list};

/// The notation of names and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notation {
    /// A JSON object on each line.
    Json,
    /// Comma-separated values under a header.
    Csv,
    /// The W3C extended log format, with columns that a header names.
    W3c,
    /// `name=value` pairs.
    Logfmt,
    /// Labelled tab-separated values.
    Ltsv,
}

/// Reads the lines of one log.
#[derive(Clone)]
pub(super) struct Parser {
    notation: Notation,
    /// The name of the field with the time, if the user has given it or if there is no other.
    time_field: Option<String>,
    /// The name of the field with the client, if the user has given it or if there is no other.
    key_field: Option<String>,
    /// The header of CSV, which recurs where files were joined.
    header: Vec<u8>,
    /// The names of the columns under the last header.
    names: Vec<Vec<u8>>,
    /// The copy of a line in which invalid JSON was repaired.
    mended: String,
}

/// A line with its names and values.
pub(super) struct Line<'a> {
    notation: Notation,
    key_field: Option<&'a str>,
    values: Values<'a>,
}

/// The values of a line. Those of JSON are parsed when they are read.
enum Values<'a> {
    Members(JsonMembers<'a>),
    Pairs(Vec<(&'a [u8], Cow<'a, [u8]>)>),
}

impl Parser {
    /// Creates a parser. If `hints` name the field with the time or the client, only that field is read
    /// instead of the usual ones. CSV has no usual names but `time` and `key`.
    pub(super) fn new(notation: Notation, hints: &Hints) -> Self {
        let usual = |name: &str| (notation == Notation::Csv).then(|| name.to_owned());
        Self {
            notation,
            time_field: hints.time_field.clone().or_else(|| usual("time")),
            key_field: hints.key_field.clone().or_else(|| usual("key")),
            header: Vec::new(),
            names: Vec::new(),
            mended: String::new(),
        }
    }

    /// Returns another parser for the same log; `None` if a header names its columns.
    pub(super) fn fork(&self) -> Option<Self> {
        let has_header = matches!(self.notation, Notation::Csv | Notation::W3c);
        (!has_header).then(|| self.clone())
    }

    /// Returns true if `--time-field` and `--key-field` apply to the log.
    pub(super) fn takes_names(&self) -> bool {
        self.notation != Notation::W3c
    }

    /// Parses a line; returns `None` if it is a header.
    pub(super) fn parse<'a>(
        &'a mut self,
        message: Message<'a>,
    ) -> Result<Option<(Stamp, Line<'a>)>, Skip> {
        let mut message = message;
        if self.reads_header(message.text)? {
            return Ok(None);
        }
        let names = &self.names;
        let values = match self.notation {
            Notation::Json => {
                message = json::without_console(message);
                Values::Members(json::members(message.text, &mut self.mended)?)
            }
            Notation::Csv => Values::Pairs(columns::csv(message.text, names).ok_or(Skip::Columns)?),
            Notation::W3c => Values::Pairs(columns::w3c(message.text, names).ok_or(Skip::Columns)?),
            Notation::Logfmt => Values::Pairs(pairs::logfmt(message.text).collect()),
            Notation::Ltsv => Values::Pairs(pairs::ltsv(message.text).collect()),
        };
        if matches!(&values, Values::Pairs(pairs) if pairs.is_empty()) {
            return Err(Skip::Malformed);
        }
        let line = Line {
            notation: self.notation,
            key_field: self.key_field.as_deref(),
            values,
        };
        let time = match &self.time_field {
            Some(name) => line.time(name, time::parse_any),
            None => line.usual_time().or(message.time),
        };
        Ok(Some((time.ok_or(Skip::Time)?, line)))
    }

    /// Returns true if a line is a header, and remembers the names of the columns in it.
    ///
    /// # Errors
    /// Returns [`Skip::Malformed`] if the log begins with a header of CSV that does not name the time.
    fn reads_header(&mut self, line: &[u8]) -> Result<bool, Skip> {
        match self.notation {
            Notation::W3c if line.first() == Some(&b'#') => {
                self.names = columns::w3c_names(line).unwrap_or(std::mem::take(&mut self.names));
                Ok(true)
            }
            Notation::Csv if self.header.is_empty() => {
                self.names = columns::csv_names(line);
                let time = self.time_field.as_deref().unwrap_or_default();
                let has_time = |name: &Vec<u8>| name.eq_ignore_ascii_case(time.as_bytes());
                if !self.names.iter().any(has_time) {
                    return Err(Skip::Malformed);
                }
                self.header = line.to_vec();
                Ok(true)
            }
            Notation::Csv => Ok(self.header == line),
            _ => Ok(false),
        }
    }
}

impl<'a> Line<'a> {
    /// Returns the value of a field; `None` if it is missing, empty or `-`.
    pub(super) fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        let find = |name: &str| self.filled(name);
        let usual = || field::first(field, find);
        match (field, self.key_field) {
            (Field::Client, Some(name)) => find(name),
            // A label `host` that is no address is that of the site, if another field has an address.
            (Field::Client, None) if self.notation == Notation::Ltsv => find("host")
                .filter(|host| is_address(last_of_list(host)))
                .or_else(usual)
                .or_else(|| find("host")),
            (Field::Path, _) => {
                let request = || find("request").or_else(|| find("req"));
                let target = || target(&request()?).map(|path| Cow::Owned(path.to_vec()));
                let path = usual().or_else(target)?;
                Some(Cow::Owned(path_of(&path).to_vec()))
            }
            (Field::Named(name), _) => find(name).or_else(|| match name.as_str() {
                "agent" | "user_agent" => find("ua"),
                "bytes" => find("size"),
                _ => None,
            }),
            _ => usual(),
        }
    }

    /// Returns the cost of the request; `None` if the notation has no field for the cost.
    pub(super) fn cost(&self) -> Option<Cow<'a, [u8]>> {
        self.is_csv().then(|| self.find("cost"))?
    }

    /// Returns true if the line is one of CSV, whose clients need not be addresses.
    pub(super) fn is_csv(&self) -> bool {
        self.notation == Notation::Csv
    }

    /// Returns the time in the first field with one of the usual names that has a time, or else in the
    /// columns `date` and `time` of the W3C format, which are in UTC.
    fn usual_time(&self) -> Option<Stamp> {
        let of_columns = || {
            let text = [&self.find("date")?[..], b" ", &self.find("time")?].concat();
            time::parse_iso(&text).map(Stamp::utc)
        };
        let found = |name| self.time(name, time::parse_recent);
        field::TIMES.into_iter().find_map(found).or_else(of_columns)
    }

    /// Returns the time in a field. LTSV has brackets around it.
    fn time(&self, name: &str, parse: fn(&[u8]) -> Option<u64>) -> Option<Stamp> {
        let value = self.filled(name)?;
        let value = value.trim_ascii();
        let bare = value
            .strip_prefix(b"[")
            .and_then(|value| value.strip_suffix(b"]"));
        Stamp::of(parse, bare.unwrap_or(value))
    }

    /// Returns the value with this name, unless it is empty or `-`: another field for the same purpose is used
    /// then, and not everybody without a user is one user.
    fn filled(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        self.find(name)
            .filter(|value| !matches!(value.trim_ascii(), b"" | b"-"))
    }

    /// Returns the value with this name. If several have the name, the last counts, since programs append
    /// fields of their own. Headers may write names in capitals.
    fn find(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        let pairs = match &self.values {
            Values::Members(members) => return members.find(name),
            Values::Pairs(pairs) => pairs,
        };
        let has_header = matches!(self.notation, Notation::Csv | Notation::W3c);
        let is_named = |known: &[u8]| match has_header {
            true => known.eq_ignore_ascii_case(name.as_bytes()),
            false => known == name.as_bytes(),
        };
        let found = pairs.iter().rfind(|(known, _)| is_named(known));
        found.map(|(_, value)| value.clone())
    }
}
