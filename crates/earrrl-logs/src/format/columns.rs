//! Columns that a header names: comma-separated values, and the W3C extended log format.
//!
//! - CSV has the header `time,key[,cost]`. The time is in seconds or smaller units since the Unix epoch, or in
//!   ISO 8601. Quotes are as in RFC 4180, except that a quoted value cannot contain line breaks. Keys may be any
//!   text.
//! - The directive `#Fields:` of the W3C format, which IIS and CloudFront write, names the columns:
//!   `#Fields: date time c-ip cs-username cs-method cs-uri-stem sc-status`. Zeek writes `#fields`, and has the
//!   time since the epoch in the column `ts`. CloudFront separates columns by tabs, IIS by blanks, other
//!   programs by several of them, with quotes around values that contain blanks.

use std::borrow::Cow;

use super::Hints;

/// The names and values of a line.
type Pairs<'a> = Vec<(&'a [u8], Cow<'a, [u8]>)>;

/// Returns the values of a line of CSV with the names of their columns; `None` if there are more or fewer values
/// than names.
pub(super) fn csv<'a>(line: &'a [u8], names: &'a [Vec<u8>]) -> Option<Pairs<'a>> {
    named(names, csv_values(line))
}

fn named<'a>(
    names: &'a [Vec<u8>],
    mut values: impl Iterator<Item = Cow<'a, [u8]>>,
) -> Option<Pairs<'a>> {
    let mut pairs = Vec::with_capacity(names.len());
    pairs.extend(names.iter().map(Vec::as_slice).zip(values.by_ref()));
    (pairs.len() == names.len() && values.next().is_none()).then_some(pairs)
}

/// Returns the names of the columns in a header of CSV.
pub(super) fn csv_names(line: &[u8]) -> Vec<Vec<u8>> {
    csv_values(line)
        .map(|name| name.trim_ascii().to_vec())
        .collect()
}

/// Returns true if a line is a header of CSV: it names the time's column and at least one other column.
pub(super) fn is_csv(line: &[u8], hints: &Hints) -> bool {
    let time = hints.time_field.as_deref().unwrap_or("time");
    let names = csv_names(line);
    let has_time = |name: &Vec<u8>| name.eq_ignore_ascii_case(time.as_bytes());
    names.len() > 1 && names.iter().any(has_time)
}

/// Returns the names of the columns in a header and the values of the row under it; `None` if the line does
/// not look like a header, which names each of at least two columns by a word that begins with a letter.
pub(super) fn csv_example(header: &[u8], row: &[u8]) -> Option<Vec<(String, String)>> {
    let is_word = |name: &str| {
        let inner = |c: char| c.is_alphanumeric() || " _-.@".contains(c);
        name.starts_with(char::is_alphabetic) && name.chars().all(inner)
    };
    let text = |value: Cow<'_, [u8]>| String::from_utf8_lossy(&value).trim().to_owned();
    let names: Vec<String> = csv_values(header).map(text).collect();
    // A comma and a blank are those of a sentence.
    let is_prose = memchr::memmem::find(header, b", ").is_some();
    if names.len() < 2 || is_prose || !names.iter().all(|name| is_word(name)) {
        return None;
    }
    let values = csv_values(row)
        .map(text)
        .chain(std::iter::repeat_with(String::new));
    Some(names.into_iter().zip(values).collect())
}

/// Returns the values of a line, without the quotes around them.
fn csv_values(line: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let text = rest?;
        if text.first() == Some(&b'"') {
            let (value, after) = quoted(text);
            rest = after;
            return Some(Cow::Owned(value));
        }
        let (value, after) = split(text, memchr::memchr(b',', text));
        rest = after;
        Some(value.into())
    })
}

/// Returns the quoted value at the start of a text, and the text behind the comma that follows it. The value
/// has no quotes around it.
fn quoted(text: &[u8]) -> (Vec<u8>, Option<&[u8]>) {
    let mut value = vec![0; text.len()];
    let (result, read, written) = csv_core::Reader::new().read_field(text, &mut value);
    value.truncate(written);
    let more = matches!(
        result,
        csv_core::ReadFieldResult::Field { record_end: false }
    );
    (value, more.then(|| &text[read..]))
}

/// Returns true if a line is a directive with which logs in the W3C format start.
pub(super) fn is_w3c(line: &[u8], _: &Hints) -> bool {
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

/// Returns the names of the columns in a directive of the W3C format; `None` if it is another directive.
pub(super) fn w3c_names(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let names = line
        .strip_prefix(b"#Fields:")
        .or_else(|| line.strip_prefix(b"#fields\t"))?;
    // Some programs write the names in quotes.
    let names = names.split(|byte| byte.is_ascii_whitespace() || *byte == b'"');
    let names = names.filter(|name| !name.is_empty());
    Some(names.map(<[u8]>::to_vec).collect())
}

/// Returns the values of a line in the W3C format with the names of their columns; `None` if there are more or
/// fewer values than names.
///
/// A value of a client may begin with a quote, so quotes count only where the columns do not fit without them.
pub(super) fn w3c<'a>(line: &'a [u8], names: &'a [Vec<u8>]) -> Option<Pairs<'a>> {
    let read = |is_quoted| named(names, w3c_values(line, is_quoted).map(Cow::Borrowed));
    read(false).or_else(|| read(true))
}

/// Returns the values of a line: those between tabs, if it has any, or else those between runs of blanks. If
/// `is_quoted` is true, a value that begins with a quote goes on to the next quote before a blank.
fn w3c_values(line: &[u8], is_quoted: bool) -> impl Iterator<Item = &[u8]> {
    let has_tabs = line.contains(&b'\t');
    let mut rest = Some(if has_tabs { line } else { line.trim_ascii() });
    std::iter::from_fn(move || {
        let text = rest?;
        if has_tabs {
            let (value, behind) = split(text, memchr::memchr(b'\t', text));
            rest = behind;
            return Some(value);
        }
        let end = match text.strip_prefix(b"\"") {
            Some(inner) if is_quoted => memchr::memmem::find(inner, b"\" ").map(|at| at + 2),
            _ => memchr::memchr(b' ', text),
        };
        let (value, behind) = split(text, end);
        rest = behind.map(<[u8]>::trim_ascii_start);
        let inner = value
            .strip_prefix(b"\"")
            .and_then(|inner| inner.strip_suffix(b"\""));
        Some(inner.unwrap_or(value))
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
    use super::*;
    use crate::envelope::Message;
    use crate::format::named::{Notation, Parser};
    use crate::format::{Field, Format, last_request};
    use crate::line::Skip;

    type Row = (u64, Option<String>, Option<String>);

    fn rows(lines: &[&str]) -> Vec<Result<Option<Row>, Skip>> {
        let mut parser = Parser::new(Notation::Csv, &Hints::default());
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
        let columns = |header: &str, row: &str| csv_example(header.as_bytes(), row.as_bytes());
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

    #[test]
    fn the_last_of_equal_names_counts() {
        let log = "#Fields: date time c-ip c-ip\n2024-01-01 12:00:00 9.9.9.9 192.0.2.7";
        let found = last_request(log, &["client"]);
        assert_eq!(found, (Format::W3c, "1704110400 192.0.2.7".into()));
    }

    #[test]
    fn names_in_quotes() {
        let log = "#Fields: \"date\" \"time\" \"c-ip\" \"cs-uri-stem\"\n\"2024-01-01\" \"12:00:00\" \"192.0.2.7\" \"/a\"";
        let found = last_request(log, &["client", "path"]);
        assert_eq!(found, (Format::W3c, "1704110400 192.0.2.7 /a".into()));
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
