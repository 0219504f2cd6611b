//! Words of commands that are printed to be copied into a shell.

use super::Escaped;

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
