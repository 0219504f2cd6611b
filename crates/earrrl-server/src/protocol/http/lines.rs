//! Whether every line of a head ends as HTTP/1.1 says, in CRLF.
//!
//! hyper takes a bare LF for the end of a line, which a proxy in front may not: what one of them takes
//! for a header is then a request to the other.

use memchr::memchr;

/// A line longer than this is refused by whoever reads it.
const MAX_LINE: usize = 32 * 1024;

/// Follows what a client sends, from head to head.
#[derive(Debug, Default)]
pub(super) struct Lines {
    expected: Expected,
    /// Bytes of bodies that are still to come.
    skip: u64,
    /// Whether the head has begun: empty lines before it do not end it.
    begun: bool,
    length: u64,
    chunked: bool,
    /// A line whose end has not come.
    part: Vec<u8>,
}

/// What the next line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    #[default]
    Head,
    ChunkSize,
    Trailer,
    /// Too long; nothing of it is looked at.
    Nothing,
}

/// A line that ends in LF alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BareLf;

impl Lines {
    /// Looks at what has come.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> Result<(), BareLf> {
        while !bytes.is_empty() && self.expected != Expected::Nothing {
            let skipped = usize::try_from(self.skip).map_or(bytes.len(), |n| n.min(bytes.len()));
            bytes = &bytes[skipped..];
            self.skip -= skipped as u64;
            let Some(end) = memchr(b'\n', bytes) else {
                self.part.extend_from_slice(bytes);
                if self.part.len() > MAX_LINE {
                    (self.expected, self.part) = (Expected::Nothing, Vec::new());
                }
                return Ok(());
            };
            let (line, rest) = bytes.split_at(end + 1);
            bytes = rest;
            if self.part.is_empty() {
                self.line(line)?;
            } else {
                let mut whole = std::mem::take(&mut self.part);
                whole.extend_from_slice(line);
                self.line(&whole)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), BareLf> {
        let line = line.strip_suffix(b"\r\n").ok_or(BareLf)?;
        match self.expected {
            Expected::Head if !line.is_empty() => self.header(line),
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

    /// Only what says how long the body is. What is no number is refused by hyper.
    fn header(&mut self, line: &[u8]) {
        self.begun = true;
        if let Some(value) = value_of(line, b"content-length:") {
            let digits = value.iter().filter(|byte| byte.is_ascii_digit());
            let digit =
                |sum: u64, byte: &u8| sum.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
            self.length = digits.fold(0, digit);
        } else if value_of(line, b"transfer-encoding:").is_some() {
            self.chunked = true;
        }
    }

    fn next_head(&mut self, body: u64) {
        *self = Self { skip: body, part: std::mem::take(&mut self.part), ..Self::default() };
    }
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

    /// Whatever pieces it comes in.
    fn follows(text: &str) -> Result<(), BareLf> {
        let whole = Lines::default().follow(text.as_bytes());
        for length in 1..8 {
            let mut lines = Lines::default();
            let pieces = text.as_bytes().chunks(length).try_for_each(|piece| lines.follow(piece));
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
                assert_eq!(follows(&format!("{before}{bare}")), Err(BareLf), "{before:?}{bare:?}");
            }
        }
    }

    #[test]
    fn what_never_ends_takes_no_more_memory() {
        let mut lines = Lines::default();
        for _ in 0..1000 {
            assert_eq!(lines.follow(&[b'a'; 1000]), Ok(()));
        }
        assert_eq!(lines.part.capacity(), 0);
    }
}
