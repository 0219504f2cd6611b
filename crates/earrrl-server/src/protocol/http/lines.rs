//! The lines of a request's head, before hyper reads them.
//!
//! hyper takes a bare LF for the end of a line, which a proxy in front may not: one of them then reads
//! a header where the other reads a request. Such a head is refused.
//!
//! A proxy's question holds whatever its client sent. What hyper would refuse must not be an error
//! then, since proxies serve a request whose check failed: control characters in a header's value are
//! replaced, and a head beyond the bounds is denied.

use memchr::memchr;

use super::authz;

/// A line of a chunked body that is longer than this is left to hyper, which refuses it.
const MAX_LINE: usize = 32 * 1024;
/// The largest number of header fields in a proxy's question.
pub(super) const MAX_FIELDS: usize = 512;
/// The largest head of a proxy's question: 64 KiB of its client's, and what the proxy adds.
pub(super) const MAX_HEAD_LEN: usize = 72 * 1024;
/// The same bounds of all other requests.
const MAX_OWN_FIELDS: usize = 64;
const MAX_OWN_HEAD_LEN: usize = 16 * 1024;

/// Follows the bytes that a client sends, from head to head.
#[derive(Debug, Default)]
pub(super) struct HeadLines {
    expected: Expected,
    /// Bytes of bodies that are still to come.
    skip: u64,
    /// Set once the request line has come: empty lines before it do not end the head.
    begun: bool,
    /// Set for a proxy's question.
    asks: bool,
    /// Set if the latest head that has begun is a proxy's question.
    asked: bool,
    /// Bytes and fields of the head so far.
    head_len: usize,
    fields: usize,
    length: u64,
    chunked: bool,
    /// A line whose end has not come.
    part: Vec<u8>,
}

/// The kind of the next line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Head,
    ChunkSize,
    Trailer,
    /// Too long: no further line is read.
    Nothing,
}

/// The reason why a request's head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHead {
    /// A line ends in LF alone.
    BareLf,
    /// The head is beyond the bounds.
    TooLarge {
        /// Set for a proxy's question.
        asks: bool,
    },
}

impl HeadLines {
    /// Returns true if the latest request that has begun is a proxy's question.
    pub(super) fn is_question(&self) -> bool {
        self.asked
    }

    /// Reads the bytes that have come, and replaces control characters in a question's headers.
    pub(super) fn follow(&mut self, mut bytes: &mut [u8]) -> Result<(), BadHead> {
        let odd = has_control(bytes);
        while !bytes.is_empty() && self.expected != Expected::Nothing {
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
                self.keep(line);
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

    /// Counts bytes of a head.
    fn count(&mut self, bytes: usize) -> Result<(), BadHead> {
        if self.expected != Expected::Head {
            return Ok(());
        }
        self.head_len += bytes;
        // Before the request line has come, either kind of request may.
        let asks = self.asks || !self.begun;
        let most = if asks { MAX_HEAD_LEN } else { MAX_OWN_HEAD_LEN };
        if self.head_len > most { Err(BadHead::TooLarge { asks }) } else { Ok(()) }
    }

    fn keep(&mut self, part: &[u8]) {
        self.part.extend_from_slice(part);
        if self.part.len() > MAX_LINE && self.expected != Expected::Head {
            (self.expected, self.part) = (Expected::Nothing, Vec::new());
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
            Expected::Trailer | Expected::Nothing => {}
        }
        Ok(())
    }

    /// Reads the request line, or a header that gives the body's length. A length that is no number is
    /// refused by hyper.
    fn header(&mut self, line: &[u8]) -> Result<(), BadHead> {
        if !std::mem::replace(&mut self.begun, true) {
            self.asks = asks(line);
            self.asked = self.asks;
            return Ok(());
        }
        self.fields += 1;
        if self.fields > if self.asks { MAX_FIELDS } else { MAX_OWN_FIELDS } {
            return Err(BadHead::TooLarge { asks: self.asks });
        }
        if let Some(value) = value_of(line, b"content-length:") {
            let digits = value.iter().filter(|byte| byte.is_ascii_digit());
            let digit =
                |sum: u64, byte: &u8| sum.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
            self.length = digits.fold(0, digit);
        } else if value_of(line, b"transfer-encoding:").is_some() {
            self.chunked = true;
        }
        Ok(())
    }

    fn next_head(&mut self, body: u64) {
        let part = std::mem::take(&mut self.part);
        *self = Self { skip: body, asked: self.asked, part, ..Self::default() };
    }
}

/// Returns true if a request line is a proxy's question.
fn asks(line: &[u8]) -> bool {
    let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let path = if target.starts_with(b"/") {
        target
    } else {
        // A whole URI.
        let origin = target.iter().enumerate().filter(|(_, byte)| **byte == b'/').nth(2);
        origin.map_or(&b""[..], |(at, _)| &target[at..])
    };
    path.starts_with(authz::PATH.as_bytes())
}

/// A control character that no header's value may have. CR and LF end lines.
const fn is_control(byte: u8) -> bool {
    (byte < b' ' && !matches!(byte, b'\t' | b'\r' | b'\n')) || byte == 0x7f
}

fn has_control(bytes: &[u8]) -> bool {
    // Without a branch for each byte, so that the compiler takes many at once.
    bytes.iter().fold(false, |found, byte| found | is_control(*byte))
}

/// Replaces control characters by bytes that a value may have, so that different values of a key stay
/// different.
fn replace_control(line: &mut [u8]) {
    line.iter_mut().filter(|byte| is_control(**byte)).for_each(|byte| *byte |= 0x80);
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(value)
}

fn hexadecimal(line: &[u8]) -> u64 {
    let digits = line.iter().map_while(|byte| char::from(*byte).to_digit(16));
    digits.fold(0, |sum: u64, digit| sum.saturating_mul(16).saturating_add(digit.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\n\na";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
                           2;x=y\r\n\n\n\r\nA\r\n\n\n\n\n\n\n\n\n\n\n\r\n0\r\nT: a\r\n\r\n";
    const GET: &str = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";

    /// Reads a head, and checks that the result is the same if it arrives in pieces of any length
    /// below 8.
    fn follows(text: &str) -> Result<(), BadHead> {
        let whole = HeadLines::default().follow(&mut text.as_bytes().to_vec());
        for length in 1..8 {
            let mut lines = HeadLines::default();
            let mut bytes = text.as_bytes().to_vec();
            let pieces = bytes.chunks_mut(length).try_for_each(|piece| lines.follow(piece));
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
            assert_eq!(fields(target, 512), Ok(()), "{target}");
            assert_eq!(fields(target, 513), Err(BadHead::TooLarge { asks: true }), "{target}");
        }
        let long = |target: &str, length: usize| {
            follows(&format!("GET {target} HTTP/1.1\r\na: {}\r\n\r\n", "b".repeat(length)))
        };
        assert_eq!(long("/v1/authz", 64 * 1024), Ok(()));
        assert_eq!(long("/v1/authz", 72 * 1024), Err(BadHead::TooLarge { asks: true }));
        assert_eq!(long("/", 16 * 1024), Err(BadHead::TooLarge { asks: false }));
    }

    #[test]
    fn control_characters_of_a_question_are_replaced() {
        let replaced = |text: &str, length: usize| {
            let mut bytes = text.as_bytes().to_vec();
            let mut lines = HeadLines::default();
            bytes.chunks_mut(length).try_for_each(|piece| lines.follow(piece)).unwrap();
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
        assert!((0..1000).all(|_| lines.follow(&mut [b'a'; 1000]).is_ok()));
        assert_eq!(lines.part.capacity(), 0);
    }
}
