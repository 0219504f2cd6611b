//! Writing of untrusted bytes: escaped for a screen, and as words of a shell.

use std::fmt::Write as _;
use std::fmt::{self, Display};

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

// Words of commands that are printed to be copied into a shell.

/// Returns a word that a shell reads as this text. A text from a log is a client's, and must not end the
/// word and begin a command. A text with control characters is written as `$'…'`, which bash, ksh and
/// zsh read.
///
/// ```
/// use earrrl_logs::line::shell_word;
///
/// assert_eq!(shell_word(b"path=/login"), "path=/login");
/// assert_eq!(shell_word(b"path=/a b"), "'path=/a b'");
/// assert_eq!(shell_word(b"path=/';reboot;'"), r"'path=/'\'';reboot;'\'''");
/// assert_eq!(shell_word(b"path=/\x1b[2J"), r"$'path=/\x1b[2J'");
/// ```
pub fn shell_word(text: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_./:=,@%+-".contains(byte);
    if !text.is_empty() && text.iter().all(is_plain) {
        return String::from_utf8_lossy(text).into_owned();
    }
    let escaped = Escaped(text).to_string();
    if escaped.as_bytes() == text {
        return format!("'{}'", escaped.replace('\'', r"'\''"));
    }
    let quoted = |byte: &u8| match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        // A shell reads two digits at most, so a digit that follows is not part of the number.
        _ => format!("\\x{byte:02x}"),
    };
    format!("$'{}'", text.iter().map(quoted).collect::<String>())
}

#[cfg(test)]
mod escape_tests {
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
