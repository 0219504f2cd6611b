//! Bytes from outside, made fit to print.

use std::fmt::{self, Display, Write as _};

/// UTF-8 text as it is; control characters, bytes that are not UTF-8, and marks that turn the
/// direction of writing, as `\x1b`.
///
/// Neither a terminal nor a JSON reader sees anything that it could act on.
pub struct Escaped<'a>(pub &'a [u8]);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() || turns(c) {
                    write!(f, "\\x{:02x}", u32::from(c))?
                } else {
                    f.write_char(c)?
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Returns true if a character changes the direction of writing.
fn turns(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_hurt_is_escaped() {
        let text = Escaped(b"a \"b\" \\ \xc3\xa9 \x1b[31m\0\xff").to_string();
        assert_eq!(Escaped("a\u{202e}b".as_bytes()).to_string(), r"a\x202eb");
        assert_eq!(text, r#"a "b" \ é \x1b[31m\x00\xff"#);
    }
}
