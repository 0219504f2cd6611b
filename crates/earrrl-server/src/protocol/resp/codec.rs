//! Decodes bytes into requests, which are arrays of bulk strings or inline commands. The decoder
//! does no I/O and bounds all sizes.
//!
//! The decoder stores offsets into a buffer that its caller owns, so decoding copies nothing and
//! rarely allocates. When a request arrives in pieces, decoding continues where it stopped, so no
//! byte is examined twice. Sizes are checked when they are announced, before memory is allocated
//! for them.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

/// The number of word positions whose allocation is kept between requests. It suffices for all but
/// requests with many charges.
const KEPT_WORDS: usize = 16;

/// The part of a request that the next byte of input belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    Count,
    Dollar,
    Length,
    /// The text of a bulk string. It ends at this offset, where its CRLF begins.
    Body(u32),
    Inline,
}

/// The part that has been read of a header line, which has digits and ends in CRLF.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    value: u32,
    digits: u8,
    carriage_return: bool,
}

/// A decoder of the requests of one connection. It keeps its position in an incomplete request
/// between calls.
#[derive(Debug)]
pub struct Decoder {
    phase: Phase,
    number: Number,
    /// The number of bytes of the present request that have been examined.
    seen: usize,
    /// The number of announced words that have not been read.
    missing: u32,
    words: Vec<Span>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            phase: Phase::Start,
            number: Number::default(),
            seen: 0,
            missing: 0,
            words: Vec::new(),
        }
    }
}

impl Decoder {
    /// Continues to decode, and returns the next request once it is complete. Returns `None` if
    /// more bytes are needed. `input` must begin with the first byte of the present request, and
    /// hold at least the bytes of the previous call. After a complete request, the next `input`
    /// begins [`Request::consumed`] bytes later.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the input cannot become a request. The connection must then be
    /// closed.
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<Option<Request<'a, '_>>, Malformed> {
        let inline = loop {
            match self.phase {
                Phase::Start => {
                    let Some(&first) = input.first() else {
                        return Ok(None);
                    };
                    self.start(first)?;
                    if first == b'*' && self.whole_array(input).is_some() {
                        break false;
                    }
                }
                Phase::Inline => {
                    if !self.inline(input)? {
                        return Ok(None);
                    }
                    break true;
                }
                _ => match self.array_step(input)? {
                    ParseStep::More => {}
                    ParseStep::Starved => return self.starved(),
                    ParseStep::Done => break false,
                },
            }
        };
        self.phase = Phase::Start;
        let bytes = &input[..self.seen];
        Ok(Some(Request {
            bytes,
            words: &self.words,
            inline,
        }))
    }

    /// Returns true if a part of a request has arrived, but not its end.
    pub fn is_partial(&self) -> bool {
        self.phase != Phase::Start
    }

    fn start(&mut self, first: u8) -> Result<(), Malformed> {
        self.words.clear();
        if self.words.capacity() > KEPT_WORDS {
            self.words.shrink_to(KEPT_WORDS);
        }
        self.number = Number::default();
        if first == b'*' {
            self.seen = 1;
            self.phase = Phase::Count;
        } else if first.is_ascii_alphabetic() || first.is_ascii_whitespace() {
            self.seen = 0;
            self.phase = Phase::Inline;
        } else {
            return Err(Malformed::Start);
        }
        Ok(())
    }

    /// Decodes an array that has arrived as a whole, several times as fast as step by step. Returns
    /// `None` if the array is incomplete or malformed; [`array_step`](Self::array_step) then decodes it,
    /// so this is called only once for each request.
    fn whole_array(&mut self, input: &[u8]) -> Option<()> {
        let end = self.whole_words(input);
        match end {
            Some(end) => self.seen = end,
            None => self.words.clear(),
        }
        end.map(|_| ())
    }

    /// Reads all words of an array and returns the end of the array.
    #[inline]
    fn whole_words(&mut self, input: &[u8]) -> Option<usize> {
        let (count, mut at) = header_line(input, 1).filter(|(count, _)| *count <= MAX_WORDS)?;
        for _ in 0..count {
            if *input.get(at)? != b'$' {
                return None;
            }
            let (length, start) = header_line(input, at + 1)?;
            let end = start + length;
            let is_allowed = length <= MAX_WORD_LEN && end + 2 <= MAX_REQUEST_LEN;
            if !is_allowed || input.get(end..end + 2)? != b"\r\n" {
                return None;
            }
            self.words.push(Span {
                start: start as u32,
                end: end as u32,
            });
            at = end + 2;
        }
        Some(at)
    }

