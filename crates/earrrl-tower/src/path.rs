//! Normalizes the paths of requests, so that no spelling of a path evades the rules for it.
//!
//! The normal form follows RFC 3986, section 6.2.2, and nginx: it has no query, no dot segments and
//! no doubled slashes; escapes of unreserved characters are decoded, and all others are in upper
//! case. Where servers interpret a spelling in different ways, the module `readings` finds the
//! other interpretations.

mod pattern;
mod readings;
#[cfg(test)]
#[path = "../tests/support/spellings.rs"]
mod spellings;

use std::borrow::Cow;

pub use pattern::PathPattern;
use readings::{Dots, MAX_LEN, PathReading, is_ambiguous};

/// The settings for comparing paths, in addition to the rules that always apply.
///
/// ```
/// use earrrl_tower::path::Paths;
/// assert_eq!(*Paths::TOLERANT.normalize(b"/x/..//%4cogin/?next=a"), *b"/login");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// True if letters in upper and lower case are equal: `/Login` is `/login`.
    pub ignore_case: bool,
    /// True if a slash at the end is ignored: `/login/` is `/login`.
    pub ignore_trailing_slash: bool,
    /// True if parameters of segments are ignored: `/login;id=5` is `/login`.
    pub ignore_parameters: bool,
    /// True if a path matches in every interpretation that some server gives it. In the normal form
    /// `%2F`, `%5C` and `\` then separate segments.
    pub all_readings: bool,
}

/// The interpretations of a path by some servers that differ from its normal form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OtherReadings {
    /// All servers interpret the path as its normal form.
    #[default]
    None,
    /// Some servers interpret the path as one of these, which are all different.
    Some(Vec<Vec<u8>>),
    /// The path is too long to find its interpretations, so it must be treated as any path.
    Any,
}

impl OtherReadings {
    /// Returns all interpretations of a path, of which `normal` is the normal form; `None` if the path is too long
    /// to list them.
    pub fn with<'a>(&'a self, normal: &'a [u8]) -> Option<impl Iterator<Item = &'a [u8]>> {
        let others = match self {
            Self::None => &[][..],
            Self::Some(others) => others,
            Self::Any => return None,
        };
        let others = others.iter().map(Vec::as_slice);
        Some(std::iter::once(normal).chain(others))
    }

    /// Returns the path as a part of a key: the shortest interpretation that `meets` a rule's conditions, so that a
    /// client gets no other key by another spelling. Paths that are too long to list their interpretations have one
    /// key.
    pub fn key<'a>(&'a self, normal: &'a [u8], meets: impl Fn(&[u8]) -> bool) -> &'a [u8] {
        if *self == Self::None {
            return normal;
        }
        let paths = self.with(normal).into_iter().flatten();
        let shortest = paths.min_by_key(|path| (!meets(path), path.len(), *path));
        shortest.unwrap_or_default()
    }
}

impl Paths {
    /// The settings that ignore all differences that some servers ignore, and that include all
    /// interpretations.
    pub const TOLERANT: Self = Self {
        ignore_case: true,
        ignore_trailing_slash: true,
        ignore_parameters: true,
        all_readings: true,
    };

