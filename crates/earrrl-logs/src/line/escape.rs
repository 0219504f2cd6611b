//! Escaping of untrusted bytes before they are printed.

use std::fmt::{self, Display, Write as _};

/// Prints bytes as UTF-8. Control characters, bytes that are not UTF-8, and characters that cannot be
/// seen or change the direction of writing are printed as escapes such as `\x1b`.
///
/// So the bytes cannot control a terminal or break a JSON string.
///
/// ```
/// use earrrl_logs::line::Escaped;
///
/// assert_eq!(Escaped(b"\x1b[2J\xff").to_string(), "\\x1b[2J\\xff");
/// ```
pub struct Escaped<'a>(pub &'a [u8]);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() || is_unseen(c) {
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

/// Returns true if a character separates lines or paragraphs, or only formats text: those of the
/// Unicode categories Zl, Zp and Cf, except the signs that Arabic, Syriac and Kaithi write before
/// numbers, which can be seen.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{e0001}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0020}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_hurt_is_escaped() {
        let text = Escaped(b"a \"b\" \\ \xc3\xa9 \x1b[31m\0\xff").to_string();
        assert_eq!(Escaped("a\u{202e}b".as_bytes()).to_string(), r"a\x202eb");
        for c in [
            '\u{feff}',
            '\u{200b}',
            '\u{2028}',
            '\u{ad}',
            '\u{e0041}',
            '\u{9b}',
        ] {
            let text = Escaped(c.to_string().as_bytes()).to_string();
            assert_eq!(text, format!("\\x{:02x}", u32::from(c)));
        }
        assert_eq!(text, r#"a "b" \ é \x1b[31m\x00\xff"#);
    }
}
