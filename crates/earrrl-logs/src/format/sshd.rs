//! The attempts to log in by SSH, each counted once, on the lines that [`super::vendors::SSHD`] matches.
//!
//! One attempt causes up to four lines: `Invalid user`, PAM's message, `Failed password`, and the
//! end of the connection. A line `Failed … for` counts, unless it is about an invalid user that
//! has been counted already. A dialogue (keyboard-interactive) with PAM that fails is logged as
//! `error: PAM: … for`, and perhaps as `Failed keyboard-interactive/pam for` after that, which is the
//! same attempt. The end of a connection counts only if no failure of that connection
//! was logged before, since daemons that accept only keys log nothing else. An accepted login is
//! not a failure.

use std::collections::HashMap;

use crate::envelope::Message;
use crate::line::Skip;

/// The greatest number of connections that are remembered. When it is reached, all of them are
/// dropped.
const MOST: usize = 1 << 16;

/// The last event of each connection, which is identified by its process and address.
#[derive(Default)]
pub(super) struct Attempts(HashMap<Vec<u8>, Event>);

/// The event that a line reports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The user is invalid. The first failure after this event belongs to the same attempt.
    InvalidUser,
    /// PAM reports a failed dialogue. A failure of the dialogue after this event is the same attempt.
    FailedByPam,
    /// An attempt failed.
    Failed,
    /// A login was accepted.
    Accepted,
    /// The connection ended.
    Ended,
}

impl Attempts {
    /// Remembers the event of a line about this client.
    ///
    /// # Errors
    /// Returns [`Skip::NoRequest`] unless the line reports a failed attempt that has not been counted yet, and
    /// [`Skip::Ambiguous`] if an address or a port follows the text `ssh2: `, which may be part of a user's name.
    pub(super) fn count(&mut self, message: Message<'_>, client: &[u8]) -> Result<(), Skip> {
        let Self(connections) = self;
        let from = |part: &str| {
            let at = memchr::memmem::find(message.text, part.as_bytes())?;
            Some(&message.text[at..])
        };
        let has = |text: &[u8], part: &str| memchr::memmem::find(text, part.as_bytes()).is_some();
        if from(" ssh2: ").is_some_and(|text| has(text, " from ") || has(text, " port ")) {
            return Err(Skip::Ambiguous);
        }
        let is_invalid = from(" for ").is_some_and(|text| text.starts_with(b" for invalid user "));
        let begins = |start: &str| message.text.starts_with(start.as_bytes());
        let event = match message.text[0] {
            b'I' => Event::InvalidUser,
            b'e' => Event::FailedByPam,
            b'F' => Event::Failed,
            b'A' => Event::Accepted,
            _ => Event::Ended,
        };
        // A client uses the method `none` to ask which methods it may use.
        if begins("Failed none ") && !is_invalid {
            return Err(Skip::NoRequest);
        }
        if connections.len() >= MOST {
            connections.clear();
        }
        let connection = [message.program, b" ", client].concat();
        let before = match event {
            Event::Ended => connections.remove(&connection),
            event => connections.insert(connection, event),
        };
        let counts = match (event, before) {
            (Event::InvalidUser, _) => true,
            (Event::FailedByPam, before) => before != Some(Event::InvalidUser),
            (Event::Failed, Some(Event::InvalidUser)) => !is_invalid,
            (Event::Failed, Some(Event::FailedByPam)) => !begins("Failed keyboard-interactive"),
            (Event::Failed, _) => true,
            (Event::Accepted, _) => false,
            (Event::Ended, before) => before.is_none(),
        };
        if counts { Ok(()) } else { Err(Skip::NoRequest) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::envelope::Message;
    use crate::format::Field;
    use crate::format::pattern::{LinePattern, Parser};
    use crate::format::vendors::SSHD;
    use crate::line::time::Stamp;

    fn attempts(lines: &[(&str, &str)]) -> Vec<String> {
        let pattern = Arc::new(LinePattern::preset(SSHD, "sshd"));
        let mut parser = Parser::new(pattern, true);
        let mut found = Vec::new();
        for (program, text) in lines {
            let program = program.as_bytes();
            let message = Message::plain(text.as_bytes());
            let time = Some(Stamp::utc(1));
            let message = Message {
                time,
                program,
                ..message
            };
            if let Ok((_, line)) = parser.parse(message) {
                let text =
                    |field| String::from_utf8_lossy(line.get(&field).unwrap_or(b"")).into_owned();
                found.push(text(Field::Client) + " " + &text(Field::User));
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
