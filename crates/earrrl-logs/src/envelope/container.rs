//! Envelopes that container runtimes, journald and log collectors put around log lines.
//!
//! - Kubernetes (CRI): `2016-10-06T00:17:09.669794202Z stdout F line`
//! - Docker's json-file: `{"log":"line\n","stream":"stdout","time":"2016-10-06T00:17:09.66Z"}`
//! - Compose: `web-1  | line`; kubectl: `[pod/web-7d9c/nginx] line`; both may have a time after the
//!   prefix
//! - `journalctl -o json`:
//!   `{"__REALTIME_TIMESTAMP":"1431857103500000","SYSLOG_IDENTIFIER":"sshd","MESSAGE":"line"}`
//! - filebeat, Vector, Fluent Bit: `{"@timestamp":"2015-05-17T10:05:03Z","message":"line"}`
//!
//! Kubernetes and Docker split long lines into pieces. Only the first piece is parsed as a line:
//! otherwise a client could forge a line by sending a request longer than the 16 KiB of a piece.
//! journald writes a message that is not UTF-8 as an array of bytes. Such arrays are parsed too, so
//! that a client cannot escape its limit by sending such bytes.

use std::borrow::Cow;

use serde::Deserialize;

use super::message::Message;
use crate::line::Skip;
use crate::line::time::{self, Stamp};

/// The length in bytes of the pieces into which Docker splits long lines.
const DOCKER_PIECE: usize = 16 * 1024;

/// Flags for standard output and standard error, each set if the next piece of that stream
/// continues a line.
#[derive(Default)]
pub(super) struct Pieces {
    continues: [bool; 2],
}

impl Pieces {
    /// Returns the message in a line that Kubernetes has written.
    pub(super) fn cri<'a>(&mut self, line: &'a [u8]) -> Result<Message<'a>, Skip> {
        let (time, stream, rest) = cri_head(line).ok_or(Skip::Malformed)?;
        let tags = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let partial = rest[..tags].first() == Some(&b'P');
        self.whole(stream, partial)?;
        let text = rest.get(tags + 1..).unwrap_or(b"");
        Ok(Message {
            time,
            ..Message::plain(text)
        })
    }

    /// Returns the message in a line that Docker's json-file driver has written.
    pub(super) fn docker<'a>(
        &mut self,
        line: &[u8],
        unescaped: &'a mut Vec<u8>,
    ) -> Result<Message<'a>, Skip> {
        let entry: DockerLine<'_> = serde_json::from_slice(line).map_err(|_| Skip::Malformed)?;
        let text = entry.log.strip_suffix('\n');
        let partial = text.is_none() && entry.log.len() >= DOCKER_PIECE;
        self.whole(usize::from(entry.stream == "stderr"), partial)?;
        let text = text.unwrap_or(&entry.log);
        unescaped.clear();
        unescaped.extend_from_slice(text.strip_suffix('\r').unwrap_or(text).as_bytes());
        let time = entry.time.map(str::as_bytes);
        Ok(Message {
            time: time.and_then(|time| Stamp::of(time::parse_iso, time)),
            ..Message::plain(unescaped)
        })
    }

    /// Rejects a piece that continues a line, and notes whether the stream's next piece will do so.
    /// `partial` is true if the line goes on after this piece.
    fn whole(&mut self, stream: usize, partial: bool) -> Result<(), Skip> {
        let continuation = std::mem::replace(&mut self.continues[stream], partial);
        if continuation {
            Err(Skip::Continuation)
        } else {
            Ok(())
        }
    }
}

/// A line of Docker's json-file, as JSON.
#[derive(Deserialize)]
struct DockerLine<'a> {
    #[serde(borrow)]
    log: Cow<'a, str>,
    stream: &'a str,
    time: Option<&'a str>,
}

/// Splits a Kubernetes line into its time, its stream (0 for standard output, 1 for standard error)
/// and the remaining text.
fn cri_head(line: &[u8]) -> Option<(Option<Stamp>, usize, &[u8])> {
    let Message { time, text, .. } = stamped(line)?;
    let (stream, rest) = match text.split_at_checked(7)? {
        (b"stdout ", rest) => (0, rest),
        (b"stderr ", rest) => (1, rest),
        _ => return None,
    };
    let tagged = matches!(rest, [b'F' | b'P'] | [b'F' | b'P', b' ' | b':', ..]);
    tagged.then_some((time, stream, rest))
}

