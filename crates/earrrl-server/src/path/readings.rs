//! The interpretations of a path: servers behind proxies read the same spelling in different ways.
//!
//! Express serves `/V1/LOGIN` and `/login/`, gunicorn reads `%2F` as a slash, IIS reads a backslash
//! as a slash, and Tomcat drops `;x`. Some servers resolve `..` before they decode escapes, some
//! afterwards, and some never. A request matches a rule if any of these interpretations does.

use std::borrow::Cow;

/// The length in bytes of the longest path whose interpretations are computed. A longer path with
/// unusual spelling matches every rule by path, since real paths are shorter.
pub(super) const MAX_LEN: usize = 8 * 1024;

/// One way in which a server may interpret the separators and parameters of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// True if `%2F` separates segments.
    pub(super) slash: bool,
    /// True if `\` and `%5C` separate segments.
    pub(super) backslash: bool,
    /// True if `;x` at the end of a segment is dropped.
    pub(super) drops_parameters: bool,
    pub(super) dots: Dots,
}

/// The ways in which a server may handle the segments `.` and `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dots {
    /// The segments are kept as names like any other.
    Kept,
    /// The segments are resolved before escapes are decoded.
    Undecoded,
    /// The segments are resolved after doubled slashes are merged.
    Merged,
    /// The segments are resolved before doubled slashes are merged, so that `..` can remove an
    /// empty segment.
    Unmerged,
}

/// Returns true if servers may interpret a path in different ways.
pub(super) fn is_ambiguous(path: &[u8]) -> bool {
    let odd = |byte: &u8| matches!(byte, b'%' | b'\\' | b';' | ..=b' ' | 0x7f | 0xa0);
    let dotted = |pair: &[u8]| pair[0] == b'/' && matches!(pair[1], b'/' | b'.');
    path.iter().any(odd)
        || path.windows(2).any(dotted)
        || is_relative(path)
        || script_end(path).is_some()
}

/// Returns the path itself, and the other paths that some servers may read in its place.
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

/// Returns the path before an escaped line end at its end. In many regular expressions `$` matches
/// before a line end, so that `location ~ ^/login$` of nginx matches `/login%0A` too.
fn before_line_end(path: &[u8]) -> Option<&[u8]> {
    let (rest, end) = path.split_last_chunk::<3>()?;
    end.eq_ignore_ascii_case(b"%0a").then_some(rest)
}

/// Returns the path behind an authority, such as `/login` in `//host/login`. JavaScript's `new
/// URL("//host/login", base)` has this path, and reads backslashes as slashes.
fn behind_authority(path: &[u8]) -> Option<&[u8]> {
    let separates = |byte: &u8| matches!(byte, b'/' | b'\\');
    let (start, rest) = path.split_first_chunk::<2>()?;
    let end = rest.iter().position(separates)?;
    start.iter().all(separates).then_some(&rest[end..])
}

/// Returns the position at which the name of a script ends within a longer path. PHP runs
/// `/login.php` for `/login.php/any`, and most applications with an `/index.php` serve
/// `/index.php/login` as `/login`.
fn script_end(path: &[u8]) -> Option<usize> {
    let mut slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let end = slashes.find(|(at, _)| {
        path[..*at].last_chunk::<4>().is_some_and(|end| end.eq_ignore_ascii_case(b".php"))
    });
    end.map(|(at, _)| at)
}

/// Returns true if a path does not begin with a slash, escaped or not.
fn is_relative(path: &[u8]) -> bool {
    !path.is_empty() && path[0] != b'/'
}

/// Returns a path without spaces and control characters, and with a slash at its start; `None` if
/// the path is unchanged. Tomcat ends a target at a tab, earlier versions of gunicorn drop line
/// ends and tabs, and JavaScript's `url.parse` drops spaces at the end, including the no-break
/// space of Latin-1 (0xA0).
fn mended(path: &[u8]) -> Option<Vec<u8>> {
    let is_text = str::from_utf8(path).is_ok();
    let is_blank = |byte: u8| byte <= b' ' || byte == 0x7f || (byte == 0xa0 && !is_text);
    let start = if is_relative(path) { &b"/"[..] } else { b"" };
    let kept = path.iter().copied().filter(|byte| !is_blank(*byte));
    let mended: Vec<u8> = start.iter().copied().chain(kept).collect();
    (mended != path).then_some(mended)
}

/// Returns all combinations of interpretations that differ for some path.
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
