//! CSV with the header `time,key[,cost]`. The time is in seconds or smaller units since the Unix
//! epoch, or in ISO 8601.
//!
//! Quotes are as in RFC 4180, except that a quoted field cannot contain line breaks. Keys may be
//! any text.

use std::borrow::Cow;

use super::{Field, Hints, LineFields};
use crate::envelope::Message;
use crate::line::Skip;
use crate::line::time::{self, Stamp};

/// Reads lines of CSV. The first line names the columns.
pub(super) struct Parser {
    time_name: String,
    key_name: String,
    header: Option<CsvHeader>,
}

/// The columns of a log, as its header names them.
struct CsvHeader {
    line: Vec<u8>,
    names: Vec<Vec<u8>>,
    time: usize,
    key: Option<usize>,
    cost: Option<usize>,
}

/// A row of CSV, with the names of its columns.
pub(super) struct Line<'a> {
    line: &'a [u8],
    header: &'a CsvHeader,
}

impl Parser {
    /// Creates a parser that expects a header on the first line.
    pub(super) fn new(hints: &Hints) -> Self {
        Self {
            time_name: hints.time_field.clone().unwrap_or_else(|| "time".into()),
            key_name: hints.key_field.clone().unwrap_or_else(|| "key".into()),
            header: None,
        }
    }

    /// Finds the columns that a header names; returns `None` if there is no column for the time.
    fn columns(&self, line: &[u8]) -> Option<CsvHeader> {
        let names: Vec<Vec<u8>> = fields(line).map(|n| n.trim_ascii().to_vec()).collect();
        let place = |name: &str| {
            names
                .iter()
                .position(|n| n.eq_ignore_ascii_case(name.as_bytes()))
        };
        let time = place(&self.time_name)?;
        let key = place(&self.key_name);
        let cost = place("cost");
        Some(CsvHeader {
            line: line.to_vec(),
            time,
            key,
            cost,
            names,
        })
    }
}

impl Parser {
    /// Parses a row; returns `None` if it is the header, which also recurs where files were
    /// joined.
    pub(super) fn parse<'a>(
        &'a mut self,
        message: Message<'a>,
    ) -> Result<Option<(Stamp, Line<'a>)>, Skip> {
        let line = message.text;
        if self.header.is_none() {
            self.header = Some(self.columns(line).ok_or(Skip::Malformed)?);
            return Ok(None);
        }
        let Some(header) = self.header.as_ref().filter(|header| header.line != line) else {
            return Ok(None);
        };
        if fields(line).count() != header.names.len() {
            return Err(Skip::Columns);
        }
        let text = fields(line).nth(header.time).ok_or(Skip::Malformed)?;
        let time = Stamp::of(parse_time, text.trim_ascii()).ok_or(Skip::Time)?;
        Ok(Some((time, Line { line, header })))
    }
}

impl<'a> LineFields<'a> for Line<'a> {
    fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        let place = match field {
            Field::Client => self.header.key,
            Field::User => self.place("user"),
            Field::Path => self.place("path"),
            Field::Forwarded => self.place("forwarded_for"),
            Field::Named(name) => self.place(name),
        };
        // Without this, everybody without a user would be one user.
        let filled = |value: &Cow<'_, [u8]>| !matches!(value.trim_ascii(), b"" | b"-");
        fields(self.line).nth(place?).filter(filled)
    }
}

impl<'a> Line<'a> {
    /// Returns the cost of the request; `None` if the log has no column for the cost.
    pub(super) fn cost(&self) -> Option<Cow<'a, [u8]>> {
        fields(self.line).nth(self.header.cost?)
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.header
            .names
            .iter()
            .position(|n| n.eq_ignore_ascii_case(name.as_bytes()))
    }
}

/// Parses a time in seconds or smaller units since the Unix epoch, or in ISO 8601.
fn parse_time(text: &[u8]) -> Option<u64> {
    time::parse_epoch(text).or_else(|| time::parse_iso(text))
}

/// Returns true if a line is a header: it names the time's column and at least one other column.
pub(super) fn is_header(line: &[u8], hints: &Hints) -> bool {
    Parser::new(hints)
        .columns(line)
        .is_some_and(|header| header.names.len() > 1)
}

/// Returns the names of the columns in a header and the values of the row under it; `None` if the line does
/// not look like a header, which names each of at least two columns by a word that begins with a letter.
pub(super) fn columns(header: &[u8], row: &[u8]) -> Option<Vec<(String, String)>> {
    let is_word = |name: &str| {
        let inner = |c: char| c.is_alphanumeric() || " _-.@".contains(c);
        name.starts_with(char::is_alphabetic) && name.chars().all(inner)
    };
    let text = |field: Cow<'_, [u8]>| String::from_utf8_lossy(&field).trim().to_owned();
    let names: Vec<String> = fields(header).map(text).collect();
    // A comma and a blank are those of a sentence.
    let is_prose = memchr::memmem::find(header, b", ").is_some();
    if names.len() < 2 || is_prose || !names.iter().all(|name| is_word(name)) {
        return None;
    }
    let values = fields(row)
        .map(text)
        .chain(std::iter::repeat_with(String::new));
    Some(names.into_iter().zip(values).collect())
}

