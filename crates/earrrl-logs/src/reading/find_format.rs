//! Finds the format of a log of which the user has named none.

use std::io::{ErrorKind, Read};

use super::lines::{LogLine, LogLines, MAX_LINE};
use super::parsing::ReadError;
use crate::envelope::Envelope;
use crate::format::{self, Format, Hints, detect, is_csv_header, named_fields};
use crate::line::{Escaped, Skip, Skips, is_address};
use crate::text::plain;

/// The number of lines without a client after which the search gives up.
const MOST_PASSED: u64 = 100_000;

/// Finds the format of the log of this name, beginning with the first lines and passing over lines that have no
/// client, which `skips` counts. Returns the format, or `None` if the log has no lines, and the number of lines
/// that were passed over.
///
/// # Errors
/// Returns the reason if the log cannot be read, or if no format fits its lines.
pub(super) fn find_format<R: Read>(
    lines: &mut LogLines<R>,
    name: &str,
    hints: &Hints,
    skips: &mut Skips,
) -> Result<(Option<(Envelope, Format)>, u64), ReadError> {
    let error = |problem: &str| Err(ReadError::Input(format!("{name}: {problem}")));
    let start = lines.peek().to_vec();
    let too_long = skips.lines_of(Skip::TooLong);
    let mut passed = 0;
    loop {
        let ahead = lines.peek();
        if let Some(found) = detect(ahead, hints) {
            return Ok((Some(found), passed));
        }
        if ahead.is_empty() || passed > MOST_PASSED || is_binary(ahead) {
            break;
        }
        // The lines that were examined in vain are skipped.
        let breaks = memchr::memchr_iter(b'\n', ahead);
        for _ in 0..breaks.take(format::LINES).count().max(1) {
            let (skip, text) = match lines.next() {
                // A followed log has no further line yet.
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(problem) => return error(&plain(&problem)),
                Ok(None) => break,
                Ok(Some(LogLine::Whole(text))) => (Skip::Malformed, text),
                Ok(Some(LogLine::TooLong(text))) => (Skip::TooLong, text),
            };
            passed += 1;
            skips.add(skip, name, passed, text);
        }
    }
    let too_long = skips.lines_of(Skip::TooLong) - too_long;
    match lines.take_error() {
        Some(problem) => error(&plain(&problem)),
        None if passed == 0 && start.is_empty() => Ok((None, 0)),
        None if passed > 0 && too_long == passed => {
            error("has only lines longer than 64 KiB, so is no log")
        }
        None => error(&unknown_format(&start, hints)),
    }
}

/// Returns true if a log that begins like this is a binary file. A first line that is too long is
/// skipped before this can be known.
fn is_binary(ahead: &[u8]) -> bool {
    let first = memchr::memchr(b'\n', ahead).unwrap_or(ahead.len());
    first <= MAX_LINE && ahead.contains(&0)
}

/// Returns the first two lines of `ahead` that are not blank.
pub(super) fn first_lines(ahead: &[u8]) -> Vec<u8> {
    let lines = ahead.split(|&b| b == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).take(2).collect();
    lines.join(&b'\n')
}

/// Returns a hint about the flags that select fields by name, which lists the names in the log.
///
/// ```
/// let fields = [("ts".to_owned(), "1700000000".to_owned()), ("who".to_owned(), "192.0.2.7".to_owned())];
/// let hint = earrrl_logs::reading::fields_hint(&fields);
/// assert!(hint.starts_with("its fields are ts, who;") && hint.ends_with("(who has an address)"));
/// assert_eq!(earrrl_logs::reading::fields_hint(&[]), "the line is not one JSON object with fields");
/// ```
pub fn fields_hint(fields: &[(String, String)]) -> String {
    if fields.is_empty() {
        return "the line is not one JSON object with fields".into();
    }
    let names: Vec<String> = fields
        .iter()
        .map(|(name, _)| Escaped(name.as_bytes()).to_string())
        .collect();
    let address = fields
        .iter()
        .find(|(_, value)| is_address(value.as_bytes()));
    let guess = match address {
        Some((name, _)) => format!(" ({} has an address)", Escaped(name.as_bytes())),
        None => String::new(),
    };
    format!(
        "its fields are {}; --time-field names the one with the time, --key-field the one with the client{guess}",
        names.join(", ")
    )
}

/// Returns the error message for a log whose format was not found, with an example line.
fn unknown_format(ahead: &[u8], hints: &Hints) -> String {
    if ahead.contains(&0) {
        return "is a binary file, not a log".into();
    }
    let lines = first_lines(ahead);
    let line = lines.split(|&b| b == b'\n').next().unwrap_or_default();
    if line.is_empty() {
        return "is blank".into();
    }
    let first = Escaped(&line[..line.len().min(80)]);
    let example = if hints.private {
        String::new()
    } else {
        format!(" (`{first}`)")
    };
    let hint = match &hints.time_field {
        _ if line.strip_prefix(b"[").is_some_and(is_array) => {
            "of a JSON array `jq -c '.[]' FILE` makes lines".into()
        }
        Some(field) => format!("--time-field names the field `{field}` for the time"),
        None if line.first() == Some(&b'{') || is_csv_header(line) => {
            fields_hint(&named_fields(&lines))
        }
        None => {
            format!(
                "known are {}; --pattern or --log-format describes any other",
                Format::names()
            )
        }
    };
    format!("no log format fits its first lines{example}; {hint}")
}

/// Returns true if a line that goes on like this behind its `[` begins an array of objects.
fn is_array(rest: &[u8]) -> bool {
    matches!(rest.trim_ascii_start(), [] | [b'{', ..])
}
