//! Failed attempts to log in by SSH, each counted once, from the SSH daemon's syslog messages.
//!
//! One attempt causes up to four lines: `Invalid user`, PAM's message, `Failed password`, and the
//! end of the connection. A line `Failed … for` counts, unless it is about an invalid user that
//! has been counted already. A dialogue (keyboard-interactive) with PAM that fails is logged as
//! `error: PAM: … for`, and perhaps as `Failed keyboard-interactive/pam for` after that, which is the
//! same attempt. The end of a connection counts only if no failure of that connection
//! was logged before, since daemons that accept only keys log nothing else. An accepted login is
//! not a failure.
//!
//! The address is the one that the daemon itself wrote at the end of the line. It stands behind
//! the user's name, which the client chooses and which may look like an address: `Invalid user
//! from 9.9.9.9 from 192.0.2.7 port 22`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use super::{Field, LineFields};
use crate::envelope::Message;
use crate::line::Skip;
use crate::line::time::Stamp;

/// The names of the fields in SSH login attempts.
pub(super) const FIELDS: [&str; 2] = ["client", "user"];

/// The greatest number of connections that are remembered. When it is reached, all of them are
/// dropped.
const MOST: usize = 1 << 16;

/// The texts at the start of lines about the end of a connection.
const ENDS: [&[u8]; 3] = [
    b"Connection closed by ",
    b"Connection reset by ",
    b"Disconnected from ",
];

/// Parses the lines of the SSH daemon.
#[derive(Default)]
pub(super) struct Parser {
    /// The last event counted for each connection. A connection is identified by its process and
    /// address.
    connections: HashMap<Vec<u8>, CountedConnection>,
}

/// The last event that was counted for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountedConnection {
    /// The user was invalid. The first failure after this event belongs to the same attempt.
    InvalidUser,
    /// PAM reported a failed dialogue. A failure of the dialogue after this event is the same attempt.
    Dialogue,
    /// A failed attempt was counted, or a login was accepted.
    Attempt,
}

/// A failed attempt to log in by SSH.
pub(super) struct Line<'a> {
    client: &'a [u8],
    user: &'a [u8],
}

/// The event that a line reports.
enum SshdEvent {
    InvalidUser,
    Failed {
        invalid_user: bool,
        by_dialogue: bool,
    },
    /// PAM's own line about a failed dialogue.
    FailedByPam,
    Ended,
    Accepted,
}

impl Parser {
    /// Returns the attempt on a line.
    fn attempt<'a>(&mut self, message: Message<'a>) -> Result<Line<'a>, Skip> {
        if !message.program.starts_with(b"sshd") {
            return Err(Skip::Malformed);
        }
        let (event, rest) = event(message.text).ok_or(Skip::NoRequest)?;
        let rest = without_key(rest).ok_or(Skip::Ambiguous)?;
        let (user, client) = user_and_client(&event, rest).ok_or(Skip::NoClient)?;
        if !self.counts(&event, &[message.program, b" ", client].concat()) {
            return Err(Skip::NoRequest);
        }
        Ok(Line { client, user })
    }

    /// Returns true if the event is a failed attempt that has not been counted yet, and records
    /// the event.
    fn counts(&mut self, event: &SshdEvent, connection: &[u8]) -> bool {
        if self.connections.len() >= MOST {
            self.connections.clear();
        }
        let before = match event {
            SshdEvent::Ended => self.connections.remove(connection),
            SshdEvent::InvalidUser => self
                .connections
                .insert(connection.to_owned(), CountedConnection::InvalidUser),
            SshdEvent::FailedByPam => self
                .connections
                .insert(connection.to_owned(), CountedConnection::Dialogue),
            SshdEvent::Failed { .. } | SshdEvent::Accepted => self
                .connections
                .insert(connection.to_owned(), CountedConnection::Attempt),
        };
        match event {
            SshdEvent::InvalidUser => true,
            SshdEvent::FailedByPam => before != Some(CountedConnection::InvalidUser),
            SshdEvent::Failed {
                invalid_user,
                by_dialogue,
            } => match before {
                Some(CountedConnection::InvalidUser) => !invalid_user,
                Some(CountedConnection::Dialogue) => !by_dialogue,
                _ => true,
            },
            SshdEvent::Ended => before.is_none(),
            SshdEvent::Accepted => false,
        }
    }
}

impl Parser {
    pub(super) fn parse<'a>(&'a mut self, message: Message<'a>) -> Result<(Stamp, Line<'a>), Skip> {
        let line = self.attempt(message)?;
        let time = message.time.ok_or(Skip::Time)?;
        Ok((time, line))
    }
}

