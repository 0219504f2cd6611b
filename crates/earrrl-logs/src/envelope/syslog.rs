//! Syslog's envelopes.
//!
//! - RFC 3164: `<34>Oct 11 22:14:15 host program[7]: message`; most files omit the priority `<34>`
//! - RFC 5424: `<34>1 2003-10-11T22:14:15.003Z host program 7 ID47 [data] message`
//! - `journalctl -o short-unix`: `1065910455.003000 host program[7]: message`
//! - files by rsyslog, systemd and others: `2003-10-11T22:14:15+02:00 host program[7]: message`
//!
//! Each may lack the host, and the first may lack the second blank before a day of one digit.

use super::message::Message;
use crate::line::Years;
use crate::line::time::{self, Stamp};

/// A line of syslog: the host that wrote it, which may be missing, and the message.
pub(super) struct SyslogLine<'a> {
    pub(super) host: &'a [u8],
    pub(super) message: Message<'a>,
}

/// Returns the content of a line with any of syslog's envelopes, or `None` if it has none of them.
///
/// If the daemon has merged equal lines into `message repeated 2 times: [ … ]`, the message is the one
/// in the brackets. For `last message repeated 2 times`, which names no program, the text is empty.
pub(super) fn open<'a>(line: &'a [u8], years: &mut Years) -> Option<SyslogLine<'a>> {
    let (framed, line) = without_priority(line);
    if framed && let Some(line) = line.strip_prefix(b"1 ") {
        return rfc5424(line);
    }
    let (time, rest) = match line.split_first_chunk::<15>() {
        Some((stamp, rest)) if stamp[3] == b' ' => {
            let (stamp, rest) = padded(*stamp, line, rest);
            let nanos = years.place(time::parse_syslog(&stamp)?);
            let stamp = nanos.map(|nanos| Stamp {
                nanos,
                has_zone: false,
            });
            (stamp, rest.strip_prefix(b" ")?)
        }
        _ => {
            let (stamp, rest) = word(line)?;
            (Some(Stamp::of(time::parse_recent, stamp)?), rest)
        }
    };
    let (first, behind) = word(rest)?;
    let (host, rest) = match first.ends_with(b":") || last_repeated(rest).is_some() {
        true => (&b""[..], rest),
        false => (first, behind),
    };
    if let Some(count) = last_repeated(rest) {
        let message = Message {
            time,
            count,
            ..Message::plain(b"")
        };
        return Some(SyslogLine { host, message });
    }
    let (program, text) = word(rest)?;
    let program = program.strip_suffix(b":")?;
    let (text, count) = repeated(text).unwrap_or((text, 1));
    let message = Message {
        time,
        program,
        text,
        count,
    };
    Some(SyslogLine { host, message })
}

/// Returns the number of times that the last line was repeated: of `last message repeated 2 times`, with or
/// without dashes around it or the name of the daemon before it.
fn last_repeated(text: &[u8]) -> Option<u64> {
    let text = text.strip_prefix(b"syslogd: ").unwrap_or(text);
    let text = text.strip_prefix(b"--- ").unwrap_or(text);
    let (count, rest) = number(text.strip_prefix(b"last message repeated ")?)?;
    rest.starts_with(b" time").then_some(count)
}

/// Unwraps `message repeated 2 times: [ … ]`, and returns the message and the number of times.
fn repeated(text: &[u8]) -> Option<(&[u8], u64)> {
    let (count, rest) = number(text.strip_prefix(b"message repeated ")?)?;
    let inner = rest.strip_prefix(b" times: [")?.strip_suffix(b"]")?;
    Some((inner.trim_ascii_start(), count))
}

/// Splits a text after the whole number, of at most nine digits, at its start.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let length = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(length);
    let digits = std::str::from_utf8(digits).ok()?;
    (length <= 9).then_some((digits.parse().ok()?, rest))
}

/// Returns a time stamp whose day has two characters, and the text after it: some programs write
/// `Oct 1` with one blank.
fn padded<'a>(stamp: [u8; 15], line: &'a [u8], rest: &'a [u8]) -> ([u8; 15], &'a [u8]) {
    if stamp[5] != b' ' {
        return (stamp, rest);
    }
    let mut padded = stamp;
    padded[4] = b' ';
    padded[5..].copy_from_slice(&stamp[4..14]);
    (padded, &line[14..])
}

/// Removes a priority such as `<34>`, and the frame length that a syslog stream has before it.
/// Returns whether there was a priority, and the text after it.
fn without_priority(line: &[u8]) -> (bool, &[u8]) {
    let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
    let framed = match digits(line) {
        length @ 1..=7 if line[length..].starts_with(b" <") => &line[length + 1..],
        _ => line,
    };
    let Some(rest) = framed.strip_prefix(b"<") else {
        return (false, line);
    };
    match digits(rest) {
        length @ 1..=3 if rest[length..].starts_with(b">") => (true, &rest[length + 1..]),
        _ => (false, line),
    }
}

/// Parses an RFC 5424 line after its version: time, host, program, process, kind of message and
/// structured data.
fn rfc5424(line: &[u8]) -> Option<SyslogLine<'_>> {
    let (stamp, rest) = word(line)?;
    let (host, rest) = word(rest)?;
    let (program, rest) = word(rest)?;
    let (_process, rest) = word(rest)?;
    let (_kind, rest) = word(rest)?;
    let text = without_data(rest)?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let (text, count) = repeated(text).unwrap_or((text, 1));
    let time = Stamp::of(time::parse_iso, stamp);
    let message = Message {
        time,
        program,
        text,
        count,
    };
    Some(SyslogLine { host, message })
}

