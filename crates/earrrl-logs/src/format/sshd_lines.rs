//! All lines of the SSH daemon in a syslog, such as `Dec 10 06:55:46 host sshd[24200]: message`,
//! with times in UTC.
//!
//! A line is a request if its message contains an IPv4 address. One attempt to log in causes
//! several lines, and a client that chooses a user's name can forge the address. The module
//! [`super::sshd`] counts attempts instead of lines.

use super::Field;
use crate::line::Skip;
use crate::line::Years;
use crate::line::time;

/// The texts that directly precede an address.
const MARKS: [&[u8]; 3] = [b"from ", b"rhost=", b"["];

/// The texts that directly precede a user's name, the most specific first.
const USER_MARKS: [&[u8]; 4] = [b"nvalid user ", b"llegal user ", b" for ", b" user="];

/// A line of the SSH daemon that contains an address.
pub struct Record<'a> {
    /// The time of the line, in nanoseconds since the Unix epoch.
    pub time: u64,
    client: &'a [u8],
    message: &'a [u8],
}

/// Parses a line.
pub(super) fn parse<'a>(line: &'a [u8], years: &mut Years) -> Result<Record<'a>, Skip> {
    let (stamp, rest) = line.split_first_chunk::<15>().ok_or(Skip::Malformed)?;
    let message = message(rest).ok_or(Skip::Malformed)?;
    let date = time::parse_syslog(stamp).ok_or(Skip::Time)?;
    let time = years.place(date).ok_or(Skip::Time)?;
    let client = client(message).ok_or(Skip::NoClient)?;
    Ok(Record {
        time,
        client,
        message,
    })
}

impl<'a> Record<'a> {
    /// Returns the value of a field.
    pub fn get(&self, field: &Field) -> Option<&'a [u8]> {
        match field {
            Field::Client => Some(self.client),
            Field::User => USER_MARKS.iter().find_map(|mark| {
                let at = memchr::memmem::find(self.message, mark)? + mark.len();
                let user = self.message[at..]
                    .split(|b| b.is_ascii_whitespace())
                    .next()?;
                // The text `for invalid user NAME` is handled by an earlier entry of `USER_MARKS`.
                (!user.is_empty()).then_some(user)
            }),
            Field::Path | Field::Forwarded | Field::Named(_) => None,
        }
    }
}

/// Returns the message behind ` HOST sshd…: `.
fn message(rest: &[u8]) -> Option<&[u8]> {
    let rest = rest.strip_prefix(b" ")?;
    let rest = &rest[memchr::memchr(b' ', rest)? + 1..];
    if !rest.starts_with(b"sshd") {
        return None;
    }
    let tag = memchr::memchr(b' ', rest)?;
    rest[..tag].ends_with(b":").then(|| &rest[tag + 1..])
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
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::line::time::SECOND;

    fn record(line: &str) -> Result<Record<'_>, Skip> {
        super::parse(line.as_bytes(), &mut Years::new(Some(2016), UNIX_EPOCH))
    }

    fn parse(line: &str) -> Result<(u64, String), Skip> {
        let record = record(line)?;
        Ok((
            record.time / SECOND,
            String::from_utf8_lossy(record.client).into_owned(),
        ))
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
            let line = format!("Dec 10 06:55:46 host sshd[24200]: {message}");
            let expected = address
                .map(|a| (1_481_352_946, a.to_owned()))
                .ok_or(Skip::NoClient);
            assert_eq!(parse(&line), expected, "{message}");
        }
    }

    #[test]
    fn other_lines_are_none() {
        let cases = [
            (
                "Dec 10 06:55:46 host cron[1]: from 192.0.2.7",
                Skip::Malformed,
            ),
            (
                "Dec 10 06:55:46 host sshd[1] from 192.0.2.7",
                Skip::Malformed,
            ),
            ("Dec 10 06:55:46", Skip::Malformed),
            ("Dez 10 06:55:46 host sshd[1]: from 192.0.2.7", Skip::Time),
            ("Feb 30 06:55:46 host sshd[1]: from 192.0.2.7", Skip::Time),
        ];
        for (line, skip) in cases {
            assert_eq!(parse(line), Err(skip), "{line}");
        }
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
            let line = format!("Dec 10 06:55:46 host sshd[1]: {message}");
            let record = record(&line).ok().unwrap();
            assert_eq!(
                record.get(&Field::User),
                user.map(str::as_bytes),
                "{message}"
            );
        }
    }
}