    /// Returns the normal form of the path in a request's target. The target may be a path or a URL
    /// such as `http://host/path`.
    pub fn normalize(self, target: &[u8]) -> Cow<'_, [u8]> {
        let path = path_of(target);
        if self.is_normal(path) {
            return Cow::Borrowed(path);
        }
        Cow::Owned(self.read(path, self.usual()))
    }

    /// Returns the normal form of a configured path.
    pub fn normalize_text(self, path: &str) -> String {
        String::from_utf8_lossy(&self.normalize(path.as_bytes())).into_owned()
    }

    /// Returns the normal form of the text before the `*` in a configured pattern of paths.
    pub fn normalize_prefix(self, prefix: &str) -> String {
        Self {
            ignore_trailing_slash: false,
            ..self
        }
        .normalize_text(prefix)
    }

    /// Returns the other interpretations of a target's path, if the settings include them.
    pub fn others(self, target: &[u8]) -> OtherReadings {
        let (target, path) = (without_query(target), path_of(target));
        if !self.all_readings || !is_ambiguous(target, path) {
            return OtherReadings::None;
        }
        let variants = readings::variants(target, path);
        let length: usize = variants.iter().map(|variant| variant.len()).sum();
        if path.len() > MAX_LEN || length > 2 * MAX_LEN {
            return OtherReadings::Any;
        }
        let usual = self.read(path, self.usual());
        let mut others: Vec<Vec<u8>> = Vec::new();
        for path in &variants {
            for reading in readings::all() {
                let other = self.read(path, reading);
                if other != usual && !others.contains(&other) {
                    others.push(other);
                }
            }
        }
        if others.is_empty() {
            OtherReadings::None
        } else {
            OtherReadings::Some(others)
        }
    }

    fn usual(self) -> PathReading {
        PathReading {
            slash: self.all_readings,
            backslash: self.all_readings,
            drops_parameters: self.ignore_parameters,
            dots: Dots::Merged,
        }
    }

    /// Returns true if a path is in normal form already, as most paths are.
    fn is_normal(self, path: &[u8]) -> bool {
        let mut previous = 0;
        for &byte in path {
            let plain = match byte {
                b'%' | ..=b' ' | 0x7f.. => false,
                b'/' | b'.' if previous == b'/' => false,
                b';' => !self.ignore_parameters,
                b'\\' => !self.all_readings,
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

    fn read(self, path: &[u8], reading: PathReading) -> Vec<u8> {
        let undecoded;
        let path = match reading.dots {
            Dots::Undecoded if path.starts_with(b"/") => {
                undecoded = resolve(path, Dots::Merged);
                &undecoded
            }
            _ => path,
        };
        let unescaped = self.unescape(path, reading);
        // A backslash that separates can complete an origin, as in `http:\\host/path`.
        let mut path = without_origin(&unescaped).to_vec();
        if path.starts_with(b"/") {
            path = resolve(&path, reading.dots);
            if self.ignore_trailing_slash && path.len() > 1 && path.ends_with(b"/") {
                path.pop();
            }
        }
        path
    }

    /// Returns a path in which each character has one spelling: unreserved characters are
    /// unescaped, and characters that a path cannot contain are escaped.
    fn unescape(self, path: &[u8], reading: PathReading) -> Vec<u8> {
        let mut plain = Vec::with_capacity(path.len());
        let mut rest = path;
        let mut skipping = false;
        while let Some((&first, tail)) = rest.split_first() {
            let escaped = (first == b'%')
                .then(|| tail.first_chunk().copied())
                .flatten();
            let decoded = escaped.and_then(hex);
            rest = if decoded.is_some() { &tail[2..] } else { tail };
            let byte = decoded.unwrap_or(first);
            let separates = match byte {
                b'/' => decoded.is_none() || reading.slash,
                b'\\' => reading.backslash,
                _ => false,
            };
            skipping &= !separates;
            skipping |= byte == b';' && decoded.is_none() && reading.drops_parameters;
            if separates {
                plain.push(b'/');
            } else if !skipping {
                self.push(byte, decoded.is_some(), &mut plain);
            }
        }
        plain
    }

    fn push(self, byte: u8, was_escaped: bool, plain: &mut Vec<u8>) {
        let unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let allowed = byte.is_ascii_graphic() && byte != b'%' && !was_escaped;
        if unreserved || allowed {
            return plain.push(if self.ignore_case {
                byte.to_ascii_lowercase()
            } else {
                byte
            });
        }
        let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value & 15)];
        plain.extend([b'%', digit(byte >> 4), digit(byte)]);
    }
}

/// Returns the path of a request's target, without the query.
fn path_of(target: &[u8]) -> &[u8] {
    without_query(without_origin(target))
}

fn without_query(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
    &target[..end.unwrap_or(target.len())]
}