impl<'a> LineFields<'a> for Line<'a> {
    fn get(&self, field: &Field) -> Option<Cow<'a, [u8]>> {
        match field {
            Field::Client => Some(Cow::Borrowed(self.client)),
            Field::User => (!self.user.is_empty()).then_some(Cow::Borrowed(self.user)),
            Field::Path | Field::Forwarded | Field::Named(_) => None,
        }
    }
}

/// Returns the event that a line reports, and the text behind the event's description.
fn event(text: &[u8]) -> Option<(SshdEvent, &[u8])> {
    if let Some(rest) = text.strip_prefix(b"Failed ") {
        let at = memchr::memmem::find(rest, b" for ")?;
        let method = &rest[..at];
        let rest = &rest[at + 5..];
        // A client uses the method `none` to ask which methods it may use, so its failure does not
        // count.
        let invalid_user = rest.starts_with(b"invalid user ");
        let by_dialogue = method.starts_with(b"keyboard-interactive");
        let asks = method == b"none" && !invalid_user;
        let failed = SshdEvent::Failed {
            invalid_user,
            by_dialogue,
        };
        return (!asks && !method.contains(&b' ')).then_some((failed, rest));
    }
    if let Some(rest) = text.strip_prefix(b"error: PAM: ") {
        let rest = &rest[memchr::memmem::find(rest, b" for ")? + 5..];
        return Some((SshdEvent::FailedByPam, rest));
    }
    for start in [&b"Invalid user "[..], b"Illegal user "] {
        if let Some(rest) = text.strip_prefix(start) {
            return Some((SshdEvent::InvalidUser, rest));
        }
    }
    if let Some(rest) = text.strip_prefix(b"Accepted ") {
        return Some((
            SshdEvent::Accepted,
            &rest[memchr::memmem::find(rest, b" for ")? + 5..],
        ));
    }
    let rest = ENDS.iter().find_map(|start| text.strip_prefix(*start))?;
    let known = [&b"authenticating user "[..], b"invalid user "];
    let rest = known.iter().find_map(|start| rest.strip_prefix(*start))?;
    Some((SshdEvent::Ended, rest))
}

/// Removes the description of a key from the end of a line. The description may contain names that
/// the client has chosen: `… port 4711 ssh2: RSA SHA256:…, client user "bob", client host "x from
/// 9.9.9.9 port 22"`. Returns `None` if an address follows the first `ssh2: `, since the text
/// `ssh2: ` may also be part of the user's name.
fn without_key(rest: &[u8]) -> Option<&[u8]> {
    let Some(at) = memchr::memmem::find(rest, b" ssh2: ") else {
        return Some(rest);
    };
    let forged = memchr::memmem::find(&rest[at..], b" from ").is_some();
    (!forged).then_some(&rest[..at])
}

/// Returns the user's name, and the client's address behind it, which is the last address on the
/// line.
fn user_and_client<'a>(event: &SshdEvent, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let invalid = [&b"invalid user "[..], b"illegal user "];
    let name = invalid.iter().find_map(|start| rest.strip_prefix(*start));
    let rest = name.unwrap_or(rest);
    let rest = rest.strip_suffix(b" [preauth]").unwrap_or(rest);
    let mark: &[u8] = if matches!(event, SshdEvent::Ended) {
        b" "
    } else {
        b"from "
    };
    let port = memchr::memmem::rfind(rest, b" port ");
    // The text behind the port is the protocol and the description of a key. A port that an address follows
    // is part of the user's name: PAM and old daemons write none.
    let is_last = |at: &usize| {
        let behind = &rest[at + 6..];
        let is_of_user = mark != b" " && memchr::memmem::find(behind, mark).is_some();
        behind.first().is_some_and(u8::is_ascii_digit) && !is_of_user
    };
    let end = port.filter(is_last).unwrap_or(rest.len());
    let at = memchr::memmem::rfind(&rest[..end], mark)?;
    let client = rest[at + mark.len()..end].trim_ascii_end();
    address(client)?;
    Some((rest[..at].trim_ascii(), client))
}

