//! The different ways in which servers behind proxies may read the same path.
//!
//! Express serves `/V1/LOGIN` and `/login/`, gunicorn reads `%2F` as a slash, IIS reads a
//! backslash as a slash, and Tomcat drops `;x`. Some servers resolve `..` before they decode the
//! path, some afterwards, and some never. A request counts under a rule if any of these readings
//! matches.

use std::borrow::Cow;

/// The length of the longest path, in bytes, whose readings are all listed. A longer path with
/// unusual spelling counts under every rule that has a condition on the path; the paths of real
/// applications are shorter.
pub(super) const MAX_LEN: usize = 8 * 1024;

/// One way in which a server may interpret the separators and parameters of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathReading {
    /// True if `%2F` separates segments.
    pub(super) slash: bool,
    /// True if `\` and `%5C` separate segments.
    pub(super) backslash: bool,
    /// True if `;x` is not part of the segment that it follows.
    pub(super) drops_parameters: bool,
    pub(super) dots: Dots,
}

/// The ways to treat the segments `.` and `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dots {
    /// The segments are kept as ordinary names.
    Kept,
    /// The segments are resolved before anything is decoded.
    Undecoded,
    /// The segments are resolved after doubled slashes are merged.
    Merged,
    /// The segments are resolved without merging slashes, so that `..` may remove an empty
    /// segment.
    Unmerged,
}

/// Returns true if servers may read the path, or the target that it is from, in different ways.
pub(super) fn is_ambiguous(target: &[u8], path: &[u8]) -> bool {
    let odd = |byte: &u8| matches!(byte, b'%' | b'\\' | b';' | ..=b' ' | 0x7f | 0xa0);
    let dotted = |pair: &[u8]| pair[0] == b'/' && matches!(pair[1], b'/' | b'.');
    path.iter().any(odd)
        || path.windows(2).any(dotted)
        || is_relative(target)
        || script_end(path).is_some()
}

/// Returns the path itself, and the paths that servers may read instead of it or of the target that it
/// is from. The target has no query.
pub(super) fn variants<'t>(target: &'t [u8], path: &'t [u8]) -> Vec<Cow<'t, [u8]>> {
    let mut variants = vec![Cow::Borrowed(path)];
    variants.extend(mended(path).map(Cow::Owned));
    variants.extend(before_line_end(path).map(Cow::Borrowed));
    variants.extend(url_paths(target).into_iter().map(Cow::Owned));
    if let Some((script, rest)) = script_end(path).map(|end| path.split_at(end)) {
        variants.extend([Cow::Borrowed(script), Cow::Borrowed(rest)]);
    }
    variants
}

/// Returns the path without a percent-encoded line feed at its end, if it has one. In many regular
/// expressions `$` matches before a final line feed, so that `location ~ ^/login$` of nginx also
/// matches `/login%0A`.
fn before_line_end(path: &[u8]) -> Option<&[u8]> {
    let (rest, end) = path.split_last_chunk::<3>()?;
    end.eq_ignore_ascii_case(b"%0a").then_some(rest)
}

/// Returns the paths that JavaScript's `new URL(target, base)` may read in a target with a scheme or
/// with several slashes at its start (WHATWG URL, section 4.4). Backslashes are slashes, tabs and line
/// ends are dropped, and however many slashes there are, an authority follows them: `///host/login` is
/// `/login`.
fn url_paths(target: &[u8]) -> Vec<Vec<u8>> {
    let kept = target
        .iter()
        .copied()
        .filter(|byte| !b"\t\n\r".contains(byte));
    let url: Vec<u8> = kept
        .map(|byte| if byte == b'\\' { b'/' } else { byte })
        .collect();
    let url = url.trim_ascii();
    let scheme = scheme_end(url);
    let rest = &url[scheme.unwrap_or(0)..];
    let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
    let mut paths = Vec::new();
    if slashes < 2 {
        let start = if slashes == 0 { &b"/"[..] } else { b"" };
        paths.push([start, rest].concat());
    }
    if scheme.is_some() || slashes >= 2 {
        // The authority of an unknown scheme may be empty.
        for authority in [&rest[slashes.min(2)..], &rest[slashes..]] {
            let end = authority.iter().position(|byte| *byte == b'/');
            paths.extend(end.map(|end| authority[end..].to_vec()));
        }
    }
    paths.retain(|path| path != target);
    paths
}

/// Returns the index behind the colon of the scheme with which a URL begins.
fn scheme_end(url: &[u8]) -> Option<usize> {
    let colon = url.iter().position(|byte| *byte == b':')?;
    let is_of_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let is_scheme = url[0].is_ascii_alphabetic() && url[..colon].iter().all(is_of_scheme);
    is_scheme.then_some(colon + 1)
}

/// Returns the index at which a script's name ends, if the path continues after it. PHP runs
/// `/login.php` for `/login.php/any`, and most applications with an `/index.php` serve
/// `/index.php/login` as `/login`.
fn script_end(path: &[u8]) -> Option<usize> {
    let mut slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let end = slashes.find(|(at, _)| {
        path[..*at]
            .last_chunk::<4>()
            .is_some_and(|end| end.eq_ignore_ascii_case(b".php"))
    });
    end.map(|(at, _)| at)
}

/// Returns true if the path does not begin with a slash.
fn is_relative(path: &[u8]) -> bool {
    !path.is_empty() && path[0] != b'/'
}

/// Returns the path without blanks and control characters, and with a slash at its start; `None`
/// if this changes nothing. Tomcat ends a path at a tab, earlier versions of gunicorn drop line
/// ends and tabs, and JavaScript's `url.parse` drops blanks at the end, including the byte 0xA0,
/// which is a blank in Latin-1.
fn mended(path: &[u8]) -> Option<Vec<u8>> {
    let is_text = str::from_utf8(path).is_ok();
    let is_blank = |byte: u8| byte <= b' ' || byte == 0x7f || (byte == 0xa0 && !is_text);
    let start = if is_relative(path) { &b"/"[..] } else { b"" };
    let kept = path.iter().copied().filter(|byte| !is_blank(*byte));
    let mended: Vec<u8> = start.iter().copied().chain(kept).collect();
    (mended != path).then_some(mended)
}

/// Returns all combinations of the ways to read a path.
pub(super) fn all() -> impl Iterator<Item = PathReading> {
    let booleans = [false, true];
    let dots = [Dots::Kept, Dots::Undecoded, Dots::Merged, Dots::Unmerged];
    dots.into_iter().flat_map(move |dots| {
        (0..8).map(move |bits: usize| PathReading {
            slash: booleans[bits & 1],
            backslash: booleans[bits >> 1 & 1],
            drops_parameters: booleans[bits >> 2],
            dots,
        })
    })
}
