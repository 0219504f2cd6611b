//! Envelopes: the prefixes that syslog, container runtimes and Compose add to the lines of a log.
//!
//! Each log has one kind of envelope. It is detected from the log's first lines and then required
//! on every line, so that a client cannot forge an envelope within a line.

mod container;
mod message;
mod syslog;

use crate::line::{Skip, Years};
pub(crate) use message::Message;
use syslog::SyslogLine;

/// The kind of envelope around every line of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// The lines have no envelope.
    None,
    /// RFC 3164, RFC 5424, or an ISO 8601 time followed by host and program.
    Syslog,
    /// The line format of Kubernetes' container runtime interface (CRI).
    Cri,
    /// JSON objects of Docker's json-file driver.
    Docker,
    /// A prefix with Docker Compose's service name or kubectl's pod name.
    Compose,
    /// A time before each line, as `docker logs --timestamps` writes it.
    Stamp,
    /// A JSON object by journald or a log collector, with the line as its message.
    Wrapped,
}

impl Envelope {
    /// Every kind of envelope, in the order in which detection prefers them. Most come before
    /// `None`: a line that can be parsed both with and without one of these envelopes has the
    /// envelope. A wrapper comes after `None`, since a JSON object with a client field of its own
    /// may also have a message field, whose text the client has chosen.
    pub(crate) const ALL: [Self; 7] = [
        Self::Syslog,
        Self::Cri,
        Self::Docker,
        Self::Compose,
        Self::Stamp,
        Self::None,
        Self::Wrapped,
    ];
}

/// Removes the envelopes from the lines of one log.
pub(crate) struct Opener {
    envelope: Envelope,
    unescaped: Vec<u8>,
    pieces: container::Pieces,
    last: LastLine,
}

/// The last line of a syslog, which the daemon may report as repeated.
#[derive(Default)]
struct LastLine {
    host: Vec<u8>,
    program: Vec<u8>,
    text: Vec<u8>,
}

impl Opener {
    /// Creates an opener for logs with this kind of envelope.
    pub(crate) fn new(envelope: Envelope) -> Self {
        Self {
            envelope,
            unescaped: Vec::new(),
            pieces: container::Pieces::default(),
            last: LastLine::default(),
        }
    }

    /// Returns another opener for the same log; `None` if its lines may depend on lines before them.
    pub(crate) fn fork(&self) -> Option<Self> {
        (self.envelope == Envelope::None).then(|| Self::new(self.envelope))
    }

    /// Removes a line's envelope and returns its message.
    ///
    /// # Errors
    /// Returns [`Skip::Malformed`] if the line has no such envelope, [`Skip::Continuation`] if
    /// it continues a longer line, and [`Skip::NoRequest`] if it repeats a line of another host.
    #[inline]
    pub(crate) fn open<'a>(
        &'a mut self,
        line: &'a [u8],
        years: &mut Years,
    ) -> Result<Message<'a>, Skip> {
        match self.envelope {
            Envelope::None => Ok(Message::plain(line)),
            Envelope::Syslog => {
                let line = syslog::open(line, years).ok_or(Skip::Malformed)?;
                self.last.repeat(line).ok_or(Skip::NoRequest)
            }
            Envelope::Cri => self.pieces.cri(line),
            Envelope::Docker => self.pieces.docker(line, &mut self.unescaped),
            Envelope::Wrapped => container::wrapped(line, &mut self.unescaped),
            Envelope::Compose => container::compose(line).ok_or(Skip::Malformed),
            Envelope::Stamp => container::stamped(line).ok_or(Skip::Malformed),
        }
    }
}

impl LastLine {
    /// Remembers a line, and returns its message. For a line that says how often the last one was
    /// repeated, returns the last message with that count; `None` if another host wrote it.
    fn repeat<'a>(&'a mut self, line: SyslogLine<'a>) -> Option<Message<'a>> {
        let SyslogLine { host, message } = line;
        if !message.text.is_empty() || !message.program.is_empty() {
            host.clone_into(&mut self.host);
            message.program.clone_into(&mut self.program);
            message.text.clone_into(&mut self.text);
            return Some(message);
        }
        (self.host == host).then_some(Message {
            program: &self.program,
            text: &self.text,
            ..message
        })
    }
}
