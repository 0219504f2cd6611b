//! What the server remembers of one client, and its commands.

use super::codec::Request;
use super::reply::{Version, Writer};

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next request.
    Go,
    /// The end of the connection.
    Close,
}

/// One client.
#[derive(Debug, Default)]
pub struct Session {
    version: Version,
}

impl Session {
    /// The version the client asked for.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Carries out one request and appends its reply.
    pub fn answer(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> Next {
        let Some(name) = request.word(0) else { return Next::Go };
        let mut reply = Writer::new(out, self.version);
        if name.eq_ignore_ascii_case(b"PING") {
            reply.simple("PONG");
        } else if name.eq_ignore_ascii_case(b"CL.THROTTLE") {
            reply.array(5);
            for value in [0, 16, 15, -1, 2] {
                reply.integer(value);
            }
        } else {
            reply.error("unknown command");
        }
        Next::Go
    }
}
