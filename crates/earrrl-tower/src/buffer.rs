//! Short texts in the making, without an allocation.

use std::io::{self, Write};

/// Bytes that are appended to; up to `SHORT` of them take no allocation.
#[derive(Clone, Debug)]
pub(crate) struct Buffer<const SHORT: usize> {
    short: [u8; SHORT],
    len: usize,
    /// All of it, once it is not short.
    long: Vec<u8>,
}

impl<const SHORT: usize> Default for Buffer<SHORT> {
    #[inline]
    fn default() -> Self {
        Self { short: [0; SHORT], len: 0, long: Vec::new() }
    }
}

impl<const SHORT: usize> Buffer<SHORT> {
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self.room(bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.push_long(bytes),
        }
        self.len += bytes.len();
    }

    /// Appends the first `len` bytes: faster than [`push`](Self::push) where `len` is known only late.
    #[inline]
    pub(crate) fn push_some<const MOST: usize>(&mut self, bytes: &[u8; MOST], len: usize) {
        match self.room(MOST) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += len;
            }
            None => self.push(&bytes[..len]),
        }
    }

    /// The next so many bytes, while it is short.
    #[inline]
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let room = self.short.get_mut(self.len..self.len + len);
        room.filter(|_| self.long.is_empty())
    }

    fn push_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.len]);
        }
        self.long.extend_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.short[..self.len] } else { &self.long }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.long.truncate(len);
    }
}

impl<const SHORT: usize> Write for Buffer<SHORT> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a vector would have it, whatever the lengths.
    #[test]
    fn what_was_appended_is_there() {
        for step in 1..9 {
            let (mut buffer, mut expected) = (Buffer::<16>::default(), Vec::new());
            for nth in 0..12u8 {
                let bytes = [nth; 8];
                match nth % 3 {
                    0 => buffer.push_some(&bytes, step),
                    _ => buffer.push(&bytes[..step]),
                }
                expected.extend_from_slice(&bytes[..step]);
                assert_eq!((buffer.as_bytes(), buffer.len()), (&expected[..], expected.len()));
                if nth == 7 {
                    buffer.truncate(step);
                    expected.truncate(step);
                }
            }
            buffer.truncate(0);
            buffer.push(b"x");
            assert_eq!(buffer.as_bytes(), b"x");
        }
    }
}
