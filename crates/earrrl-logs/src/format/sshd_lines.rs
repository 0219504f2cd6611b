//! All lines of the SSH daemon in a syslog, such as `Dec 10 06:55:46 host sshd[24200]: message`.
//!
//! A line is a request if its message contains an IPv4 address. One attempt to log in causes
//! several lines, and a client that chooses a user's name can forge the address. The module
//! [`super::sshd`] counts attempts instead of lines.

use std::borrow::Cow;

use super::{Field, LineFields};
use crate::envelope::Message;
use crate::line::Skip;
use crate::line::time::Stamp;

/// The texts that directly precede an address.
const MARKS: [&[u8]; 3] = [b"from ", b"rhost=", b"["];

/// The texts that directly precede a user's name, the most specific first.
const USER_MARKS: [&[u8]; 4] = [b"nvalid user ", b"llegal user ", b" for ", b" user="];

/// A line of the SSH daemon that contains an address.
pub(super) struct Line<'a> {
    client: &'a [u8],
    message: &'a [u8],
}

/// Parses a line.
pub(super) fn parse(message: Message<'_>) -> Result<(Stamp, Line<'_>), Skip> {
    if !message.program.starts_with(b"sshd") {
        return Err(Skip::Malformed);
    }
    let time = message.time.ok_or(Skip::Time)?;
    let message = message.text;
    let client = client(message).ok_or(Skip::NoClient)?;
    Ok((time, Line { client, message }))
}

impl<'a> LineFields<'a> for Line<'a> {
    fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        match field {
            Field::Client => Some(Cow::Borrowed(self.client)),
            Field::User => USER_MARKS.iter().find_map(|mark| {
                let at = memchr::memmem::find(self.message, mark)? + mark.len();
                let words = &mut self.message[at..].split(|b| b.is_ascii_whitespace());
                // The text `for invalid user NAME` is handled by an earlier entry of `USER_MARKS`.
                words
                    .next()
                    .filter(|user| !user.is_empty())
                    .map(Cow::Borrowed)
            }),
            Field::Path | Field::Forwarded | Field::Named(_) => None,
        }
    }
}

/// Returns the first address that follows one of the texts in `MARKS`.
fn client(message: &[u8]) -> Option<&[u8]> {
    (0..message.len()).find_map(|at| {
        let rest = &message[at..];
        let mark = MARKS.iter().find(|mark| rest.starts_with(mark))?;
        ipv4_prefix(&rest[mark.len()..])
    })
}

/// Returns the IPv4 address at the start of a text.
fn ipv4_prefix(text: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    for part in 0..4 {
        if part > 0 {
            at += usize::from(text.get(at) == Some(&b'.'));
        }
        let len = text[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        let octet = std::str::from_utf8(&text[at..at + len]).ok()?;
        if len > 3 || octet.parse::<u8>().is_err() {
            return None;
        }
        at += len;
    }
    Some(&text[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(program: &str, message: &str, field: &Field) -> Result<Option<String>, Skip> {
        let text = Message::plain(message.as_bytes());
        let record = super::parse(Message {
            program: program.as_bytes(),
            time: Some(crate::line::time::Stamp::utc(1)),
            ..text
        });
        let (_, record) = record?;
        let text = |value: Cow<'_, [u8]>| String::from_utf8_lossy(&value).into_owned();
        Ok(record.get(field).map(text))
    }

    #[test]
    fn an_address_stands_behind_a_mark() {
        let cases = [
            ("Invalid user x from 192.0.2.7", Some("192.0.2.7")),
            (
                "Failed password for root from 192.0.2.7 port 22 ssh2",
                Some("192.0.2.7"),
            ),
            (
                "failure; rhost=192.0.2.7.dynamic.example.net  user=root",
                Some("192.0.2.7"),
            ),
            (
                "checking getaddrinfo for a.example [192.0.2.7] failed",
                Some("192.0.2.7"),
            ),
            (
                "from host.example [192.0.2.7]: from 198.51.100.1",
                Some("192.0.2.7"),
            ),
            (
                "input_userauth_request: invalid user webmaster [preauth]",
                None,
            ),
            ("Connection closed by 192.0.2.7", None),
            ("from 192.0.2.256", None),
            ("from 192.0.2", None),
            ("from 192.0.2.1234", None),
            ("from 192..2.1", None),
        ];
        for (message, address) in cases {
            let expected = address.ok_or(Skip::NoClient);
            let expected = expected.map(|address| Some(address.to_owned()));
            let found = parse("sshd[24200]", message, &Field::Client);
            assert_eq!(found, expected, "{message}");
        }
    }

    #[test]
    fn other_programs_are_skipped() {
        let found = parse("cron[1]", "from 192.0.2.7", &Field::Client);
        assert_eq!(found, Err(Skip::Malformed));
    }

    #[test]
    fn users() {
        for (message, user) in [
            (
                "Failed password for root from 192.0.2.7 port 22",
                Some("root"),
            ),
            (
                "Failed password for invalid user bob from 192.0.2.7",
                Some("bob"),
            ),
            (
                "authentication failure; rhost=192.0.2.7  user=root",
                Some("root"),
            ),
            ("Connection reset from 192.0.2.7", None),
        ] {
            let found = parse("sshd[1]", message, &Field::User);
            assert_eq!(found, Ok(user.map(str::to_owned)), "{message}");
        }
    }
}
