//! Request paths in one form, so that no spelling of a path leads past the rules for it.
//!
//! As RFC 3986, section 6.2.2, and nginx do: no query, escapes of unreserved characters decoded and
//! all others in upper case, no dot segments, no doubled slashes.

use std::borrow::Cow;

/// How paths are compared, beyond what always holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// `/Login` is `/login`.
    pub ignore_case: bool,
    /// `/login/` is `/login`.
    pub ignore_trailing_slash: bool,
    /// `/login;id=5` is `/login`.
    pub ignore_parameters: bool,
}

impl Paths {
    /// Returns the path of a request's target in its one form: of `http://host/path` the path.
    pub fn normalize(self, target: &[u8]) -> Cow<'_, [u8]> {
        let path = without_origin(target);
        let end = path.iter().position(|byte| matches!(byte, b'?' | b'#'));
        let path = &path[..end.unwrap_or(path.len())];
        if self.is_normal(path) {
            return Cow::Borrowed(path);
        }
        let mut path = self.unescape(path);
        if path.starts_with('/') {
            path = without_dots(&path);
            if self.ignore_trailing_slash && path.len() > 1 && path.ends_with('/') {
                path.pop();
            }
        }
        Cow::Owned(path.into_bytes())
    }

    /// Returns a configured path in its one form.
    pub fn normalize_text(self, path: &str) -> String {
        String::from_utf8_lossy(&self.normalize(path.as_bytes())).into_owned()
    }

    /// Returns the start of paths in its one form: the part of a pattern before its `*`.
    pub fn normalize_prefix(self, prefix: &str) -> String {
        Self { ignore_trailing_slash: false, ..self }.normalize_text(prefix)
    }

    /// Most paths need nothing done.
    fn is_normal(self, path: &[u8]) -> bool {
        let mut previous = 0;
        for &byte in path {
            let plain = match byte {
                b'%' | ..=b' ' | 0x7f.. => false,
                b'/' | b'.' if previous == b'/' => false,
                b';' => !self.ignore_parameters,
                b'A'..=b'Z' => !self.ignore_case,
                _ => true,
            };
            if !plain {
                return false;
            }
            previous = byte;
        }
        !(self.ignore_trailing_slash && previous == b'/' && path.len() > 1)
    }

    /// Each character in its one spelling: unreserved ones plain, those that a path can't hold
    /// escaped.
    fn unescape(self, path: &[u8]) -> String {
        let mut plain = String::with_capacity(path.len());
        let mut rest = path;
        let mut skipping = false;
        while let Some((&first, tail)) = rest.split_first() {
            let escaped = (first == b'%').then(|| tail.first_chunk().copied()).flatten();
            let decoded = escaped.and_then(hex);
            rest = if decoded.is_some() { &tail[2..] } else { tail };
            let byte = decoded.unwrap_or(first);
            match byte {
                b'/' if decoded.is_none() => skipping = false,
                b';' if decoded.is_none() && self.ignore_parameters => skipping = true,
                _ => {}
            }
            if !skipping {
                self.push(byte, decoded.is_some(), &mut plain);
            }
        }
        plain
    }

    fn push(self, byte: u8, was_escaped: bool, plain: &mut String) {
        let unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let allowed = byte.is_ascii_graphic() && byte != b'%' && !was_escaped;
        if unreserved || allowed {
            let byte = if self.ignore_case { byte.to_ascii_lowercase() } else { byte };
            return plain.push(char::from(byte));
        }
        let digit = |value: u8| char::from(b"0123456789ABCDEF"[usize::from(value & 15)]);
        plain.extend(['%', digit(byte >> 4), digit(byte)]);
    }
}

/// Returns an absolute target without its scheme and host.
fn without_origin(target: &[u8]) -> &[u8] {
    let ends_origin = |byte: &u8| matches!(byte, b'/' | b'?' | b'#');
    let Some(colon) = target.iter().position(|byte| *byte == b':' || ends_origin(byte)) else {
        return target;
    };
    match target[colon..].strip_prefix(b"://") {
        Some(rest) if colon > 0 => {
            let path = rest.iter().position(ends_origin).map(|at| &rest[at..]);
            path.filter(|path| path.starts_with(b"/")).unwrap_or(b"/")
        }
        _ => target,
    }
}

fn hex(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    Some((high? * 16 + low?) as u8)
}

/// RFC 3986, section 5.2.4, with empty segments left out.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_slash = false;
    for segment in path.split('/') {
        ends_in_slash = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let mut path = String::with_capacity(path.len());
    for segment in &kept {
        path.push('/');
        path.push_str(segment);
    }
    if ends_in_slash || kept.is_empty() {
        path.push('/');
    }
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Paths =
        Paths { ignore_case: false, ignore_trailing_slash: false, ignore_parameters: false };
    const ALL: Paths =
        Paths { ignore_case: true, ignore_trailing_slash: true, ignore_parameters: true };

    #[test]
    fn every_spelling_of_a_path_is_one() {
        for (spelling, plain, all) in [
            ("/login", "/login", "/login"),
            ("//login", "/login", "/login"),
            ("/./login", "/login", "/login"),
            ("/a/../login", "/login", "/login"),
            ("/../../login", "/login", "/login"),
            ("/a/%2e%2E/login", "/login", "/login"),
            ("/%6cogin", "/login", "/login"),
            ("/%6Cogin?a=b", "/login", "/login"),
            ("/login#top", "/login", "/login"),
            ("http://example.org/login", "/login", "/login"),
            ("http://example.org?x", "/", "/"),
            ("/?next=http://example.org/a", "/", "/"),
            ("/Login", "/Login", "/login"),
            ("/%4Cogin", "/Login", "/login"),
            ("/login/", "/login/", "/login"),
            ("/login/.", "/login/", "/login"),
            ("/login//", "/login/", "/login"),
            ("/login;x", "/login;x", "/login"),
            ("/a;x=1/login;y", "/a;x=1/login;y", "/a/login"),
            ("/login%3bx", "/login%3Bx", "/login%3Bx"),
            ("/a%2fb", "/a%2Fb", "/a%2Fb"),
            ("/caf\u{e9}", "/caf%C3%A9", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9", "/caf%C3%A9"),
            ("/a b\n", "/a%20b%0A", "/a%20b%0A"),
            ("/100%", "/100%25", "/100%25"),
            ("/%zz%4", "/%25zz%254", "/%25zz%254"),
            ("/%%36c", "/%256c", "/%256c"),
            ("/", "/", "/"),
            ("/..", "/", "/"),
            ("", "", ""),
            ("*", "*", "*"),
        ] {
            assert_eq!(PLAIN.normalize_text(spelling), plain, "{spelling}");
            assert_eq!(ALL.normalize_text(spelling), all, "{spelling}");
        }
    }

    #[test]
    fn a_prefix_keeps_its_slash() {
        assert_eq!(ALL.normalize_prefix("//API/"), "/api/");
        assert_eq!(ALL.normalize_prefix("/ap"), "/ap");
    }

    proptest! {
        #[test]
        fn what_is_normal_stays(path in "[/%.;a-cA-C0-9?é ]{0,24}") {
            for paths in [PLAIN, ALL] {
                let once = paths.normalize_text(&path);
                prop_assert_eq!(paths.normalize_text(&once), once);
            }
        }
    }
}
