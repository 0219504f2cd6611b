//! The header `Forwarded` (RFC 7239), read from the right: each proxy appends an element, so the last
//! one comes from the nearest proxy, whatever a client put before it.

use std::net::IpAddr;

use crate::address;

/// Returns the `for` address of each element of a field, the last element first; `None` for an element
/// without an address. Empty elements are skipped, as in every list of HTTP.
pub(crate) fn addresses(field: &str) -> impl Iterator<Item = Option<IpAddr>> + '_ {
    split_right(field, b',')
        .filter(|element| !element.trim().is_empty())
        .map(for_address)
}

/// Returns the address of one element, such as `for="[2001:db8::1]:4711";proto=https`.
fn for_address(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in split_right(element, b';') {
        let Some((name, value)) = pair.split_once('=') else {
            continue;
        };
        if name.trim().eq_ignore_ascii_case("for") {
            if found.is_some() {
                return None;
            }
            found = Some(value.trim());
        }
    }
    let value = found?;
    let quoted = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match quoted {
        // No address has a backslash, so all of them are escapes.
        Some(quoted) if quoted.contains('\\') => node_address(&quoted.replace('\\', "")),
        _ => node_address(quoted.unwrap_or(value)),
    }
}

/// Returns the address of a node, whose port may be obfuscated, as in `192.0.2.7:_a1`.
fn node_address(node: &str) -> Option<IpAddr> {
    address::parse(node.split_once(":_").map_or(node, |(address, _)| address))
}

/// Splits text at separators outside quotes, the last piece first. Quotes are paired from the right,
/// so that a quote that a client left open cannot hide an element that a proxy appended. An escaped
/// quote is part of its text.
fn split_right(text: &str, separator: u8) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut quoted = false;
        let at = text.bytes().enumerate().rev().find_map(|(at, byte)| {
            quoted ^= byte == b'"' && !is_escaped(&text[..at]);
            (byte == separator && !quoted).then_some(at)
        });
        rest = at.map(|at| &text[..at]);
        Some(at.map_or(text, |at| &text[at + 1..]))
    })
}

/// Returns true if the character that follows `before` is escaped by a backslash.
fn is_escaped(before: &str) -> bool {
    before
        .bytes()
        .rev()
        .take_while(|byte| *byte == b'\\')
        .count()
        % 2
        == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_from_the_right() {
        let ip = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        for (field, expected) in [
            (
                "for=192.0.2.60;proto=http;by=203.0.113.43",
                vec![ip("192.0.2.60")],
            ),
            (
                "For=\"[2001:db8:cafe::17]:4711\"",
                vec![ip("2001:db8:cafe::17")],
            ),
            (
                "for=192.0.2.43, for=198.51.100.17",
                vec![ip("198.51.100.17"), ip("192.0.2.43")],
            ),
            ("for=unknown, for=\"_hidden\"", vec![None, None]),
            (
                "proto=https; for = 192.0.2.1:80 ;by=x",
                vec![ip("192.0.2.1")],
            ),
            ("for=1.1.1.1;for=2.2.2.2", vec![None]),
            ("", vec![]),
            (
                "for=192.0.2.1, ,, for=192.0.2.2,",
                vec![ip("192.0.2.2"), ip("192.0.2.1")],
            ),
            ("for=\"[2001:db8::1]\"", vec![ip("2001:db8::1")]),
            ("for=\"[2001:db8::1]:_port\"", vec![ip("2001:db8::1")]),
            ("for=\"192.0.2.1:_a.b-c\"", vec![ip("192.0.2.1")]),
            ("for=\"192.0.2\\.1:80\"", vec![ip("192.0.2.1")]),
            ("for=_SEVKISEK, for=\"unknown:80\"", vec![None, None]),
            (
                "for=192.0.2.1;ext=\"a\\\", for=6.6.6.6\"",
                vec![ip("192.0.2.1")],
            ),
            (
                "for=6.6.6.6\\, for=\"192.0.2.1\"",
                vec![ip("192.0.2.1"), None],
            ),
            (
                "for=192.0.2.1;host=\"a\\\\\", for=192.0.2.2",
                vec![ip("192.0.2.2"), ip("192.0.2.1")],
            ),
            // A client left a quote open.
            ("for=\"6.6.6.6, for=192.0.2.1", vec![ip("192.0.2.1"), None]),
            ("for=\"a,b\";x, for=192.0.2.1", vec![ip("192.0.2.1"), None]),
        ] {
            assert_eq!(addresses(field).collect::<Vec<_>>(), expected, "{field}");
        }
    }
}