    fn starved<'a>(&self) -> Result<Option<Request<'a, '_>>, Malformed> {
        let end = if let Phase::Body(end) = self.phase {
            end as usize + 2
        } else {
            self.seen
        };
        if end > MAX_REQUEST_LEN {
            Err(Malformed::TooLong)
        } else {
            Ok(None)
        }
    }

    #[inline]
    fn array_step(&mut self, input: &[u8]) -> Result<ParseStep, Malformed> {
        match self.phase {
            Phase::Count => {
                let Some(count) = self.number(input, Malformed::WordCount)? else {
                    return Ok(ParseStep::Starved);
                };
                if count as usize > MAX_WORDS {
                    return Err(Malformed::WordCount);
                }
                self.missing = count;
                self.next_word()
            }
            Phase::Dollar => match input.get(self.seen) {
                None => Ok(ParseStep::Starved),
                Some(b'$') => {
                    self.seen += 1;
                    self.phase = Phase::Length;
                    Ok(ParseStep::More)
                }
                Some(_) => Err(Malformed::NotABulkString),
            },
            Phase::Length => {
                let Some(length) = self.number(input, Malformed::WordLength)? else {
                    return Ok(ParseStep::Starved);
                };
                if length as usize > MAX_WORD_LEN {
                    return Err(Malformed::WordLength);
                }
                // The sum does not overflow, since `seen` is at most the length of a request and a
                // word.
                self.phase = Phase::Body(self.seen as u32 + length);
                Ok(ParseStep::More)
            }
            Phase::Body(end) => self.body(input, end),
            Phase::Start | Phase::Inline => Ok(ParseStep::More),
        }
    }

    #[inline]
    fn body(&mut self, input: &[u8], end: u32) -> Result<ParseStep, Malformed> {
        let after = end as usize + 2;
        if after > MAX_REQUEST_LEN {
            return Err(Malformed::TooLong);
        }
        let Some(line_end) = input.get(end as usize..after) else {
            return Ok(ParseStep::Starved);
        };
        if line_end != b"\r\n" {
            return Err(Malformed::LineEnd);
        }
        self.words.push(Span {
            start: self.seen as u32,
            end,
        });
        self.seen = after;
        self.missing -= 1;
        self.next_word()
    }

    #[inline]
    fn next_word(&mut self) -> Result<ParseStep, Malformed> {
        if self.missing == 0 {
            return Ok(ParseStep::Done);
        }
        self.phase = Phase::Dollar;
        Ok(ParseStep::More)
    }

    /// Continues to read a header line. Returns its number, or `None` if the end of the line has
    /// not arrived.
    #[inline]
    fn number(&mut self, input: &[u8], error: Malformed) -> Result<Option<u32>, Malformed> {
        let mut number = self.number;
        for (at, &byte) in input.iter().enumerate().skip(self.seen) {
            match byte {
                b'\n' if number.carriage_return => {
                    self.number = Number::default();
                    self.seen = at + 1;
                    return Ok(Some(number.value));
                }
                b'\r' if number.digits > 0 && !number.carriage_return => {
                    number.carriage_return = true;
                }
                // Nine digits suffice for all permitted numbers, and cannot overflow.
                b'0'..=b'9' if number.digits < 9 && !number.carriage_return => {
                    number.value = number.value * 10 + u32::from(byte - b'0');
                    number.digits += 1;
                }
                _ if number.carriage_return => return Err(Malformed::LineEnd),
                _ => return Err(error),
            }
        }
        self.number = number;
        self.seen = input.len();
        Ok(None)
    }

    /// Continues to read an inline command. Returns true if its end has arrived.
    fn inline(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        let newline = memchr::memchr(b'\n', &input[self.seen..]);
        let end = newline.map_or(input.len(), |at| self.seen + at + 1);
        if end > MAX_REQUEST_LEN {
            return Err(Malformed::TooLong);
        }
        self.seen = end;
        if newline.is_none() {
            return Ok(false);
        }
        let line = &input[..end - 1];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.split(line)?;
        Ok(true)
    }

    fn split(&mut self, line: &[u8]) -> Result<(), Malformed> {
        let mut start = 0;
        for (at, byte) in line.iter().copied().chain([b' ']).enumerate() {
            if byte == b'"' || byte == b'\'' || (byte.is_ascii_control() && byte != b'\t') {
                return Err(Malformed::Inline);
            }
            if byte == b' ' || byte == b'\t' {
                self.push_inline(start, at)?;
                start = at + 1;
            }
        }
        Ok(())
    }

    fn push_inline(&mut self, start: usize, end: usize) -> Result<(), Malformed> {
        if start == end {
            return Ok(());
        }
        if end - start > MAX_WORD_LEN {
            return Err(Malformed::WordLength);
        }
        if self.words.len() == MAX_WORDS {
            return Err(Malformed::WordCount);
        }
        self.words.push(Span {
            start: start as u32,
            end: end as u32,
        });
        Ok(())
    }
}

