//! JSON objects around a log line, as journald and log collectors write them.
//!
//! - `journalctl -o json`:
//!   `{"__REALTIME_TIMESTAMP":"1431857103500000","SYSLOG_IDENTIFIER":"sshd","MESSAGE":"line"}`
//! - filebeat, Vector, Fluent Bit: `{"@timestamp":"2015-05-17T10:05:03Z","message":"line"}`
//!
//! journald writes a message that is not UTF-8 as an array of bytes. Such arrays are parsed too, so
//! that a client cannot escape its limit by sending such bytes.

use std::borrow::Cow;

use serde::Deserialize;

use super::message::Message;
use crate::line::Skip;
use crate::line::time::{self, Stamp};

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
pub(super) fn open<'a>(line: &[u8], buffer: &'a mut Vec<u8>) -> Result<Message<'a>, Skip> {
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
mod tests {
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
            let message = open(line.as_bytes(), &mut buffer).unwrap();
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
                open(line.as_bytes(), &mut Vec::new()),
                Err(Skip::Malformed),
                "{line}"
            );
        }
    }
}
