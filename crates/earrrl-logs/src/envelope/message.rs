//! The content of an envelope.

/// A line without its envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The time in the envelope, in nanoseconds since the epoch.
    pub time: Option<u64>,
    /// The program that syslog names, with its process in brackets.
    pub program: &'a [u8],
    /// The log's own line.
    pub text: &'a [u8],
}

impl<'a> Message<'a> {
    /// Creates the message of a line that has no envelope.
    #[inline]
    pub fn plain(text: &'a [u8]) -> Self {
        Self { time: None, program: b"", text }
    }
}
