//! Bytes that are no UTF-8, in a text.
//!
//! Protobuf and JSON have texts where HTTP has bytes. A byte outside UTF-8 stands in a text as a
//! character at the end of the last private plane, so that two different values stay different, and a
//! key is the same bytes over every protocol.

use std::borrow::Cow;

/// The character of byte 0; only those of bytes from 0x80 are used.
const FIRST: u32 = 0x10_FF00;
/// The byte that all of these characters begin with.
const LEAD: u8 = 0xF4;

/// Appends bytes to a text.
pub fn push(bytes: &[u8], text: &mut String) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let chars = chunk.invalid().iter().map(|byte| char::from_u32(FIRST + u32::from(*byte)));
        text.extend(chars.flatten());
    }
}

/// Returns the bytes of a text that [`push`] may have written.
pub fn bytes(text: &str) -> Cow<'_, [u8]> {
    let is_raw = |char: char| (FIRST + 0x80..=FIRST + 0xFF).contains(&u32::from(char));
    if memchr::memchr(LEAD, text.as_bytes()).is_none() || !text.contains(is_raw) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for char in text.chars() {
        match char {
            raw if is_raw(raw) => bytes.push((u32::from(raw) - FIRST) as u8),
            char => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_come_back(raw in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut text = String::new();
            push(&raw, &mut text);
            prop_assert_eq!(&*bytes(&text), &raw[..]);
        }
    }
}
