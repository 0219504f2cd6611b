//! The message that is left when a log line's envelope is removed.

use crate::line::time::Stamp;

/// A log line without its envelope, and the facts that the envelope held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// The time in the envelope, if it has one.
    pub time: Option<Stamp>,
    /// The program that a syslog envelope names, with its process id in brackets; otherwise empty.
    pub program: &'a [u8],
    /// The line that the program wrote.
    pub text: &'a [u8],
    /// The number of times that the program wrote the line; syslog merges equal lines.
    pub count: u64,
}

impl<'a> Message<'a> {
    /// Creates the message of a line that has no envelope.
    #[inline]
    pub(crate) fn plain(text: &'a [u8]) -> Self {
        Self {
            time: None,
            program: b"",
            text,
            count: 1,
        }
    }
}