/// Removes the structured data of RFC 5424. It may be missing altogether: Heroku does not even
/// write the `-` that stands for no data.
fn without_data(mut text: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = text.strip_prefix(b"- ") {
        return Some(rest);
    }
    while text.first() == Some(&b'[') {
        text = &text[end_of_element(text)?..];
    }
    Some(text.strip_prefix(b" ").unwrap_or(text))
}

/// Returns the index after the closing bracket of the structured data element that `text` starts
/// with. Brackets in quoted values do not count; in them a backslash escapes a quote.
fn end_of_element(text: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b']' if !quoted => return Some(at + 1),
            _ => {}
        }
        at += 1;
    }
}

/// Splits `text` at its first blank; `None` if there is no word before a blank.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b' ', text).filter(|&at| at > 0)?;
    Some((&text[..at], &text[at + 1..]))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::line::time::SECOND;

    fn opened(line: &str) -> Option<(Option<u64>, String, String)> {
        let years = &mut Years::new(Some(2003), UNIX_EPOCH);
        let message = open(line.as_bytes(), years)?.message;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some((
            message.time.map(|t| t.nanos / SECOND),
            text(message.program),
            text(message.text),
        ))
    }

    #[test]
    fn every_dialect() {
        let time = Some(1_065_910_455);
        let cases = [
            ("<34>Oct 11 22:14:15 host su[7]: hi there", time, "su[7]"),
            ("Oct 11 22:14:15 host su: hi there", time, "su"),
            ("<34>Oct 11 22:14:15 su: hi there", time, "su"),
            (
                "Oct  1 22:14:15 host su: hi there",
                Some(1_065_046_455),
                "su",
            ),
            (
                "Oct 1 22:14:15 host su: hi there",
                Some(1_065_046_455),
                "su",
            ),
            (
                "<34>1 2003-10-11T22:14:15.003Z host su 7 ID47 - hi there",
                time,
                "su",
            ),
            (
                r#"<34>1 2003-10-11T22:14:15Z h su - - [a b="]\"c"][d] hi there"#,
                time,
                "su",
            ),
            (
                "<34>1 2003-10-11T22:14:15Z h su - - \u{feff}hi there",
                time,
                "su",
            ),
            ("<34>1 2003-10-11T22:14:15Z h su 7 - hi there", time, "su"),
            (
                "71 <34>1 2003-10-11T22:14:15Z h su 7 - hi there",
                time,
                "su",
            ),
            ("<34>1 - h su 7 - - hi there", None, "su"),
            (
                "2003-10-12T00:14:15.003+02:00 host su[7]: hi there",
                time,
                "su[7]",
            ),
            ("2003-10-11T22:14:15Z su[7]: hi there", time, "su[7]"),
        ];
        for (line, time, program) in cases {
            assert_eq!(
                opened(line),
                Some((time, program.into(), "hi there".into())),
                "{line}"
            );
        }
    }

    #[test]
    fn merged_lines() {
        let counted = |line: &str| {
            let years = &mut Years::new(Some(2003), UNIX_EPOCH);
            let SyslogLine { host, message } = open(line.as_bytes(), years)?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Some((text(host), text(message.text), message.count))
        };
        for (line, host, text, count) in [
            (
                "Oct 11 22:14:15 h su[7]: message repeated 3 times: [ hi ]",
                "h",
                "hi ",
                3,
            ),
            (
                "2003-10-11T22:14:15Z h su: message repeated 3 times: [hi]",
                "h",
                "hi",
                3,
            ),
            (
                "<34>1 2003-10-11T22:14:15Z h su 7 - - message repeated 3 times: [ hi]",
                "h",
                "hi",
                3,
            ),
            (
                "Oct 11 22:14:15 h last message repeated 12 times",
                "h",
                "",
                12,
            ),
            ("Oct 11 22:14:15 last message repeated 12 times", "", "", 12),
            (
                "Oct 11 22:14:15 h --- last message repeated 1 time ---",
                "h",
                "",
                1,
            ),
            (
                "Oct 11 22:14:15 h syslogd: last message repeated 2 times",
                "h",
                "",
                2,
            ),
            (
                "Oct 11 22:14:15 h su: last message repeated 2 times",
                "h",
                "last message repeated 2 times",
                1,
            ),
            (
                "Oct 11 22:14:15 h su: message repeated 9999999999 times: [ hi]",
                "h",
                "message repeated 9999999999 times: [ hi]",
                1,
            ),
        ] {
            assert_eq!(
                counted(line),
                Some((host.into(), text.into(), count)),
                "{line}"
            );
        }
    }

    #[test]
    fn nothing_else() {
        let lines = [
            "",
            "Oct 11 22:14:15",
            "Oct 11 22:14:15 host",
            "Oct 11 22:14:15 host no colon",
            "Okt 11 22:14:15 host su: hi",
            "<34>1 2003-10-11T22:14:15Z h su - - [a",
            "192.0.2.7 - - [17/May/2015:10:05:03 +0000] x",
        ];
        for line in lines {
            assert_eq!(opened(line), None, "{line}");
        }
    }
}
