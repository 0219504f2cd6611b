//! Checks the lines of HTTP/1.1 requests before hyper parses them; and the responses to those that are refused.
//!
//! hyper accepts a bare LF as the end of a line, but a proxy in front of the server may not. One of
//! the two could then read a header where the other reads a second request (request smuggling). A
//! request with such a line is refused.
//!
//! An authorization request (to `/v1/authz`) repeats what a proxy's client sent. hyper would answer
//! some of these bytes with an error, and proxies pass a client's request on when its check fails.
//! So in these requests, control characters in header values are replaced, and a head that is too
//! large gets a denial instead of an error.

use std::borrow::Cow;

use memchr::memchr;

use super::authz;
use crate::protocol::authz::{NO_MEMORY, refuse};
use crate::server::Server;

/// The longest line, in bytes, of a chunked body. hyper refuses shorter ones already.
const MAX_LINE: usize = 32 * 1024;
/// The largest number of header fields in an authorization request: the most that hyper reads by
/// default. For 512 fields a seventh of the instructions of every request would be spent on the two
/// lists of that length that hyper initializes.
const MAX_FIELDS: usize = 100;
/// The largest head of an authorization request, in bytes: 64 KiB for the client's headers, and 8
/// KiB for those that the proxy adds.
pub(super) const MAX_HEAD_LEN: usize = 72 * 1024;
/// The largest number of header fields, and the largest head in bytes, of all other requests.
const MAX_OWN_FIELDS: usize = 64;
const MAX_OWN_HEAD_LEN: usize = 16 * 1024;

/// The state of reading a client's bytes line by line, over successive requests.
#[derive(Debug, Default)]
pub struct HeadLines {
    expected: Expected,
    /// The number of bytes of the present request's body that have not arrived and are skipped.
    skip: u64,
    /// True once the request line has arrived. Empty lines before it do not end the head.
    begun: bool,
    /// True if the head is of an authorization request.
    asks: bool,
    /// True if the latest request whose request line has arrived is an authorization request.
    asked: bool,
    /// The number of bytes, and below the number of header fields, of the present head so far.
    head_len: usize,
    fields: usize,
    length: u64,
    chunked: bool,
    /// The beginning of a line whose end has not arrived.
    part: Vec<u8>,
}

/// The kind of line that is expected next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Head,
    ChunkSize,
    Trailer,
}

/// The reason why a request's head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHead {
    /// A line ends in LF alone.
    BareLf,
    /// The first line begins an array of RESP: a Redis client has connected to the wrong port.
    Resp,
    /// The head has too many bytes or header fields, or a line of a chunked body is too long.
    TooLarge {
        /// True if the head is of an authorization request.
        asks: bool,
    },
}

impl HeadLines {
    /// Returns true if the latest request whose request line has arrived is an authorization
    /// request.
    pub(super) fn is_question(&self) -> bool {
        self.asked
    }