/// Returns the message of a line that begins with an ISO 8601 time and a blank.
pub(super) fn stamped(line: &[u8]) -> Option<Message<'_>> {
    let end = memchr::memchr(b' ', line)?;
    let time = Stamp::of(time::parse_iso, &line[..end])?;
    Some(Message {
        time: Some(time),
        ..Message::plain(&line[end + 1..])
    })
}

/// Returns the message in a line that Docker Compose or kubectl has written.
pub(super) fn compose(line: &[u8]) -> Option<Message<'_>> {
    let text = pod(line).or_else(|| service(line))?;
    Some(stamped(text).unwrap_or(Message::plain(text)))
}

/// Returns the text after kubectl's prefix, such as `[pod/web-7d9c/nginx] `.
fn pod(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"[pod/")?;
    let end = memchr::memmem::find(rest, b"] ")?;
    Some(&rest[end + 2..])
}

/// Returns the text after Compose's prefix, such as `web-1  | `. The service name may be coloured.
fn service(line: &[u8]) -> Option<&[u8]> {
    let name = without_colour(line);
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let length = name.iter().take_while(|b| is_name(b)).count();
    let rest = without_colour(name[length..].trim_ascii_start()).strip_prefix(b"|")?;
    let rest = without_colour(rest);
    (length > 0).then(|| rest.strip_prefix(b" ").map_or(rest, without_colour))
}

/// Removes a terminal escape sequence that sets a colour from the start of `text`.
fn without_colour(text: &[u8]) -> &[u8] {
    let Some(rest) = text.strip_prefix(b"\x1b[") else {
        return text;
    };
    let length = rest
        .iter()
        .take_while(|&&b| b.is_ascii_digit() || b == b';')
        .count();
    rest[length..].strip_prefix(b"m").unwrap_or(text)
}

// JSON objects around a log line, as journald and log collectors write them.
//
// - `journalctl -o json`:
//   `{"__REALTIME_TIMESTAMP":"1431857103500000","SYSLOG_IDENTIFIER":"sshd","MESSAGE":"line"}`
// - filebeat, Vector, Fluent Bit: `{"@timestamp":"2015-05-17T10:05:03Z","message":"line"}`
//
// journald writes a message that is not UTF-8 as an array of bytes. Such arrays are parsed too, so
// that a client cannot escape its limit by sending such bytes.

/// The fields of a wrapping JSON object that are used, under the names that each writer gives them.
#[derive(Deserialize)]
struct WrappedLine<'a> {
    #[serde(borrow, alias = "MESSAGE")]
    message: WrappedText<'a>,
    #[serde(borrow, alias = "__REALTIME_TIMESTAMP", alias = "@timestamp")]
    timestamp: Option<Cow<'a, str>>,
    #[serde(borrow, alias = "SYSLOG_IDENTIFIER", alias = "appname")]
    program: Option<Cow<'a, str>>,
}

/// A message: a JSON string, or the array of bytes that journald writes if it is not UTF-8.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrappedText<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Bytes(Vec<u8>),
}

/// Returns the message in a wrapping JSON object. `buffer` stores the program and the text that the
/// message borrows.
pub(super) fn wrapped<'a>(line: &[u8], buffer: &'a mut Vec<u8>) -> Result<Message<'a>, Skip> {
    let wrapped: WrappedLine<'_> = serde_json::from_slice(line).map_err(|_| Skip::Malformed)?;
    let program = wrapped.program.unwrap_or_default();
    buffer.clear();
    buffer.extend_from_slice(program.as_bytes());
    match &wrapped.message {
        WrappedText::Text(text) => buffer.extend_from_slice(text.as_bytes()),
        WrappedText::Bytes(bytes) => buffer.extend_from_slice(bytes),
    }
    let time = wrapped
        .timestamp
        .and_then(|text| Stamp::of(time::parse_recent, text.as_bytes()));
    let (program, text) = buffer.split_at(program.len());
    Ok(Message {
        time,
        program,
        ..Message::plain(text.trim_ascii_end())
    })
}

#[cfg(test)]
mod container_tests {
    use super::*;

    fn text(message: Option<Message<'_>>) -> Option<(bool, String)> {
        let Message { time, text, .. } = message?;
        Some((time.is_some(), String::from_utf8_lossy(text).into_owned()))
    }

