//! Detection of a log's format and envelope from its first lines.

use std::time::{Duration, UNIX_EPOCH};

use super::list::Detection;
use super::{Field, Format, Hints, Parser};
use crate::envelope::{Envelope, Opener};
use crate::line::{Years, is_address, is_client, last_of_list};

/// The greatest number of lines that detection examines.
pub(crate) const LINES: usize = 200;

/// The time from the epoch to the latest time at which the log may have been written.
const WRITTEN: Duration = Duration::from_secs(1 << 32);

/// Returns the envelope and the format that fit the most of the log's first lines; `None` if no
/// format fits any line.
pub(crate) fn detect(start: &[u8], hints: &Hints) -> Option<(Envelope, Format)> {
    let first = lines(start).next()?;
    for &format in Format::ALL {
        if let Detection::Header(is_header) = format.entry().detection
            && is_header(first, hints)
        {
            return Some((Envelope::None, format));
        }
    }
    let by_lines = |format: &Format| matches!(format.entry().detection, Detection::Lines);
    let candidates = || Format::ALL.iter().copied().filter(by_lines);
    let all = Envelope::ALL
        .into_iter()
        .filter(|&envelope| has_envelope(start, envelope, hints))
        .flat_map(|e| candidates().map(move |format| (e, format)));
    let known = most(all, start, hints, true);
    let json = || {
        Envelope::ALL
            .into_iter()
            .map(|envelope| (envelope, Format::Json))
    };
    let (envelope, format) = known.or_else(|| most(json(), start, hints, false))?;
    let common = format == Format::Combined && !with_agent(start, envelope, hints);
    Some((envelope, if common { Format::Common } else { format }))
}

/// Returns true if at least one of the first lines has this envelope. This is found before the expressions of all
/// formats are compiled for it.
fn has_envelope(start: &[u8], envelope: Envelope, hints: &Hints) -> bool {
    let mut opener = Opener::new(envelope);
    let mut years = Years::new(hints.year, UNIX_EPOCH + WRITTEN);
    lines(start).any(|line| opener.open(line, &mut years).is_ok())
}

/// Returns the format that fits at least half of the first lines, if there is one.
pub(crate) fn mostly(start: &[u8], hints: &Hints) -> Option<Format> {
    let found = detect(start, hints)?;
    let half = fitting(start, found, hints, true) * 2 >= lines(start).count();
    half.then_some(found.1)
}

/// Returns true if at least one of the first lines contains a user agent.
fn with_agent(start: &[u8], envelope: Envelope, hints: &Hints) -> bool {
    let agent = Field::new("agent");
    let mut parser = Parser::new((envelope, Format::Combined), hints, UNIX_EPOCH);
    lines(start).any(|line| {
        let record = parser.parse(line);
        record.is_ok_and(|record| record.is_some_and(|record| record.get(&agent).is_some()))
    })
}

/// Returns the envelope with which the most of the first lines fit this format.
pub(crate) fn envelope_of(start: &[u8], format: Format, hints: &Hints) -> Envelope {
    let headed = matches!(format.entry().detection, Detection::Header(_));
    let all = Envelope::ALL
        .into_iter()
        .filter(|&envelope| !headed || envelope == Envelope::None);
    let all: Vec<_> = all.map(|envelope| (envelope, format)).collect();
    let found = |with_client| most(all.iter().copied(), start, hints, with_client);
    found(true)
        .or_else(|| found(false))
        .map_or(Envelope::None, |(envelope, _)| envelope)
}

/// Returns the combination of envelope and format that fits the most lines; of equal ones, the
/// first. If `with_client` is false, JSON objects fit even if no usual field contains a client.
fn most(
    all: impl Iterator<Item = (Envelope, Format)>,
    start: &[u8],
    hints: &Hints,
    with_client: bool,
) -> Option<(Envelope, Format)> {
    let mut most = (0, None);
    let lines = lines(start).count();
    for found in all {
        let count = fitting(start, found, hints, with_client);
        if count > most.0 {
            most = (count, Some(found));
        }
        if count == lines {
            break;
        }
    }
    most.1
}

/// Counts the first lines that fit this envelope and format.
fn fitting(
    start: &[u8],
    (envelope, format): (Envelope, Format),
    hints: &Hints,
    with_client: bool,
) -> usize {
    let mut parser = Parser::new((envelope, format), hints, UNIX_EPOCH + WRITTEN);
    lines(start)
        .filter(|line| fits(&mut parser, line, format, with_client))
        .count()
}

