//! Splits a stream into lines, in constant memory.
//!
//! Most lines are handed out in chunks of whole lines, so that several threads can parse them.

use std::io::{self, Read};
use std::ops::Range;

/// The most bytes of a line that is parsed; longer lines are skipped.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// The number of bytes of a read buffer. Several fit the processor's second-level cache.
const BUFFER: usize = 256 * 1024;

/// The number of bytes after which a line without an end is an error, such as the content of
/// `/dev/zero`.
const ENDLESS: u64 = 16 << 30;

/// The number of bytes that are kept of a line longer than `MAX_LINE`.
const SAMPLE: usize = 256;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line without its line ending.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogLine<'a> {
    /// A complete line.
    Whole(&'a [u8]),
    /// The first bytes of a line longer than [`MAX_LINE`]; the rest was skipped.
    TooLong(&'a [u8]),
}

/// Lines that follow one another, in a buffer of their own.
#[derive(Default)]
pub(super) struct LineChunk {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl LineChunk {
    /// Returns the places of the lines, of which the last may have no end.
    pub(super) fn places(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = self.start;
        std::iter::from_fn(move || {
            let rest = &self.buffer[start..self.end];
            let len = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let line = start..start + len;
            start = (line.end + 1).min(self.end);
            (!rest.is_empty()).then_some(line)
        })
    }

    /// Returns the line at a place.
    #[inline]
    pub(super) fn line(&self, place: &Range<usize>) -> LogLine<'_> {
        let line = &self.buffer[place.clone()];
        match line.len() <= MAX_LINE {
            true => LogLine::Whole(line.strip_suffix(b"\r").unwrap_or(line)),
            false => LogLine::TooLong(&line[..SAMPLE]),
        }
    }
}

/// Splits a stream into lines. An error of the stream is returned after all lines before it; a line
/// that it interrupts is dropped, since its fields may be cut.
pub(super) struct LogLines<R> {
    source: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    begun: bool,
    ended: bool,
    error: Option<io::Error>,
    /// True if the last read found nothing although the stream goes on.
    is_idle: bool,
    /// True if the rest of a line that is too long is to be passed over.
    is_cut: bool,
    sample: Vec<u8>,
    endless: u64,
}

impl<R: Read> LogLines<R> {
    /// Creates a splitter of the bytes that `source` has yet to return.
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            begun: false,
            ended: false,
            error: None,
            is_idle: false,
            is_cut: false,
            sample: Vec::new(),
            endless: ENDLESS,
        }
    }

    /// Returns the bytes that come next, without consuming them. There are more than [`MAX_LINE`]
    /// of them unless the stream ends earlier, or is idle after at least one line.
    pub(super) fn peek(&mut self) -> &[u8] {
        self.begin();
        while !self.ended && self.ahead().len() <= MAX_LINE {
            self.fill();
            if self.is_idle && self.ahead().contains(&b'\n') {
                break;
            }
        }
        self.ahead()
    }

    /// Returns the pending error of the stream if it failed, and clears it.
    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Replaces `chunk` by the next lines: about as many as the buffer holds. Returns false at the end of the stream.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if the stream has no complete line at present; the next
    /// call waits for it. Returns any other error of the stream once.
    pub(super) fn next_chunk(&mut self, chunk: &mut LineChunk) -> io::Result<bool> {
        self.begin();
        if std::mem::take(&mut self.is_cut) {
            self.pass_over();
        }
        // A pipe, or a decoder, returns little at a time.
        self.is_idle = false;
        while self.ahead().len() < BUFFER / 2 && !self.ended && !self.is_idle {
            self.fill();
        }
        let ahead = self.ahead();
        let len = match memchr::memrchr(b'\n', ahead) {
            Some(last) => last + 1,
            None if ahead.len() > MAX_LINE || self.ended => ahead.len(),
            None => return Err(io::ErrorKind::WouldBlock.into()),
        };
        if len == 0 {
            return self.error.take().map_or(Ok(false), Err);
        }
        self.is_cut = self.buffer[self.start + len - 1] != b'\n' && !self.ended;
        self.take_chunk(len, chunk);
        Ok(true)
    }

    /// Puts the next `len` bytes into a chunk, with the buffer that they are in, and goes on in the chunk's.
    fn take_chunk(&mut self, len: usize, chunk: &mut LineChunk) {
        let mut buffer = std::mem::take(&mut chunk.buffer);
        if buffer.is_empty() {
            buffer = vec![0; BUFFER].into_boxed_slice();
        }
        chunk.start = self.start;
        chunk.end = self.start + len;
        let rest = &self.buffer[chunk.end..self.end];
        buffer[..rest.len()].copy_from_slice(rest);
        self.start = 0;
        self.end = rest.len();
        chunk.buffer = std::mem::replace(&mut self.buffer, buffer);
    }

    /// Returns the next line; `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns the errors of [`LogLines::next_chunk`].
    pub(super) fn next(&mut self) -> io::Result<Option<LogLine<'_>>> {
        self.begin();
        loop {
            let ahead = self.ahead();
            match memchr::memchr(b'\n', ahead) {
                Some(len) if len <= MAX_LINE => return Ok(Some(self.take(len, 1))),
                None if ahead.len() <= MAX_LINE && !self.ended => {
                    self.fill();
                    if self.is_idle {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                }
                None if ahead.is_empty() => return self.error.take().map_or(Ok(None), Err),
                None if ahead.len() <= MAX_LINE => return Ok(Some(self.take(ahead.len(), 0))),
                _ => return Ok(Some(self.too_long())),
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

    /// Skips a line that is too long, and returns its first bytes.
    fn too_long(&mut self) -> LogLine<'_> {
        let kept = self.start + SAMPLE.min(self.end - self.start);
        self.sample.clear();
        self.sample
            .extend_from_slice(&self.buffer[self.start..kept]);
        self.pass_over();
        LogLine::TooLong(&self.sample)
    }

    /// Skips the rest of a line.
    fn pass_over(&mut self) {
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
    }

    /// Skips a byte order mark at the start of the stream.
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

    /// Moves the unread bytes to the start of the buffer, and reads once into the space after them.
    fn fill(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        self.is_idle = false;
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(len) => self.end += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.is_idle = true,
                Err(error) => {
                    self.ended = true;
                    self.error = Some(error);
                    let complete = memchr::memrchr(b'\n', self.ahead()).map_or(0, |end| end + 1);
                    self.end = self.start + complete;
                }
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that returns a few bytes at each read, and then an error if its flag is set.
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

    fn owned(line: LogLine<'_>) -> (bool, Vec<u8>) {
        match line {
            LogLine::Whole(line) => (true, line.to_vec()),
            LogLine::TooLong(line) => (false, line.to_vec()),
        }
    }

    /// Returns the lines of a text, of which so many bytes arrive at a time. They are the same one by one and in chunks.
    fn all(text: &[u8], step: usize) -> Vec<(bool, Vec<u8>)> {
        let mut lines = LogLines::new(Drip(text, step, false));
        let mut out = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            out.push(owned(line));
        }
        let mut lines = LogLines::new(Drip(text, step, false));
        let mut chunk = LineChunk::default();
        let mut in_chunks = Vec::new();
        while lines.next_chunk(&mut chunk).unwrap() {
            in_chunks.extend(chunk.places().map(|place| owned(chunk.line(&place))));
        }
        assert_eq!(in_chunks, out);
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
    fn lines_that_span_chunks_are_whole() {
        let text: Vec<u8> = (0..100_000)
            .flat_map(|number| format!("line {number}\n").into_bytes())
            .collect();
        for step in [1000, 100_000] {
            let lines = all(&text, step);
            assert_eq!(lines.len(), 100_000);
            assert_eq!(lines[99_999], (true, b"line 99999".to_vec()));
        }
    }

    #[test]
    fn a_line_without_end_is_not_waited_for() {
        let mut lines = LogLines::new(io::repeat(0));
        lines.endless = 3 * BUFFER as u64;
        let mut chunk = LineChunk::default();
        assert!(lines.next_chunk(&mut chunk).unwrap());
        assert_eq!(chunk.places().count(), 1);
        assert!(lines.next_chunk(&mut chunk).is_err());
        assert!(!lines.next_chunk(&mut chunk).unwrap());
        let mut lines = LogLines::new(io::repeat(0));
        lines.endless = 3 * BUFFER as u64;
        assert!(matches!(lines.next(), Ok(Some(LogLine::TooLong(_)))));
        assert!(lines.next().is_err());
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn an_error_loses_no_line_but_the_one_it_cuts() {
        let mut lines = LogLines::new(Drip(b"one\ntw", 100, true));
        let mut chunk = LineChunk::default();
        assert!(lines.next_chunk(&mut chunk).unwrap());
        let found: Vec<_> = chunk.places().map(|place| chunk.line(&place)).collect();
        assert_eq!(found, [LogLine::Whole(b"one")]);
        assert!(lines.next_chunk(&mut chunk).is_err());
        assert!(!lines.next_chunk(&mut chunk).unwrap());
        let mut lines = LogLines::new(Drip(b"one\ntw", 100, true));
        assert_eq!(lines.next().unwrap(), Some(LogLine::Whole(b"one")));
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