/// Returns the target without its scheme and host, if it has them.
fn without_origin(target: &[u8]) -> &[u8] {
    let ends_origin = |byte: &u8| matches!(byte, b'/' | b'?' | b'#');
    let Some(colon) = target
        .iter()
        .position(|byte| *byte == b':' || ends_origin(byte))
    else {
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

/// Returns a path that begins with a slash without doubled slashes. Its dot segments are resolved
/// as in RFC 3986, section 5.2.4, unless `dots` requires another way.
fn resolve(path: &[u8], dots: Dots) -> Vec<u8> {
    let resolves = matches!(dots, Dots::Merged | Dots::Unmerged);
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut ends_in_slash = false;
    for segment in path[1..].split(|byte| *byte == b'/') {
        ends_in_slash = segment.is_empty() || (resolves && matches!(segment, b"." | b".."));
        match segment {
            b"." if resolves => {}
            b".." if resolves => drop(kept.pop()),
            b"" if dots != Dots::Unmerged => {}
            segment => kept.push(segment),
        }
    }
    let mut path = Vec::with_capacity(path.len());
    for segment in kept.iter().filter(|segment| !segment.is_empty()) {
        path.push(b'/');
        path.extend_from_slice(segment);
    }
    if ends_in_slash || path.is_empty() {
        path.push(b'/');
    }
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: Paths = Paths {
        ignore_case: false,
        ignore_trailing_slash: false,
        ignore_parameters: false,
        all_readings: false,
    };
    const ALL: Paths = Paths {
        all_readings: false,
        ..Paths::TOLERANT
    };

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
            (
                "http:\\\\example.org/login",
                "http:\\\\example.org/login",
                "http:\\\\example.org/login",
            ),
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

    /// Returns all interpretations of a path, the normal form first.
    fn readings(path: &str) -> Vec<String> {
        let others = match Paths::TOLERANT.others(path.as_bytes()) {
            OtherReadings::Some(others) => others,
            _ => Vec::new(),
        };
        let others = others
            .into_iter()
            .map(|other| String::from_utf8(other).unwrap());
        std::iter::once(Paths::TOLERANT.normalize_text(path))
            .chain(others)
            .collect()
    }

    #[test]
    fn a_path_has_each_reading_that_some_server_has() {
        for spelling in [
            "/login",
            "/LOGIN/",
            "//login",
            "/x/../login",
            "/x/..%2flogin",
            "/x%2f..%2flogin",
            "/x/%2e%2e/login",
            "/x\\..\\login",
            "/x%5c..%5clogin",
            "\\login",
            "/%5clogin",
            "/x/..;a=b/login",
            "/login;x=1",
            "/;x/login",
            "/x//../login",
            "/x/y/..//../login",
            "/login/./",
            "/login/x/..",
            "/login%0a",
            "/LOGIN/%0A",
            "//host/login",
            "/\\host\\login",
            "///host/login",
            "/////host\\login",
            "//\\host/login",
            "////host/x/../login",
            "/\t/host/login",
            " \n//host/log\rin",
            "http:///host/login",
            "http:/host/login?//x",
            "https:host/login",
            "http:login",
            "javascript:/login",
            "x+y://host/login",
            "/index.php/login",
            "/x/Index.PHP/login/",
        ] {
            let spelling = if spelling.starts_with('\\') {
                format!("/x/..{spelling}")
            } else {
                spelling.into()
            };
            let readings = readings(&spelling);
            assert!(
                readings.iter().any(|reading| reading == "/login"),
                "{spelling}: {readings:?}"
            );
        }
        assert!(readings("/wp-login.php/x").contains(&"/wp-login.php".to_owned()));
        // A server that does not resolve dot segments serves this path below `/login`.
        assert!(readings("/login/../x").contains(&"/login/../x".to_owned()));
        for plain in [
            "/login",
            "/a/b.c",
            "/Caf%C3%A9/",
            "/a%20b",
            "/a.php",
            "/a.phpx/b",
            "/php/a",
        ] {
            assert_eq!(readings(plain).len(), 1, "{plain}");
        }
    }

    /// The settings that docs/proxies.md recommends are enough for the path handling of the
    /// applications in this table.
    #[test]
    fn each_spelling_that_an_application_takes_is_read_as_it() {
        let express = Paths {
            ignore_case: true,
            ignore_trailing_slash: true,
            ..PLAIN
        };
        for spelling in spellings::all() {
            let is_read = |paths: Paths| {
                let path = spellings::PATH.as_bytes();
                paths.normalize(&spelling.target) == path
                    || match paths.others(&spelling.target) {
                        OtherReadings::None => false,
                        OtherReadings::Some(others) => others.iter().any(|other| other == path),
                        OtherReadings::Any => true,
                    }
            };
            let shown = &spelling.shown;
            assert!(
                spelling.takers.is_empty() || is_read(Paths::TOLERANT),
                "{shown}"
            );
            if spelling.takers.iter().any(|taker| taker == "express") {
                assert!(is_read(express), "{shown}");
            }
        }
    }

    #[test]
    fn readings_are_few_and_of_short_paths() {
        let odd = "/a;x/..%2f%5c..\\b//../%2e%2e/c;y/.".repeat(200);
        let OtherReadings::Some(others) = Paths::TOLERANT.others(odd.as_bytes()) else {
            panic!("some")
        };
        assert!(others.len() < 64);
        assert_eq!(
            Paths::TOLERANT.others(odd.repeat(2).as_bytes()),
            OtherReadings::Any
        );
    }

    #[test]
    fn an_origin_written_with_backslashes_is_no_part_of_the_path() {
        for target in [
            "http:\\\\host\\login",
            "http:\\/host/login",
            "x:\\\\\\login",
            "a:/\\b//login",
        ] {
            assert_eq!(Paths::TOLERANT.normalize_text(target), "/login", "{target}");
        }
    }

    #[test]
    fn a_prefix_keeps_its_slash() {
        assert_eq!(ALL.normalize_prefix("//API/"), "/api/");
        assert_eq!(ALL.normalize_prefix("/ap"), "/ap");
    }

    proptest! {
        #[test]
        fn what_is_normal_stays(path in "[/%.;:\\\\a-cA-C0-9?é ]{0,24}") {
            for paths in [PLAIN, ALL, Paths::TOLERANT] {
                let once = paths.normalize_text(&path);
                prop_assert_eq!(paths.normalize_text(&once), once);
            }
        }
    }
}
