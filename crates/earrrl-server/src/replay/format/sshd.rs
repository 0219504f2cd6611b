//! The ssh daemon's lines in a syslog: `Dec 10 06:55:46 host sshd[24200]: message`, in UTC.
//!
//! A line is a request if its message names an IPv4 address.

use std::time::{SystemTime, UNIX_EPOCH};

use super::Field;
use crate::replay::skips::Skip;
use crate::replay::time::{self, SECOND};

/// What such lines say.
pub(super) const FIELDS: [&str; 2] = ["client", "user"];

/// What an address stands directly behind.
const MARKS: [&[u8]; 3] = [b"from ", b"rhost=", b"["];

/// What a user's name stands directly behind, the more telling first.
const USER_MARKS: [&[u8]; 4] = [b"nvalid user ", b"llegal user ", b" for ", b" user="];

/// Reads such lines.
pub(crate) struct Parser {
    years: Years,
}

/// Syslog lines carry no year.
enum Years {
    /// The first line's was told; it goes up where the months start anew.
    Counted { first: u32, now: u32, last_month: u32 },
    /// The latest in which the line is no more than a day after this, when the file was written.
    UpTo(u64),
}

/// A line with an address.
pub(crate) struct Record<'a> {
    /// Nanoseconds since the epoch.
    pub(crate) time: u64,
    client: &'a [u8],
    message: &'a [u8],
}

impl Parser {
    /// A parser for a log whose first line is of `year`, or that was last `modified` then.
    pub(crate) fn new(year: Option<u32>, modified: SystemTime) -> Self {
        let years = match year {
            Some(year) => Years::Counted { first: year, now: year, last_month: 1 },
            None => {
                let age = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
                Years::UpTo((age.as_secs() + 86_400) * SECOND)
            }
        };
        Self { years }
    }

    /// Takes a line apart.
    pub(crate) fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Record<'a>, Skip> {
        let (stamp, rest) = line.split_first_chunk::<15>().ok_or(Skip::Malformed)?;
        let message = message(rest).ok_or(Skip::Malformed)?;
        let date = time::parse_syslog(stamp).ok_or(Skip::Time)?;
        let time = self.years.place(date).ok_or(Skip::Time)?;
        let client = client(message).ok_or(Skip::NoClient)?;
        Ok(Record { time, client, message })
    }
}

impl Years {
    /// The time of a month, day and second.
    fn place(&mut self, (month, day, second): (u32, u32, u32)) -> Option<u64> {
        match self {
            Self::Counted { first, now, last_month } => {
                // A line out of order may fall back behind the turn of the year.
                if month + 6 <= *last_month {
                    *now += 1;
                } else if *now > *first && *last_month == 1 && month == 12 {
                    *now -= 1;
                }
                *last_month = month;
                time::at(*now, month, day, second)
            }
            Self::UpTo(end) => {
                let year = time::year_of(*end);
                // Four years back there is a leap day at the latest, but for 1900 and its like.
                let years = (year.saturating_sub(8)..=year).rev();
                years.filter_map(|y| time::at(y, month, day, second)).find(|time| time <= end)
            }
        }
    }
}

impl<'a> Record<'a> {
    /// What the line says in a field.
    pub(crate) fn get(&self, field: &Field) -> Option<&'a [u8]> {
        match field {
            Field::Client => Some(self.client),
            Field::User => USER_MARKS.iter().find_map(|mark| {
                let at = memchr::memmem::find(self.message, mark)? + mark.len();
                let user = self.message[at..].split(|b| b.is_ascii_whitespace()).next()?;
                // `for invalid user NAME` has been caught before.
                (!user.is_empty()).then_some(user)
            }),
            Field::Path | Field::Named(_) => None,
        }
    }
}

/// The message behind ` HOST sshd…: `.
fn message(rest: &[u8]) -> Option<&[u8]> {
    let rest = rest.strip_prefix(b" ")?;
    let rest = &rest[memchr::memchr(b' ', rest)? + 1..];
    if !rest.starts_with(b"sshd") {
        return None;
    }
    let tag = memchr::memchr(b' ', rest)?;
    rest[..tag].ends_with(b":").then(|| &rest[tag + 1..])
}

/// The first address that stands where the daemon puts a client's.
fn client(message: &[u8]) -> Option<&[u8]> {
    (0..message.len()).find_map(|at| {
        let rest = &message[at..];
        let mark = MARKS.iter().find(|mark| rest.starts_with(mark))?;
        ipv4_prefix(&rest[mark.len()..])
    })
}

