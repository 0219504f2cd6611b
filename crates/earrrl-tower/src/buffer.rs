//! A buffer that needs no allocation for short texts.

use std::fmt;
use std::io;

/// A buffer that allocates only above `SHORT` bytes.
#[derive(Clone, Debug)]
pub(crate) struct Buffer<const SHORT: usize> {
    short: [u8; SHORT],
    len: usize,
    /// All bytes, if there are more than `SHORT`.
    long: Vec<u8>,
}

impl<const SHORT: usize> Default for Buffer<SHORT> {
    #[inline]
    fn default() -> Self {
        Self {
            short: [0; SHORT],
            len: 0,
            long: Vec::new(),
        }
    }
}

impl<const SHORT: usize> Buffer<SHORT> {
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self.spare(bytes.len()) {
            Some(spare) => spare.copy_from_slice(bytes),
            None => self.push_long(bytes),
        }
        self.len += bytes.len();
    }

    /// Appends the first `len` bytes of an array. This copies the whole array, so that the copy does
    /// not wait until `len` is computed.
    #[inline]
    pub(crate) fn push_prefix<const MAX: usize>(&mut self, bytes: &[u8; MAX], len: usize) {
        match self.spare(MAX) {
            Some(spare) => {
                spare.copy_from_slice(bytes);
                self.len += len;
            }
            None => self.push(&bytes[..len]),
        }
    }

    /// Returns the next `len` unused bytes of `short`; `None` if fewer are left or `long` is in
    /// use.
    #[inline]
    fn spare(&mut self, len: usize) -> Option<&mut [u8]> {
        let spare = self.short.get_mut(self.len..self.len + len);
        spare.filter(|_| self.long.is_empty())
    }

    fn push_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.len]);
        }
        self.long.extend_from_slice(bytes);
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.len]
        } else {
            &self.long
        }
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

impl<const SHORT: usize> fmt::Write for Buffer<SHORT> {
    #[inline]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl<const SHORT: usize> io::Write for Buffer<SHORT> {
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

    #[test]
    fn it_holds_what_a_vector_would() {
        for step in 1..9 {
            let mut buffer = Buffer::<16>::default();
            let mut expected = Vec::new();
            for nth in 0..12u8 {
                let bytes = [nth; 8];
                match nth % 3 {
                    0 => buffer.push_prefix(&bytes, step),
                    _ => buffer.push(&bytes[..step]),
                }
                expected.extend_from_slice(&bytes[..step]);
                assert_eq!(
                    (buffer.as_bytes(), buffer.len()),
                    (&expected[..], expected.len())
                );
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
