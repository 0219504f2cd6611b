//! Lines of any stream in constant memory.

use std::io::{self, Read};

/// The longest line that is looked at; a longer one is skipped, whatever its length.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// Bytes asked of the system at once: fits the processor's second-level cache.
const BUFFER: usize = 512 * 1024;

/// Bytes of a line after which no end is waited for any more: `/dev/zero` has none.
const ENDLESS: u64 = 16 << 30;

/// Bytes kept of a line that is too long.
const SAMPLE: usize = 256;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogLine<'a> {
    /// A whole line.
    Whole(&'a [u8]),
    /// The start of a line longer than [`MAX_LINE`]; the rest has been passed over.
    TooLong(&'a [u8]),
}

/// Splits a stream into lines.
///
/// An error of the stream comes where it stands: behind the lines read before it.
pub(super) struct LogLines<R> {
    source: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    begun: bool,
    ended: bool,
    error: Option<io::Error>,
    sample: Vec<u8>,
    endless: u64,
}

impl<R: Read> LogLines<R> {
    /// Reads `source` from its present position.
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            begun: false,
            ended: false,
            error: None,
            sample: Vec::new(),
            endless: ENDLESS,
        }
    }

    /// The bytes ahead: more than a maximal line of them, unless the stream ends before.
    pub(super) fn peek(&mut self) -> &[u8] {
        self.begin();
        while !self.ended && self.ahead().len() <= MAX_LINE {
            self.fill();
        }
        self.ahead()
    }

    /// The error ahead, if the stream ended in one.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// The next line; `None` at the end.
    #[inline]
    pub(super) fn next(&mut self) -> io::Result<Option<LogLine<'_>>> {
        match memchr::memchr(b'\n', self.ahead()) {
            Some(len) if len <= MAX_LINE => Ok(Some(self.take(len, 1))),
            _ => self.next_slow(),
        }
    }

    /// A line that is not whole in the buffer yet, or too long.
    #[cold]
    fn next_slow(&mut self) -> io::Result<Option<LogLine<'_>>> {
        self.begin();
        loop {
            let ahead = self.ahead();
            match memchr::memchr(b'\n', ahead) {
                Some(len) if len <= MAX_LINE => return Ok(Some(self.take(len, 1))),
                None if ahead.len() <= MAX_LINE && !self.ended => self.fill(),
                None if ahead.is_empty() => return self.error.take().map_or(Ok(None), Err),
                None if ahead.len() <= MAX_LINE => return Ok(Some(self.take(ahead.len(), 0))),
                _ => return Ok(Some(self.pass_over())),
            }
        }
    }

    #[inline]
    fn ahead(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    #[inline]
    fn take(&mut self, len: usize, newline: usize) -> LogLine<'_> {
        let line = &self.buffer[self.start..self.start + len];
        self.start += len + newline;
        LogLine::Whole(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Drops a line that is too long, but for its start.
    fn pass_over(&mut self) -> LogLine<'_> {
        let kept = self.start + SAMPLE.min(self.end - self.start);
        self.sample.clear();
        self.sample.extend_from_slice(&self.buffer[self.start..kept]);
        let mut passed = 0;
        loop {
            if let Some(len) = memchr::memchr(b'\n', self.ahead()) {
                self.start += len + 1;
                break;
            }
            passed += self.ahead().len() as u64;
            self.start = self.end;
            if passed > self.endless {
                self.ended = true;
                self.error = Some(io::Error::other("a line that does not end"));
            }
            if self.ended {
                break;
            }
            self.fill();
        }
        LogLine::TooLong(&self.sample)
    }

    /// Passes over a byte order mark, once.
    fn begin(&mut self) {
        while !self.begun {
            if self.ended || self.ahead().len() >= BYTE_ORDER_MARK.len() {
                self.begun = true;
                if self.ahead().starts_with(BYTE_ORDER_MARK) {
                    self.start += BYTE_ORDER_MARK.len();
                }
            } else {
                self.fill();
            }
        }
    }

    /// Moves what is left to the front and reads once more behind it.
    fn fill(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(len) => self.end += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.ended = true;
                    self.error = Some(error);
                }
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes a read, then an error if told so.
    struct Drip<'a>(&'a [u8], usize, bool);

    impl Read for Drip<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() && self.2 {
                return Err(io::Error::other("broken"));
            }
            let len = self.1.min(self.0.len()).min(out.len());
            out[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn all(text: &[u8], step: usize) -> Vec<(bool, Vec<u8>)> {
        let mut lines = LogLines::new(Drip(text, step, false));
        let mut out = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            out.push(match line {
                LogLine::Whole(line) => (true, line.to_vec()),
                LogLine::TooLong(line) => (false, line.to_vec()),
            });
        }
        out
    }

    #[test]
    fn the_same_lines_however_they_arrive() {
        for step in [1, 2, 7, 1000] {
            let lines = all(b"\xef\xbb\xbfone\r\n\ntwo\n\r\nlast", step);
            let expected = [&b"one"[..], b"", b"two", b"", b"last"];
            assert_eq!(lines, expected.map(|line| (true, line.to_vec())));
        }
        assert_eq!(all(b"", 1), []);
        assert_eq!(all(b"\n", 1), [(true, vec![])]);
    }

    #[test]
    fn long_lines_are_passed_over_and_the_next_is_found() {
        for long in [MAX_LINE, MAX_LINE + 1, 5 * BUFFER] {
            let mut text = vec![b'x'; long];
            text.extend_from_slice(b"\nnext");
            let lines = all(&text, 100_000);
            assert_eq!(lines.len(), 2);
            assert_eq!(lines[0].0, long <= MAX_LINE);
            assert_eq!(lines[1], (true, b"next".to_vec()));
        }
    }

    #[test]
    fn a_line_without_end_is_not_waited_for() {
        let mut lines = LogLines::new(io::repeat(0));
        lines.endless = 3 * BUFFER as u64;
        assert!(matches!(lines.next(), Ok(Some(LogLine::TooLong(_)))));
        assert!(lines.next().is_err());
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn lines_before_an_error_are_not_lost() {
        let mut lines = LogLines::new(Drip(b"one\ntw", 100, true));
        assert_eq!(lines.next().unwrap(), Some(LogLine::Whole(b"one")));
        assert_eq!(lines.next().unwrap(), Some(LogLine::Whole(b"tw")));
        assert!(lines.next().is_err());
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn peeking_takes_nothing() {
        let mut lines = LogLines::new(&b"\xef\xbb\xbfone\ntwo"[..]);
        assert_eq!(lines.peek(), b"one\ntwo");
        assert_eq!(lines.next().unwrap(), Some(LogLine::Whole(b"one")));
    }
}