/// The IPv4 address that a text starts with.
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
    use std::time::Duration;

    use super::*;

    fn parse(parser: &mut Parser, line: &str) -> Result<(u64, String), Skip> {
        let record = parser.parse(line.as_bytes())?;
        Ok((record.time / SECOND, String::from_utf8_lossy(record.client).into_owned()))
    }

    #[test]
    fn an_address_stands_behind_a_mark() {
        let cases = [
            ("Invalid user x from 192.0.2.7", Some("192.0.2.7")),
            ("Failed password for root from 192.0.2.7 port 22 ssh2", Some("192.0.2.7")),
            ("failure; rhost=192.0.2.7.dynamic.example.net  user=root", Some("192.0.2.7")),
            ("checking getaddrinfo for a.example [192.0.2.7] failed", Some("192.0.2.7")),
            ("from host.example [192.0.2.7]: from 198.51.100.1", Some("192.0.2.7")),
            ("input_userauth_request: invalid user webmaster [preauth]", None),
            ("Connection closed by 192.0.2.7", None),
            ("from 192.0.2.256", None),
            ("from 192.0.2", None),
            ("from 192.0.2.1234", None),
            ("from 192..2.1", None),
        ];
        for (message, address) in cases {
            let line = format!("Dec 10 06:55:46 host sshd[24200]: {message}");
            let mut parser = Parser::new(Some(2016), UNIX_EPOCH);
            let expected = address.map(|a| (1_481_352_946, a.to_owned())).ok_or(Skip::NoClient);
            assert_eq!(parse(&mut parser, &line), expected, "{message}");
        }
    }

    #[test]
    fn other_lines_are_none() {
        let cases = [
            ("Dec 10 06:55:46 host cron[1]: from 192.0.2.7", Skip::Malformed),
            ("Dec 10 06:55:46 host sshd[1] from 192.0.2.7", Skip::Malformed),
            ("Dec 10 06:55:46", Skip::Malformed),
            ("Dez 10 06:55:46 host sshd[1]: from 192.0.2.7", Skip::Time),
            ("Feb 30 06:55:46 host sshd[1]: from 192.0.2.7", Skip::Time),
        ];
        for (line, skip) in cases {
            let mut parser = Parser::new(Some(2016), UNIX_EPOCH);
            assert_eq!(parse(&mut parser, line), Err(skip), "{line}");
        }
    }

    #[test]
    fn users() {
        for (message, user) in [
            ("Failed password for root from 192.0.2.7 port 22", Some("root")),
            ("Failed password for invalid user bob from 192.0.2.7", Some("bob")),
            ("authentication failure; rhost=192.0.2.7  user=root", Some("root")),
            ("Connection reset from 192.0.2.7", None),
        ] {
            let line = format!("Dec 10 06:55:46 host sshd[1]: {message}");
            let mut parser = Parser::new(Some(2016), UNIX_EPOCH);
            let record = parser.parse(line.as_bytes()).ok().unwrap();
            assert_eq!(record.get(&Field::User), user.map(str::as_bytes), "{message}");
        }
    }

    fn years(parser: &mut Parser, dates: &[&str]) -> Vec<u32> {
        let line = |date| format!("{date} 00:00:00 host sshd[1]: from 192.0.2.7");
        let time = |date| parse(parser, &line(date)).unwrap().0 * SECOND;
        dates.iter().map(time).map(time::year_of).collect()
    }

    #[test]
    fn a_given_year_goes_up_at_new_year() {
        let mut parser = Parser::new(Some(2015), UNIX_EPOCH);
        let dates = ["Dec 30", "Jan  1", "Dec 31", "Jan  1", "Feb 29", "Dec 31", "Jan  1"];
        assert_eq!(years(&mut parser, &dates), [2015, 2016, 2015, 2016, 2016, 2016, 2017]);
        let mut parser = Parser::new(Some(2015), UNIX_EPOCH);
        assert_eq!(years(&mut parser, &["Jan  1", "Dec 31"]), [2015, 2015]);
    }

    #[test]
    fn without_one_the_file_was_written_after_its_lines() {
        let written = Duration::from_nanos(time::at(2017, 1, 3, 0).unwrap());
        let mut parser = Parser::new(None, UNIX_EPOCH + written);
        let dates = ["Dec 30", "Jan  3", "Jan  4", "Jan  5", "Feb 29"];
        assert_eq!(years(&mut parser, &dates), [2016, 2017, 2017, 2016, 2016]);
    }
}
