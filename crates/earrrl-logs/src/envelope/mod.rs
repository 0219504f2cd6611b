//! Envelopes: the prefixes that syslog, container runtimes and Compose add to a log's lines.
//!
//! Each log has one envelope. It is detected from the first lines and required on all of them, so
//! that no client can forge one within a line.

mod container;
mod message;
mod syslog;
mod wrapped;

use crate::line::Skip;
use crate::line::Years;
pub use message::Message;

/// The kind of envelope around every line of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Envelope {
    /// Nothing.
    None,
    /// RFC 3164, RFC 5424, or an ISO 8601 stamp with host and program.
    Syslog,
    /// Kubernetes' container runtime interface.
    Cri,
    /// Docker's json-file.
    Docker,
    /// Docker Compose's service name, or kubectl's pod name.
    Compose,
    /// A time in front, as `docker logs --timestamps` writes.
    Stamp,
    /// An object by journald or a collector of logs, with the line as its message.
    Wrapped,
}

impl Envelope {
    /// Every envelope in the order of preference, `None` behind most: a line that fits with one of these and
    /// without has the envelope. A wrapper comes last: an object with a client of its own may have a message that
    /// the client has chosen.
    pub const ALL: [Self; 7] = [
        Self::Syslog,
        Self::Cri,
        Self::Docker,
        Self::Compose,
        Self::Stamp,
        Self::None,
        Self::Wrapped,
    ];
}

/// Opens the envelopes of one log.
pub struct Opener {
    envelope: Envelope,
    unescaped: Vec<u8>,
    pieces: container::Pieces,
}

impl Opener {
    /// Creates an opener of this kind of envelope.
    pub fn new(envelope: Envelope) -> Self {
        Self { envelope, unescaped: Vec::new(), pieces: container::Pieces::default() }
    }

    /// Takes a line out of its envelope.
    ///
    /// # Errors
    /// [`Skip::Malformed`] for a line without, [`Skip::Continuation`] for the rest of a longer one.
    #[inline]
    pub fn open<'a>(&'a mut self, line: &'a [u8], years: &mut Years) -> Result<Message<'a>, Skip> {
        match self.envelope {
            Envelope::None => Ok(Message::plain(line)),
            Envelope::Syslog => syslog::open(line, years).ok_or(Skip::Malformed),
            Envelope::Cri => self.pieces.cri(line),
            Envelope::Docker => self.pieces.docker(line, &mut self.unescaped),
            Envelope::Wrapped => wrapped::open(line, &mut self.unescaped),
            Envelope::Compose => container::compose(line).ok_or(Skip::Malformed),
            Envelope::Stamp => container::stamped(line).ok_or(Skip::Malformed),
        }
    }
}
