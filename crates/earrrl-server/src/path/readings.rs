//! The readings of a path: servers behind proxies understand one spelling in different ways.
//!
//! Express serves `/V1/LOGIN` and `/login/`, gunicorn takes `%2F` for a slash, IIS takes a backslash,
//! Tomcat drops `;x`, and some resolve `..` before they decode, some afterwards, some never. A request
//! counts under a rule if any of these readings matches.

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
    let odd = |byte: &u8| matches!(byte, b'%' | b'\\' | b';');
    let dotted = |pair: &[u8]| pair[0] == b'/' && matches!(pair[1], b'/' | b'.');
    path.iter().any(odd) || path.windows(2).any(dotted)
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
