//! A decoded request: its words in the buffer that it was decoded from, and the reasons why bytes
//! are no request.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

/// The largest number of words in a request.
pub const MAX_WORDS: usize = 512;
/// The length of the longest word of a request, in bytes.
pub const MAX_WORD_LEN: usize = 16 * 1024;
/// The length of the longest request, in bytes, its framing included.
pub const MAX_REQUEST_LEN: usize = 64 * 1024;

/// The reason why input cannot become a request, whatever bytes follow. Its text never repeats the
/// input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

impl std::error::Error for Malformed {}

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