    /// Checks bytes that have arrived, and replaces control characters in the head of an
    /// authorization request.
    ///
    /// # Errors
    /// Returns the reason why the request must be refused. Nothing may be read after it.
    pub fn follow(&mut self, mut bytes: &mut [u8]) -> Result<(), BadHead> {
        let odd = has_control(bytes);
        while !bytes.is_empty() {
            let skipped = usize::try_from(self.skip).map_or(bytes.len(), |n| n.min(bytes.len()));
            bytes = &mut bytes[skipped..];
            self.skip -= skipped as u64;
            let end = memchr(b'\n', bytes);
            let (line, rest) = bytes.split_at_mut(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            if odd && self.asks && self.expected == Expected::Head {
                replace_control(line);
            }
            self.count(line.len())?;
            if end.is_none() {
                self.part.extend_from_slice(line);
            } else if self.part.is_empty() {
                self.line(line)?;
            } else {
                let mut whole = std::mem::take(&mut self.part);
                whole.extend_from_slice(line);
                self.line(&whole)?;
            }
        }
        Ok(())
    }

    /// Adds `bytes` to the present head's length, or to the line of a chunked body. Returns an error if that is then too
    /// large.
    fn count(&mut self, bytes: usize) -> Result<(), BadHead> {
        if self.expected != Expected::Head {
            let is_long = self.part.len() + bytes > MAX_LINE;
            return match is_long {
                true => Err(BadHead::TooLarge { asks: self.asks }),
                false => Ok(()),
            };
        }
        self.head_len += bytes;
        // Before the request line has arrived, the request may still be an authorization request,
        // so the larger bound applies.
        let asks = self.asks || !self.begun;
        let most = if asks { MAX_HEAD_LEN } else { MAX_OWN_HEAD_LEN };
        if self.head_len > most {
            Err(BadHead::TooLarge { asks })
        } else {
            Ok(())
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), BadHead> {
        let line = line.strip_suffix(b"\r\n").ok_or(BadHead::BareLf)?;
        match self.expected {
            Expected::Head if !line.is_empty() => self.header(line)?,
            Expected::Head if !self.begun => {}
            Expected::Head if self.chunked => self.expected = Expected::ChunkSize,
            Expected::Head => self.next_head(self.length),
            Expected::ChunkSize => match hexadecimal(line) {
                0 => self.expected = Expected::Trailer,
                size => self.skip = size.saturating_add(2),
            },
            Expected::Trailer if line.is_empty() => self.next_head(0),
            Expected::Trailer => {}
        }
        Ok(())
    }

    /// Reads the request line, or a header that determines the body's length. hyper refuses a
    /// length that is not a number, so any value may be assumed for it here.
    fn header(&mut self, line: &[u8]) -> Result<(), BadHead> {
        if !std::mem::replace(&mut self.begun, true) {
            if let [b'*', count @ ..] = line
                && count.iter().all(u8::is_ascii_digit)
            {
                return Err(BadHead::Resp);
            }
            self.asks = asks(line);
            self.asked = self.asks;
            return Ok(());
        }
        self.fields += 1;
        let most = if self.asks {
            MAX_FIELDS
        } else {
            MAX_OWN_FIELDS
        };
        if self.fields > most {
            return Err(BadHead::TooLarge { asks: self.asks });
        }
        if let Some(value) = value_of(line, b"content-length:") {
            let digits = value.iter().filter(|byte| byte.is_ascii_digit());
            let digit = |sum: u64, byte: &u8| {
                sum.saturating_mul(10)
                    .saturating_add(u64::from(byte - b'0'))
            };
            self.length = digits.fold(0, digit);
        } else if value_of(line, b"transfer-encoding:").is_some() {
            self.chunked = true;
        }
        Ok(())
    }

    fn next_head(&mut self, body: u64) {
        let part = std::mem::take(&mut self.part);
        *self = Self {
            skip: body,
            asked: self.asked,
            part,
            ..Self::default()
        };
    }
}

/// Returns true if `line` is the request line of an authorization request.
fn asks(line: &[u8]) -> bool {
    let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let path = if target.starts_with(b"/") {
        target
    } else {
        // The target is an absolute URI. Its path begins at the third slash.
        let origin = target
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .nth(2);
        origin.map_or(&b""[..], |(at, _)| &target[at..])
    };
    path.starts_with(authz::PATH.as_bytes())
}

/// Returns true for a control character that a header's value must not have. CR and LF are
/// excepted, since they end lines.
const fn is_control(byte: u8) -> bool {
    (byte < b' ' && !matches!(byte, b'\t' | b'\r' | b'\n')) || byte == 0x7f
}

fn has_control(bytes: &[u8]) -> bool {
    // The loop has no branch for each byte, so that the compiler can use vector instructions.
    bytes
        .iter()
        .fold(false, |found, byte| found | is_control(*byte))
}

/// Replaces control characters by bytes that are permitted in a header's value. Each control
/// character gets a byte of its own, so that values that differ in them still differ.
fn replace_control(line: &mut [u8]) {
    line.iter_mut()
        .filter(|byte| is_control(**byte))
        .for_each(|byte| *byte |= 0x80);
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(value)
}

fn hexadecimal(line: &[u8]) -> u64 {
    let digits = line.iter().map_while(|byte| char::from(*byte).to_digit(16));
    digits.fold(0, |sum: u64, digit| {
        sum.saturating_mul(16).saturating_add(digit.into())
    })
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\n\na";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
                           2;x=y\r\n\n\n\r\nA\r\n\n\n\n\n\n\n\n\n\n\n\r\n0\r\nT: a\r\n\r\n";
    const GET: &str = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";

    /// Returns the result of checking `text` as a whole, after asserting that it is the same if
    /// `text` arrives in pieces of any length below 8.
    fn follows(text: &str) -> Result<(), BadHead> {
        let whole = HeadLines::default().follow(&mut text.as_bytes().to_vec());
        for length in 1..8 {
            let mut lines = HeadLines::default();
            let mut bytes = text.as_bytes().to_vec();
            let pieces = bytes
                .chunks_mut(length)
                .try_for_each(|piece| lines.follow(piece));
            assert_eq!(pieces, whole, "{text:?} in pieces of {length}");
        }
        whole
    }

    #[test]
    fn bodies_may_have_any_bytes() {
        for requests in [[GET, GET, GET], [POST, GET, POST], [CHUNKED, POST, CHUNKED]] {
            assert_eq!(follows(&requests.concat()), Ok(()), "{requests:?}");
        }
    }

    #[test]
    fn a_line_that_ends_in_lf_alone_is_seen() {
        for bare in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "\nGET / HTTP/1.1\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\nab\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: a\n\r\n",
        ] {
            for before in ["", GET, POST, CHUNKED] {
                assert_eq!(
                    follows(&format!("{before}{bare}")),
                    Err(BadHead::BareLf),
                    "{before:?}{bare:?}"
                );
            }
        }
    }

    #[test]
    fn heads_are_bounded_and_questions_are_larger() {
        let fields = |target: &str, count: usize| {
            let head = format!("GET {target} HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count));
            follows(&head)
        };
        assert_eq!(fields("/", 64), Ok(()));
        assert_eq!(fields("/", 65), Err(BadHead::TooLarge { asks: false }));
        for target in ["/v1/authz", "/v1/authz/login", "http://a.example/v1/authz"] {
            assert_eq!(fields(target, 100), Ok(()), "{target}");
            assert_eq!(
                fields(target, 101),
                Err(BadHead::TooLarge { asks: true }),
                "{target}"
            );
        }
        let long = |target: &str, length: usize| {
            follows(&format!(
                "GET {target} HTTP/1.1\r\na: {}\r\n\r\n",
                "b".repeat(length)
            ))
        };
        assert_eq!(long("/v1/authz", 64 * 1024), Ok(()));
        assert_eq!(
            long("/v1/authz", 72 * 1024),
            Err(BadHead::TooLarge { asks: true })
        );
        assert_eq!(long("/", 16 * 1024), Err(BadHead::TooLarge { asks: false }));
    }

    #[test]
    fn control_characters_of_a_question_are_replaced() {
        let replaced = |text: &str, length: usize| {
            let mut bytes = text.as_bytes().to_vec();
            let mut lines = HeadLines::default();
            bytes
                .chunks_mut(length)
                .try_for_each(|piece| lines.follow(piece))
                .unwrap();
            bytes
        };
        let head = "GET /v1/authz HTTP/1.1\r\nA: b\x01\t\x7f\r\nContent-Length: 1\r\n\r\n\x01";
        let clean = b"GET /v1/authz HTTP/1.1\r\nA: b\x81\t\xff\r\nContent-Length: 1\r\n\r\n\x01";
        let other = head.replace("/v1/authz", "/v1/check");
        for length in [1, 2, 7, 1000] {
            assert_eq!(replaced(head, length), clean);
            assert_eq!(replaced(&other, length), other.as_bytes());
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut lines = HeadLines::default();
        let mut pieces = (0..1000).map(|_| lines.follow(&mut [b'a'; 1000]));
        assert!(pieces.any(|piece| piece == Err(BadHead::TooLarge { asks: true })));
        let mut lines = HeadLines::default();
        let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(lines.follow(&mut head.as_bytes().to_vec()), Ok(()));
        let mut pieces = (0..1000).map(|_| lines.follow(&mut [b'a'; 1000]));
        assert!(pieces.any(|piece| piece == Err(BadHead::TooLarge { asks: false })));
    }
}