/// Returns the fields of a line, without the quotes around them.
fn fields(line: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest?;
        if text.first() == Some(&b'"') {
            let (field, after) = quoted(text);
            rest = after;
            return Some(Cow::Owned(field));
        }
        let comma = memchr::memchr(b',', text);
        rest = comma.map(|at| &text[at + 1..]);
        Some(text[..comma.unwrap_or(text.len())].into())
    })
}

/// Returns the value of a quoted field, and the text behind the comma that follows it. The value
/// has no quotes around it.
fn quoted(text: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
    let mut field = vec![0; text.len()];
    let (result, read, written) = csv_core::Reader::new().read_field(text, &mut field);
    field.truncate(written);
    let more = matches!(
        result,
        csv_core::ReadFieldResult::Field { record_end: false }
    );
    (field, more.then(|| &text[read..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row = (u64, Option<String>, Option<String>);

    fn rows(lines: &[&str]) -> Vec<Result<Option<Row>, Skip>> {
        let mut parser = Parser::new(&Hints::default());
        let text =
            |value: Option<Cow<'_, [u8]>>| value.map(|v| String::from_utf8_lossy(&v).into_owned());
        let mut row = |line: &&str| {
            let record = parser.parse(Message::plain(line.as_bytes()))?;
            Ok(record.map(|(time, r)| (time.nanos, text(r.get(&Field::Client)), text(r.cost()))))
        };
        lines.iter().map(&mut row).collect()
    }

    fn some(time: u64, key: &str, cost: Option<&str>) -> Result<Option<Row>, Skip> {
        Ok(Some((time, Some(key.into()), cost.map(str::to_owned))))
    }

    #[test]
    fn keys_are_opaque_and_times_exact() {
        let lines = [
            "time,key",
            "1970-01-01T00:00:05Z,a",
            "1111111111.123456789,2001:db8::1",
            "1431857103250,a",
            "1431857103250000000,a",
            "2015-05-17 12:05:03+02,a",
            "5, x ",
            "5,",
            "5,-",
            "time,key",
        ];
        let expected = [
            Ok(None),
            some(5_000_000_000, "a", None),
            some(1_111_111_111_123_456_789, "2001:db8::1", None),
            some(1_431_857_103_250_000_000, "a", None),
            some(1_431_857_103_250_000_000, "a", None),
            some(1_431_857_103_000_000_000, "a", None),
            some(5_000_000_000, " x ", None),
            Ok(Some((5_000_000_000, None, None))),
            Ok(Some((5_000_000_000, None, None))),
            Ok(None),
        ];
        assert_eq!(rows(&lines), expected);
    }

    #[test]
    fn columns_may_stand_in_any_order_and_be_quoted() {
        let lines = [
            "Cost,key,time",
            r#"2.5,"a,""b""",7"#,
            r#"1,"open,8"#,
            r#","x"y,9"#,
        ];
        let expected = [
            Ok(None),
            some(7_000_000_000, r#"a,"b""#, Some("2.5")),
            Err(Skip::Columns),
            some(9_000_000_000, "xy", Some("")),
        ];
        assert_eq!(rows(&lines), expected);
    }

    #[test]
    fn broken_lines() {
        assert_eq!(rows(&["when,key"]), [Err(Skip::Malformed)]);
        let lines = ["time,key", "x,a", "-1,a", "1", "1,a,b", "1e30,a"];
        let skips = [
            Skip::Time,
            Skip::Time,
            Skip::Columns,
            Skip::Columns,
            Skip::Time,
        ];
        assert_eq!(rows(&lines)[1..], skips.map(Err));
    }

    #[test]
    fn a_header_names_its_columns() {
        let columns = |header: &str, row: &str| columns(header.as_bytes(), row.as_bytes());
        let found = columns("when,\"who is\",x_1", "5,192.0.2.7").unwrap();
        let expected = [("when", "5"), ("who is", "192.0.2.7"), ("x_1", "")];
        assert_eq!(
            found,
            expected.map(|(name, value)| (name.into(), value.into()))
        );
        for line in [
            "when",
            "1,2",
            "a,",
            "a=1,b",
            "192.0.2.7,a",
            "{\"a\":1,\"b\":2}",
            "Starting up, nothing to see",
        ] {
            assert_eq!(columns(line, ""), None, "{line}");
        }
    }
}
