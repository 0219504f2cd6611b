//! Decodes bytes into requests, which are arrays of bulk strings or inline commands. The decoder
//! does no I/O and bounds all sizes.
//!
//! A request borrows its words from the input, so decoding copies nothing and rarely allocates. Sizes are checked when
//! they are announced, before the rest has arrived. A request that arrives in pieces is decoded from its beginning with
//! each piece: it has at most 512 words, so this takes less than the read of the piece.

use std::fmt;

use smallvec::SmallVec;

/// The words of a request. Few requests have more than six.
pub type Words<'a> = SmallVec<[&'a [u8]; 6]>;

/// The reason why input is no request: a mistake in it, or `None` if more bytes are needed.
type Stopped = Option<Malformed>;

/// Decodes the request that `input` begins with; returns `None` if more bytes are needed.
///
/// # Errors
/// Returns [`Malformed`] if the input cannot become a request. The connection must then be closed.
pub fn decode(input: &[u8]) -> Result<Option<Request<'_>>, Malformed> {
    let mut words = Words::new();
    let end = match input.first() {
        None => Err(None),
        Some(b'*') => array(input, &mut words),
        Some(first) if first.is_ascii_alphabetic() || first.is_ascii_whitespace() => {
            inline(input, &mut words)
        }
        Some(_) => Err(Some(Malformed::Start)),
    };
    match end {
        Ok(end) => Ok(Some(Request {
            bytes: &input[..end],
            words,
        })),
        Err(None) => Ok(None),
        Err(Some(malformed)) => Err(malformed),
    }
}

/// Reads all words of an array and returns the end of the array.
#[inline]
fn array<'a>(input: &'a [u8], words: &mut Words<'a>) -> Result<usize, Stopped> {
    let (count, mut at) = header_line(input, 1, Malformed::WordCount, MAX_WORDS)?;
    for _ in 0..count {
        if *input.get(at).ok_or(None)? != b'$' {
            return Err(Some(Malformed::NotABulkString));
        }
        let (length, start) = header_line(input, at + 1, Malformed::WordLength, MAX_WORD_LEN)?;
        let end = start + length;
        at = end + 2;
        if at > MAX_REQUEST_LEN {
            return Err(Some(Malformed::TooLong));
        }
        if input.get(end..at).ok_or(None)? != b"\r\n" {
            return Err(Some(Malformed::LineEnd));
        }
        words.push(&input[start..end]);
    }
    Ok(at)
}

/// Returns the number in a header line whose digits begin at `at`, and the end of the line. The error is `malformed` if
/// it is no number from 0 to `most`.
#[inline]
fn header_line(
    input: &[u8],
    at: usize,
    malformed: Malformed,
    most: usize,
) -> Result<(usize, usize), Stopped> {
    // Nine digits suffice for all permitted numbers, and cannot overflow.
    const MAX_DIGITS: usize = 9;
    let mut value = 0;
    for (nth, byte) in input[at..].iter().enumerate() {
        let end = at + nth + 2;
        match byte {
            b'0'..=b'9' if nth < MAX_DIGITS => value = 10 * value + usize::from(byte - b'0'),
            b'\r' if nth > 0 => {
                return match input.get(end - 1).ok_or(None)? {
                    b'\n' if value <= most => Ok((value, end)),
                    b'\n' => Err(Some(malformed)),
                    _ => Err(Some(Malformed::LineEnd)),
                };
            }
            _ => return Err(Some(malformed)),
        }
    }
    Err(None)
}

/// Reads all words of an inline command and returns the end of its line.
fn inline<'a>(input: &'a [u8], words: &mut Words<'a>) -> Result<usize, Stopped> {
    let newline = memchr::memchr(b'\n', input);
    if newline.map_or(input.len(), |at| at + 1) > MAX_REQUEST_LEN {
        return Err(Some(Malformed::TooLong));
    }
    let end = newline.ok_or(None)?;
    let line = &input[..end];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let is_refused = |byte: &u8| matches!(byte, b'"' | b'\'') || byte.is_ascii_control();
    if line.iter().any(|byte| is_refused(byte) && !is_blank(byte)) {
        return Err(Some(Malformed::Inline));
    }
    for word in line.split(is_blank).filter(|word| !word.is_empty()) {
        if word.len() > MAX_WORD_LEN {
            return Err(Some(Malformed::WordLength));
        }
        if words.len() == MAX_WORDS {
            return Err(Some(Malformed::WordCount));
        }
        words.push(word);
    }
    Ok(end + 1)
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

/// A complete request: its bytes and its words, borrowed from the caller's buffer.
pub struct Request<'a> {
    /// The request's bytes as they arrived. The next request starts after them.
    pub bytes: &'a [u8],
    /// The words of the request: none for an empty array or a blank line.
    pub words: Words<'a>,
}

impl Request<'_> {
    /// Returns true if the request was sent as an inline command.
    pub fn is_inline(&self) -> bool {
        !self.bytes.starts_with(b"*")
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.words).finish()
    }
}

#[cfg(test)]
mod tests;