/// Returns the number in a header line whose digits begin at `at`, and the end of the line. Returns `None`
/// if the line is incomplete or malformed, or the number has more than five digits.
#[inline]
fn header_line(input: &[u8], at: usize) -> Option<(usize, usize)> {
    const MAX_DIGITS: usize = 5;
    let line = input.get(at..)?;
    let mut value = 0;
    for (nth, byte) in line.iter().take(MAX_DIGITS + 1).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let is_end = nth > 0 && *byte == b'\r' && line.get(nth + 1) == Some(&b'\n');
            return is_end.then_some((value, at + nth + 2));
        }
        value = 10 * value + usize::from(digit);
    }
    None
}

enum ParseStep {
    More,
    Starved,
    Done,
}

/// The largest number of words in a request.
pub const MAX_WORDS: usize = 512;
/// The length of the longest word of a request, in bytes.
pub const MAX_WORD_LEN: usize = 16 * 1024;
/// The length of the longest request, in bytes, its framing included.
pub const MAX_REQUEST_LEN: usize = 64 * 1024;

/// The reason why input cannot become a request, whatever bytes follow. Its text never repeats the
/// input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The first byte begins neither an array nor an inline command.
    Start,
    /// The count of an array is not a number from 0 to [`MAX_WORDS`].
    WordCount,
    /// The length of a bulk string is not a number from 0 to [`MAX_WORD_LEN`].
    WordLength,
    /// An element of a request's array is not a bulk string.
    NotABulkString,
    /// A line or a bulk string does not end in CRLF.
    LineEnd,
    /// The request is longer than [`MAX_REQUEST_LEN`].
    TooLong,
    /// An inline command has a quote or a control character.
    Inline,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => write!(f, "expected '*' or a command"),
            Self::WordCount => write!(f, "invalid multibulk length, want 0 to {MAX_WORDS}"),
            Self::WordLength => write!(f, "invalid bulk length, want 0 to {MAX_WORD_LEN} bytes"),
            Self::NotABulkString => write!(f, "expected '$' and a bulk string"),
            Self::LineEnd => write!(f, "expected CRLF"),
            Self::TooLong => write!(f, "request longer than {MAX_REQUEST_LEN} bytes"),
            Self::Inline => {
                write!(
                    f,
                    "quotes and control characters need the array form of a request"
                )
            }
        }
    }
}

/// The position of a word, in bytes from the first byte of its request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A complete request: its bytes, borrowed from the caller's buffer, and the positions of its
/// words.
#[derive(Clone, Copy)]
pub struct Request<'a, 'w> {
    pub(super) bytes: &'a [u8],
    pub(super) words: &'w [Span],
    pub(super) inline: bool,
}

impl<'a, 'w> Request<'a, 'w> {
    /// Returns the length of the request in bytes. The next request starts after them.
    pub fn consumed(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the request's bytes as they arrived.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the number of words, which is 0 for an empty array or a blank line.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns the word at `index`, or `None` if the request has fewer words.
    pub fn word(&self, index: usize) -> Option<&'a [u8]> {
        self.words
            .get(index)
            .and_then(|span| self.bytes.get(span.range()))
    }

    /// Returns all words, in order.
    pub fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a, 'w> {
        let bytes = self.bytes;
        self.words.iter().map(move |span| &bytes[span.range()])
    }

    /// Returns the positions of the request's words, with which [`DetachedRequest::within`]
    /// restores the request from the same buffer.
    pub fn keep(&self) -> DetachedRequest {
        DetachedRequest {
            length: self.bytes.len(),
            words: SmallVec::from_slice(self.words),
            inline: self.inline,
        }
    }

    /// Returns true if the request was sent as an inline command.
    pub fn is_inline(&self) -> bool {
        self.inline
    }
}

impl fmt::Debug for Request<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.words()).finish()
    }
}

/// The positions of a request's words without its bytes, from which the request can be restored.
/// The positions of a request with few words need no allocation.
#[derive(Clone, Debug)]
pub struct DetachedRequest {
    length: usize,
    words: SmallVec<[Span; 6]>,
    inline: bool,
}

impl DetachedRequest {
    /// Returns the length of the original request in bytes, like [`Request::consumed`].
    pub fn consumed(&self) -> usize {
        self.length
    }

    /// Restores the request. `bytes` must begin with the bytes that the request was decoded from.
    pub fn within<'a>(&self, bytes: &'a [u8]) -> Request<'a, '_> {
        Request {
            bytes: &bytes[..self.length],
            words: &self.words,
            inline: self.inline,
        }
    }
}

#[cfg(test)]
mod tests;
