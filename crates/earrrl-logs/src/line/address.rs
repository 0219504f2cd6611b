//! Checks whether clients in a log are addresses or host names.

use std::net::{IpAddr, SocketAddr};

/// Returns true if the text is an address, with or without a port, or a host name.
#[inline]
pub fn is_client(text: &[u8]) -> bool {
    // Almost every client is an IPv4 address, which is checked first because it is cheap.
    let plain = text.iter().all(|b| b.is_ascii_digit() || *b == b'.');
    if plain && text.len() <= 15 && text.iter().filter(|&&b| b == b'.').count() == 3 {
        return true;
    }
    is_host_or_address(text)
}

#[cold]
fn is_host_or_address(text: &[u8]) -> bool {
    if is_address(text) {
        return true;
    }
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let is_label = |label: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        !label.is_empty() && label.len() <= 63 && label.bytes().all(inner)
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    // A number is not a host name: it would be a time, a size or a process.
    let has_letter = text.bytes().any(|b| b.is_ascii_alphabetic());
    text.len() <= 253 && has_letter && name.split('.').all(is_label)
}

/// Returns the last address in a list with commas.
///
/// Each proxy appends its peer's address, so the client can forge all addresses before the last.
#[inline]
pub fn last_of_list(text: &[u8]) -> &[u8] {
    match memchr::memrchr(b',', text) {
        None => text,
        Some(at) => {
            let last = text[at + 1..].trim_ascii();
            if is_address(last) { last } else { text }
        }
    }
}

/// Returns true if the text is an IP address, with or without a port.
pub fn is_address(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).unwrap_or("");
    text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok()
}

/// Returns true if the text is an address, or a prefix of addresses, that no client on the
/// Internet has: private, loopback or link-local.
pub fn is_private(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).unwrap_or("");
    match text.split('/').next().unwrap_or("").parse() {
        Ok(IpAddr::V4(v4)) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
        Ok(IpAddr::V6(v6)) => {
            v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local()
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts() {
        for text in [
            "192.0.2.7",
            "192.0.2.7:4711",
            "2001:db8::1",
            "[2001:db8::1]:4711",
            "::ffff:192.0.2.7",
            "host.example.org",
            "host.example.org.",
            "piweba3y",
            "a_b.example",
        ] {
            assert!(is_client(text.as_bytes()), "{text}");
        }
        for text in [
            "",
            "-",
            "unix:",
            "2016-10-06T00:17:09Z",
            "{\"log\":\"192",
            "203.0.113.5,",
            "a..b",
            "1234",
            "20/May/2015",
            "<34>1",
            "caf\u{e9}",
        ] {
            assert!(!is_client(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn the_last_address_counts() {
        for (list, last) in [
            ("192.0.2.7", "192.0.2.7"),
            ("9.9.9.9, 192.0.2.7", "192.0.2.7"),
            ("9.9.9.9,2001:db8::1 ", "2001:db8::1"),
            ("no,addresses", "no,addresses"),
            ("9.9.9.9,", "9.9.9.9,"),
        ] {
            assert_eq!(last_of_list(list.as_bytes()), last.as_bytes());
        }
    }
}
