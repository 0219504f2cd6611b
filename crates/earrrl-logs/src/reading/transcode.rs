//! Conversion of UTF-16 and of JSON arrays to lines of UTF-8.

use std::io::{self, Read};

/// The number of bytes that are decoded at a time.
const CHUNK: usize = 16 * 1024;

/// The bytes with which UTF-16 starts, the lowest byte of each unit first or last.
const LITTLE_ENDIAN: [u8; 2] = [0xff, 0xfe];
const BIG_ENDIAN: [u8; 2] = [0xfe, 0xff];

/// Converts UTF-16 to UTF-8. Lone surrogates become U+FFFD.
pub(super) struct Utf16Reader<R> {
    source: R,
    unit: fn([u8; 2]) -> u16,
    /// Bytes that are not decoded yet, since the rest of their character is missing.
    pending: Vec<u8>,
    text: String,
    /// The number of bytes of `text` that were returned.
    returned: usize,
}

impl<R: Read> Utf16Reader<R> {
    /// Creates a converter if a stream that starts with `magic` is UTF-16.
    pub(super) fn of(magic: &[u8], source: R) -> Result<Self, R> {
        let unit = match magic.first_chunk() {
            Some(&LITTLE_ENDIAN) => u16::from_le_bytes,
            Some(&BIG_ENDIAN) => u16::from_be_bytes,
            _ => return Err(source),
        };
        Ok(Self {
            source,
            unit,
            pending: Vec::new(),
            text: String::new(),
            returned: 0,
        })
    }

    /// Decodes the next bytes of the source; leaves no text at its end.
    fn fill(&mut self) -> io::Result<()> {
        self.text.clear();
        self.returned = 0;
        let mut chunk = [0; CHUNK];
        while self.text.is_empty() {
            let len = self.source.read(&mut chunk)?;
            if len == 0 {
                break;
            }
            self.pending.extend_from_slice(&chunk[..len]);
            let mut whole = self.pending.len() & !1;
            let unit = |pair: &[u8]| (self.unit)([pair[0], pair[1]]);
            if whole > 0 && matches!(unit(&self.pending[whole - 2..]), 0xd800..=0xdbff) {
                whole -= 2;
            }
            let units = self.pending[..whole].chunks_exact(2).map(unit);
            let chars = char::decode_utf16(units);
            self.text
                .extend(chars.map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)));
            self.pending.drain(..whole);
        }
        Ok(())
    }
}

impl<R: Read> Read for Utf16Reader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.returned == self.text.len() {
            self.fill()?;
        }
        let text = &self.text.as_bytes()[self.returned..];
        let len = text.len().min(out.len());
        out[..len].copy_from_slice(&text[..len]);
        self.returned += len;
        Ok(len)
    }
}

/// Puts each element of a JSON array on a line of its own.
pub(super) struct ArrayReader<R> {
    source: R,
    /// The number of objects and arrays around the current byte, without the outermost array.
    depth: usize,
    in_string: bool,
    /// True after a backslash in a string.
    is_escaped: bool,
}

impl<R: Read> ArrayReader<R> {
    /// Creates a converter if a stream that starts with `magic` is an array of objects, and no log
    /// whose lines start with a bracket.
    pub(super) fn of(magic: &[u8], source: R) -> Result<Self, R> {
        let magic = magic
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(magic)
            .trim_ascii_start();
        match magic.strip_prefix(b"[").map(<[u8]>::trim_ascii_start) {
            Some([] | [b'{', ..]) => Ok(Self {
                source,
                depth: 0,
                in_string: false,
                is_escaped: false,
            }),
            _ => Err(source),
        }
    }

    /// Returns the byte that replaces `byte`, if any.
    fn convert(&mut self, byte: u8) -> Option<u8> {
        if self.in_string {
            self.in_string = byte != b'"' || self.is_escaped;
            self.is_escaped = byte == b'\\' && !self.is_escaped;
            return Some(byte);
        }
        match (byte, self.depth) {
            (b'[', 0) | (b' ' | b'\t' | b'\r' | b'\n', _) => return None,
            (b',' | b']', 0) => return Some(b'\n'),
            (b'"', _) => self.in_string = true,
            (b'{' | b'[', _) => self.depth += 1,
            (b'}' | b']', _) => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Some(byte)
    }
}

impl<R: Read> Read for ArrayReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let len = self.source.read(out)?;
            let mut kept = 0;
            for at in 0..len {
                if let Some(byte) = self.convert(out[at]) {
                    out[kept] = byte;
                    kept += 1;
                }
            }
            if kept > 0 || len == 0 {
                return Ok(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that returns a byte at each read.
    struct Bytes<'a>(&'a [u8]);

    impl Read for Bytes<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let len = out.len().min(1);
            self.0.read(&mut out[..len])
        }
    }

    #[test]
    fn utf16_in_pieces_and_damaged() {
        let text = "\u{feff}a\u{e9}\u{1f600}\n";
        for (bytes, expected) in [
            (
                text.encode_utf16()
                    .flat_map(u16::to_le_bytes)
                    .collect::<Vec<_>>(),
                text,
            ),
            (
                text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
                text,
            ),
            (
                vec![0xff, 0xfe, 0x3d, 0xd8, b'a', 0, b'b'],
                "\u{feff}\u{fffd}a",
            ),
            (vec![0xff, 0xfe, 0x3d, 0xd8], "\u{feff}"),
        ] {
            let whole = Utf16Reader::of(&bytes, &bytes[..]).ok().unwrap();
            assert_eq!(io::read_to_string(whole).unwrap(), expected);
            let pieces = Utf16Reader::of(&bytes, Bytes(&bytes)).ok().unwrap();
            assert_eq!(io::read_to_string(pieces).unwrap(), expected);
        }
        assert!(Utf16Reader::of(b"a log", io::empty()).is_err());
    }

    #[test]
    fn elements_become_lines() {
        let cases = [
            (r#"[{"a":1},{"b":[1,{}]}]"#, "{\"a\":1}\n{\"b\":[1,{}]}\n"),
            (
                "[\r\n  {\n    \"a\": \"x] ,\\\"{\"\n  }\n]\n",
                "{\"a\":\"x] ,\\\"{\"}\n",
            ),
            ("[{}]\n[{}]", "{}\n{}\n"),
            ("[{\"a\":\"\\\\\"},7,{\"b", "{\"a\":\"\\\\\"}\n7\n{\"b"),
        ];
        for (array, lines) in cases {
            let bytes = array.as_bytes();
            let whole = ArrayReader::of(&bytes[..6.min(bytes.len())], bytes)
                .ok()
                .unwrap();
            assert_eq!(io::read_to_string(whole).unwrap(), lines, "{array}");
            let pieces = ArrayReader::of(bytes, Bytes(bytes)).ok().unwrap();
            assert_eq!(io::read_to_string(pieces).unwrap(), lines, "{array}");
        }
        for magic in ["[2016-", "[pod/w", "[Wed O", "{\"a\":[", ""] {
            assert!(
                ArrayReader::of(magic.as_bytes(), io::empty()).is_err(),
                "{magic}"
            );
        }
    }
}
