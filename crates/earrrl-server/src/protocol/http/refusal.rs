//! Refusals of HTTP/1.1 requests before hyper has parsed them, and the responses to them.

use std::borrow::Cow;

use super::lines::BadHead;
use crate::protocol::authz::{NO_MEMORY, refuse};
use crate::server::Server;

/// The response when the limit on connections, or on the memory of all connections, is reached.
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
                            content-length: 0\r\nconnection: close\r\n\r\n";
/// The response to a request whose head is too large.
const TOO_LARGE: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\
                           connection: close\r\n\r\n";
/// The reason that is reported when a proxied request is denied because its head is too large.
const TOO_LARGE_QUESTION: &str = "the head has too many or too long header fields";
/// The response to a request in which a line ends in LF alone.
const BARE_LF: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
                         content-length: 101\r\nconnection: close\r\n\r\n\
                         {\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
                         \"detail\":\"a line ends in LF, expected CRLF\"}";

/// The response to a Redis client, in its protocol.
const RESP: &[u8] = b"-ERR Protocol error: this port is for HTTP; `resp` sets the one for Redis \
                      clients, 6380 by default\r\n";

/// The reason why the server stopped reading from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpRefusal {
    /// The memory limit of all connections together was reached.
    Overloaded,
    /// The memory limit was reached by an authorization request. It gets a denial, since a proxy
    /// would pass its client's request on after an error.
    OverloadedQuestion,
    /// The memory limit was reached while a response was being sent, so no error can be sent.
    Cut,
    /// The head of a request was refused.
    Head(BadHead),
}

impl HttpRefusal {
    /// Returns true if the request was refused because memory is short.
    pub(super) fn is_for_memory(self) -> bool {
        !matches!(self, Self::Head(_))
    }

    /// Returns the status and the bytes of the response to the refused request.
    pub(super) fn answer(self, server: &Server) -> (Option<u16>, Cow<'static, [u8]>) {
        match self {
            Self::Overloaded => (Some(503), OVERLOADED.into()),
            Self::Cut => (None, Cow::default()),
            Self::Head(BadHead::BareLf) => (Some(400), BARE_LF.into()),
            Self::Head(BadHead::Resp) => (Some(400), RESP.into()),
            Self::Head(BadHead::TooLarge { asks: false }) => (Some(431), TOO_LARGE.into()),
            Self::Head(BadHead::TooLarge { asks: true }) => denied(server, TOO_LARGE_QUESTION),
            Self::OverloadedQuestion => denied(server, NO_MEMORY),
        }
    }
}

/// Returns the status and the bytes of a denial of a proxied request that cannot be decided. A
/// proxy would pass the request on after an error.
fn denied(server: &Server, why: &str) -> (Option<u16>, Cow<'static, [u8]>) {
    let status = server.service.rules().deny_status;
    let verdict = refuse(status, why);
    let body = String::from_utf8_lossy(verdict.body());
    let reason = verdict.status().canonical_reason().unwrap_or_default();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/problem+json\r\n\
         x-ratelimit-action: deny\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    (Some(status), (head + &body).into_bytes().into())
}