/// Parses an IP address; the zone of a link-local address is ignored.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    text.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(lines: &[(&str, &str)]) -> Vec<String> {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        for (program, text) in lines {
            let program = program.as_bytes();
            let message = Message::plain(text.as_bytes());
            if let Ok(line) = parser.attempt(Message { program, ..message }) {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                found.push(text(line.client) + " " + &text(line.user));
            }
        }
        found
    }

    #[test]
    fn each_failed_attempt_once() {
        let sessions: [(&[&str], &[&str]); 14] = [
            (
                &[
                    "error: PAM: Authentication error for root from 192.0.2.7",
                    "error: PAM: Authentication failure for root from 192.0.2.7",
                    "Failed keyboard-interactive/pam for root from 192.0.2.7 port 4711 ssh2",
                    "Failed password for root from 192.0.2.7 port 4711 ssh2",
                    "Postponed keyboard-interactive for root from 192.0.2.7 port 4711 ssh2 [preauth]",
                    "Connection closed by authenticating user root 192.0.2.7 port 4711 [preauth]",
                ],
                &["192.0.2.7 root"; 3],
            ),
            (
                &[
                    "Invalid user bob from 192.0.2.7 port 4711",
                    "error: PAM: User not known to the underlying authentication module for illegal user bob from 192.0.2.7",
                    "Failed keyboard-interactive/pam for invalid user bob from 192.0.2.7 port 4711 ssh2",
                    "error: PAM: Authentication failure for illegal user x from 9.9.9.9 from 192.0.2.7",
                    "Failed keyboard-interactive/pam for invalid user bob from 192.0.2.7 port 4711 ssh2",
                ],
                &["192.0.2.7 bob", "192.0.2.7 x from 9.9.9.9"],
            ),
            (
                &["Failed keyboard-interactive/pam for root from 192.0.2.7 port 4711 ssh2"],
                &["192.0.2.7 root"],
            ),
            (
                &[
                    "Invalid user bob from 192.0.2.7 port 4711",
                    "pam_unix(sshd:auth): check pass; user unknown",
                    "pam_unix(sshd:auth): authentication failure; logname= uid=0 rhost=192.0.2.7",
                    "Failed password for invalid user bob from 192.0.2.7 port 4711 ssh2",
                    "Failed password for invalid user bob from 192.0.2.7 port 4711 ssh2",
                    "Disconnected from invalid user bob 192.0.2.7 port 4711 [preauth]",
                ],
                &["192.0.2.7 bob", "192.0.2.7 bob"],
            ),
            (
                &[
                    "pam_unix(sshd:auth): authentication failure; rhost=192.0.2.7  user=root",
                    "Failed password for root from 192.0.2.7 port 4711 ssh2",
                    "error: maximum authentication attempts exceeded for root from 192.0.2.7 port 4711 ssh2 [preauth]",
                    "Disconnecting authenticating user root 192.0.2.7 port 4711: Too many [preauth]",
                    "Connection closed by authenticating user root 192.0.2.7 port 4711 [preauth]",
                ],
                &["192.0.2.7 root"],
            ),
            (
                &["Connection closed by authenticating user root 192.0.2.7 port 1 [preauth]"],
                &["192.0.2.7 root"],
            ),
            (
                &[
                    "Invalid user a b from 2001:db8::1 port 1",
                    "Connection closed by invalid user a b 2001:db8::1 port 1 [preauth]",
                ],
                &["2001:db8::1 a b"],
            ),
            (
                &[
                    "Accepted publickey for ann from 192.0.2.7 port 1 ssh2: RSA SHA256:x",
                    "Disconnected from user ann 192.0.2.7 port 1",
                ],
                &[],
            ),
            (
                &[
                    "Failed password for ann from 192.0.2.7 port 1 ssh2",
                    "Accepted password for ann from 192.0.2.7 port 1 ssh2",
                ],
                &["192.0.2.7 ann"],
            ),
            (
                &["Invalid user x from 9.9.9.9 port 22 from 192.0.2.7"],
                &["192.0.2.7 x from 9.9.9.9 port 22"],
            ),
            (
                &["Invalid user from 10.9.9.9 from 5.6.7.8 port 22"],
                &["5.6.7.8 from 10.9.9.9"],
            ),
            (
                &[
                    "Failed password for invalid user a from 9.9.9.9 port 22 ssh2 from 192.0.2.7 port 1 ssh2",
                ],
                &["192.0.2.7 a from 9.9.9.9 port 22 ssh2"],
            ),
            (
                &[
                    "Illegal user bob from 192.0.2.7",
                    "Failed none for ann from 192.0.2.7 port 1 ssh2",
                ],
                &["192.0.2.7 bob"],
            ),
            (
                &[
                    "Failed password for root from localhost port 1 ssh2",
                    "Server listening on 0.0.0.0 port 22.",
                ],
                &[],
            ),
        ];
        for (lines, expected) in sessions {
            let lines: Vec<_> = lines.iter().map(|line| ("sshd[7]", *line)).collect();
            assert_eq!(attempts(&lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn connections_are_distinguished() {
        let failed = "Failed password for invalid user bob from 192.0.2.7 port 4711 ssh2";
        let lines = [
            ("sshd[7]", "Invalid user bob from 192.0.2.7 port 4711"),
            ("sshd-session[8]", failed),
            ("sshd[7]", failed),
            ("cron[7]", failed),
        ];
        assert_eq!(attempts(&lines), ["192.0.2.7 bob"; 2]);
    }
}