    #[test]
    fn compose_and_kubectl() {
        let cases = [
            ("web-1  | a line", Some((false, "a line"))),
            ("web | a line", Some((false, "a line"))),
            ("\x1b[36mweb_1    |\x1b[0m a line", Some((false, "a line"))),
            ("\x1b[36mweb-1  | \x1b[0ma line", Some((false, "a line"))),
            (
                "web-1 | 2016-10-06T00:17:09.66Z a line",
                Some((true, "a line")),
            ),
            ("[pod/web-7d9c/nginx] a line", Some((false, "a line"))),
            ("web-1 a | line", None),
            ("| a line", None),
            ("", None),
        ];
        for (line, expected) in cases {
            let expected = expected.map(|(time, text)| (time, text.to_owned()));
            assert_eq!(text(compose(line.as_bytes())), expected, "{line}");
        }
    }

    #[test]
    fn kubernetes() {
        let mut pieces = Pieces::default();
        let mut open = |line: &str| {
            let message = pieces.cri(line.as_bytes())?;
            Ok(text(Some(message)).unwrap().1)
        };
        let time = "2016-10-06T00:17:09.669794202Z";
        assert_eq!(
            open(&format!("{time} stdout F a line")),
            Ok("a line".into())
        );
        assert_eq!(open(&format!("{time} stdout P start")), Ok("start".into()));
        assert_eq!(open(&format!("{time} stderr F other")), Ok("other".into()));
        assert_eq!(
            open(&format!("{time} stdout P 9.9.9.9")),
            Err(Skip::Continuation)
        );
        assert_eq!(
            open(&format!("{time} stdout F 9.9.9.9")),
            Err(Skip::Continuation)
        );
        assert_eq!(open(&format!("{time} stdout F:x next")), Ok("next".into()));
        assert_eq!(open(&format!("{time} stdout F")), Ok(String::new()));
        for line in ["", "x stdout F a", "2016-10-06T00:17:09Z stdin F a"] {
            assert_eq!(open(line), Err(Skip::Malformed), "{line}");
        }
        assert_eq!(open(&format!("{time} stdout X a")), Err(Skip::Malformed));
    }

    #[test]
    fn docker() {
        let mut pieces = Pieces::default();
        let mut open = |log: &str| {
            let line = serde_json::json!({"log": log, "stream": "stdout", "time": "2016-10-06T00:17:09.66Z"});
            let mut unescaped = Vec::new();
            let message = pieces.docker(line.to_string().as_bytes(), &mut unescaped)?;
            Ok(text(Some(message)).unwrap())
        };
        assert_eq!(open("a \"line\"\r\n"), Ok((true, "a \"line\"".into())));
        assert_eq!(open("no end"), Ok((true, "no end".into())));
        let long = "x".repeat(DOCKER_PIECE);
        assert_eq!(open(&long), Ok((true, long.clone())));
        assert_eq!(open("9.9.9.9 - -\n"), Err(Skip::Continuation));
        assert_eq!(open("next\n"), Ok((true, "next".into())));
        assert_eq!(pieces.docker(b"{}", &mut Vec::new()), Err(Skip::Malformed));
    }
}

#[cfg(test)]
mod wrapped_tests {
    use super::*;

    #[test]
    fn journald_and_collectors() {
        let cases = [
            (
                r#"{"__REALTIME_TIMESTAMP":"1431857103500000","SYSLOG_IDENTIFIER":"sshd","MESSAGE":"a \"line\""}"#,
                "sshd",
                r#"a "line""#,
            ),
            (
                r#"{"@timestamp":"2015-05-17T10:05:03.5Z","message":"a line\n","host":{"name":"web"}}"#,
                "",
                "a line",
            ),
            (
                r#"{"timestamp":"2015-05-17T12:05:03.5+02:00","appname":"sshd","message":[97,255]}"#,
                "sshd",
                "a\u{fffd}",
            ),
        ];
        for (line, program, text) in cases {
            let mut buffer = Vec::new();
            let message = wrapped(line.as_bytes(), &mut buffer).unwrap();
            assert_eq!(
                message.time,
                Some(Stamp::utc(1_431_857_103_500_000_000)),
                "{line}"
            );
            assert_eq!(message.program, program.as_bytes());
            assert_eq!(String::from_utf8_lossy(message.text), text);
        }
        for line in ["{}", "a line", r#"{"message":7}"#] {
            assert_eq!(
                wrapped(line.as_bytes(), &mut Vec::new()),
                Err(Skip::Malformed),
                "{line}"
            );
        }
    }
}