fn fits(parser: &mut Parser, line: &[u8], format: Format, with_client: bool) -> bool {
    let Ok(Some(record)) = parser.parse(line) else {
        return false;
    };
    let ident = || record.get(&Field::new("ident"));
    let is_shifted = match format {
        // The client is followed by the identity, which is always `-` in practice. Another value means that the
        // first word is not a virtual host.
        Format::Vhost => ident().is_some(),
        // An identity that is an address is the client's or a proxy's, and the first word on the line is a
        // different field.
        Format::Combined => ident().is_some_and(|ident| is_address(&ident)),
        _ => false,
    };
    if is_shifted {
        return false;
    }
    match record.get(&Field::Client) {
        Some(client) => is_client(last_of_list(&client)),
        // JSON objects may have the client in a field with an unusual name.
        None => format == Format::Json && !with_client,
    }
}

fn lines(start: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = start
        .split(|&b| b == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines
        .filter(|line| !line.trim_ascii().is_empty())
        .take(LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON: &str = r#"192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;

    #[test]
    fn from_the_first_lines() {
        let common = COMMON;
        let user = r#"192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5"#;
        let combined = format!(r#"{common} "-" "curl""#);
        let cases = [
            (common.to_owned(), Some(Format::Common)),
            (user.to_owned(), Some(Format::Common)),
            (format!("9.9.9.9, {common}"), Some(Format::Common)),
            (combined.clone(), Some(Format::Combined)),
            (format!("\"{combined}\""), Some(Format::Combined)),
            (format!("example.org:80 {common}"), Some(Format::Vhost)),
            (format!("example.org {user}"), Some(Format::Vhost)),
            (
                r#"{"ts":1431857103,"client_ip":"192.0.2.7"}"#.into(),
                Some(Format::Json),
            ),
            (
                r#"{"ts":1431857103,"token":"t7"}"#.into(),
                Some(Format::Json),
            ),
            ("time,key\n1,a".into(), Some(Format::Csv)),
            ("key,time,cost\na,1,2".into(), Some(Format::Csv)),
            (
                format!("half a line\n\r\n{common}\n{common}\n"),
                Some(Format::Common),
            ),
            (common.replace("192.0.2.7", "unix:"), None),
            ("nothing of the kind".into(), None),
            ("\0\u{1}\u{2}".into(), None),
            (String::new(), None),
        ];
        for (text, format) in cases {
            let expected = format.map(|format| (Envelope::None, format));
            assert_eq!(
                detect(text.as_bytes(), &Hints::default()),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn envelopes_are_found_around_any_format() {
        let json = r#"{"ts":1431857103,"client_ip":"192.0.2.7"}"#;
        for (line, format) in [(COMMON, Format::Common), (json, Format::Json)] {
            let docker = serde_json::json!({"log": format!("{line}\n"), "stream": "stdout", "time": "2016-10-06T00:17:09Z"});
            let cases = [
                (
                    format!("<190>Mar 11 12:00:00 web nginx: {line}"),
                    Envelope::Syslog,
                ),
                (
                    format!("Mar 11 12:00:00 web nginx[7]: {line}"),
                    Envelope::Syslog,
                ),
                (
                    format!("2016-10-06T00:17:09+00:00 web nginx: {line}"),
                    Envelope::Syslog,
                ),
                (
                    format!("<190>1 2016-10-06T00:17:09Z web nginx - - - {line}"),
                    Envelope::Syslog,
                ),
                (
                    format!("2016-10-06T00:17:09.669Z stdout F {line}"),
                    Envelope::Cri,
                ),
                (docker.to_string(), Envelope::Docker),
                (format!("web-1  | {line}"), Envelope::Compose),
                (format!("[pod/web-7d/nginx] {line}"), Envelope::Compose),
                (format!("2016-10-06T00:17:09.669Z {line}"), Envelope::Stamp),
                (
                    format!("1475712229.669000 web nginx[7]: {line}"),
                    Envelope::Syslog,
                ),
                (
                    serde_json::json!({"message": line}).to_string(),
                    Envelope::Wrapped,
                ),
            ];
            for (text, envelope) in cases {
                let found = detect(text.as_bytes(), &Hints::default());
                assert_eq!(found, Some((envelope, format)), "{text}");
                assert_eq!(
                    envelope_of(text.as_bytes(), format, &Hints::default()),
                    envelope
                );
            }
        }
    }
}
