//! The readings of a path: servers behind proxies understand one spelling in different ways.
//!
//! Express serves `/V1/LOGIN` and `/login/`, gunicorn takes `%2F` for a slash, IIS takes a backslash,
//! Tomcat drops `;x`, and some resolve `..` before they decode, some afterwards, some never. A request
//! counts under a rule if any of these readings matches.

use std::borrow::Cow;

/// The longest path of which all readings are made. A longer one with unusual spelling counts under
/// every rule by path: real ones are shorter.
pub(super) const MAX_LEN: usize = 8 * 1024;

/// One way to read a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// `%2F` separates segments.
    pub(super) slash: bool,
    /// `\` and `%5C` separate segments.
    pub(super) backslash: bool,
    /// `;x` is no part of a segment.
    pub(super) drops_parameters: bool,
    pub(super) dots: Dots,
}

/// The segments `.` and `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dots {
    /// Names as any other.
    Kept,
    /// Resolved before anything is decoded.
    Undecoded,
    /// Resolved after doubled slashes are merged.
    Merged,
    /// Resolved with empty segments as segments.
    Unmerged,
}

/// Returns true if servers may disagree on a path.
pub(super) fn is_ambiguous(path: &[u8]) -> bool {
    let odd = |byte: &u8| matches!(byte, b'%' | b'\\' | b';' | ..=b' ' | 0x7f | 0xa0);
    let dotted = |pair: &[u8]| pair[0] == b'/' && matches!(pair[1], b'/' | b'.');
    path.iter().any(odd)
        || path.windows(2).any(dotted)
        || is_relative(path)
        || script_end(path).is_some()
}

/// Returns the paths that servers may read instead of this one, and the path itself.
pub(super) fn variants(path: &[u8]) -> Vec<Cow<'_, [u8]>> {
    let mut variants = vec![Cow::Borrowed(path)];
    variants.extend(mended(path).map(Cow::Owned));
    variants.extend(before_line_end(path).map(Cow::Borrowed));
    variants.extend(behind_authority(path).map(Cow::Borrowed));
    if let Some((script, rest)) = script_end(path).map(|end| path.split_at(end)) {
        variants.extend([Cow::Borrowed(script), Cow::Borrowed(rest)]);
    }
    variants
}

/// Returns a path without an escaped line end at its end: in many regular expressions, `$` matches
/// before it, so that `location ~ ^/login$` of nginx takes `/login%0A` as well.
fn before_line_end(path: &[u8]) -> Option<&[u8]> {
    let (rest, end) = path.split_last_chunk::<3>()?;
    end.eq_ignore_ascii_case(b"%0a").then_some(rest)
}

/// Returns the path behind an authority: JavaScript's `new URL("//host/login", base)` has the path
/// `/login`, and takes backslashes for slashes.
fn behind_authority(path: &[u8]) -> Option<&[u8]> {
    let separates = |byte: &u8| matches!(byte, b'/' | b'\\');
    let (start, rest) = path.split_first_chunk::<2>()?;
    let end = rest.iter().position(separates)?;
    start.iter().all(separates).then_some(&rest[end..])
}

/// Returns the end of a script's name that is not the end of the path. PHP runs `/login.php` for
/// `/login.php/any`, and most applications with an `/index.php` serve `/index.php/login` as `/login`.
fn script_end(path: &[u8]) -> Option<usize> {
    let mut slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let end = slashes.find(|(at, _)| {
        path[..*at].last_chunk::<4>().is_some_and(|end| end.eq_ignore_ascii_case(b".php"))
    });
    end.map(|(at, _)| at)
}

/// Returns true for a path that does not begin with a slash, in whatever spelling.
fn is_relative(path: &[u8]) -> bool {
    !path.is_empty() && path[0] != b'/'
}

/// Returns a path without blanks and control characters, and with a slash at its start; `None` if it is
/// such a path. Tomcat ends a target at a tab, earlier versions of gunicorn drop line ends and tabs, and
/// JavaScript's `url.parse` drops blanks at the end, also that of Latin-1 (0xA0, which is no UTF-8 then).
fn mended(path: &[u8]) -> Option<Vec<u8>> {
    let is_text = str::from_utf8(path).is_ok();
    let is_blank = |byte: u8| byte <= b' ' || byte == 0x7f || (byte == 0xa0 && !is_text);
    let start = if is_relative(path) { &b"/"[..] } else { b"" };
    let kept = path.iter().copied().filter(|byte| !is_blank(*byte));
    let mended: Vec<u8> = start.iter().copied().chain(kept).collect();
    (mended != path).then_some(mended)
}

/// Returns all ways to read a path that differ for some path.
pub(super) fn all() -> impl Iterator<Item = Reading> {
    let booleans = [false, true];
    let dots = [Dots::Kept, Dots::Undecoded, Dots::Merged, Dots::Unmerged];
    dots.into_iter().flat_map(move |dots| {
        (0..8).map(move |bits: usize| Reading {
            slash: booleans[bits & 1],
            backslash: booleans[bits >> 1 & 1],
            drops_parameters: booleans[bits >> 2],
            dots,
        })
    })
}
