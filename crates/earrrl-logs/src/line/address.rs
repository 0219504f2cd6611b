//! Checks whether clients in a log are addresses or host names, and whose addresses these are.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use ipnet::IpNet;

/// Returns true if the text is an address, with or without a port, or a host name.
///
/// ```
/// # use earrrl_logs::line::is_client;
/// assert!(is_client(b"192.0.2.7:4711") && is_client(b"mail.example.org"));
/// assert!(!is_client(b"GET /"));
/// ```
#[inline]
pub fn is_client(text: &[u8]) -> bool {
    is_dotted(text) || is_host_or_address(text)
}

/// Returns true if the text has the form of an IPv4 address: 7 to 15 bytes, all of them digits except
/// three dots. Nearly every client of a log has this form, so all bytes are compared at once.
#[inline]
pub(crate) fn is_dotted(text: &[u8]) -> bool {
    if !(7..=15).contains(&text.len()) {
        return false;
    }
    let mut bytes = [0; 16];
    bytes[..text.len()].copy_from_slice(text);
    let bytes = u128::from_le_bytes(bytes);
    let not_dot = above(bytes ^ splat(b'.'), 0);
    let not_digit = above(bytes ^ splat(b'0'), 9);
    let mut dots = !not_dot & HIGH;
    // Each step removes one dot; then exactly one must be left.
    dots &= dots.wrapping_sub(1);
    dots &= dots.wrapping_sub(1);
    let three_dots = dots != 0 && dots & (dots - 1) == 0;
    three_dots && not_dot & not_digit & HIGH == HIGH << (8 * text.len())
}

/// The highest bit of each byte.
const HIGH: u128 = splat(0x80);

const fn splat(byte: u8) -> u128 {
    u128::from_ne_bytes([byte; 16])
}

/// Sets the highest bit of each byte that is above `bound`, and clears that of the others.
#[inline]
const fn above(bytes: u128, bound: u8) -> u128 {
    ((bytes & !HIGH) + splat(0x7f - bound)) | bytes
}

#[cold]
fn is_host_or_address(text: &[u8]) -> bool {
    if is_address(text) {
        return true;
    }
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
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
///
/// ```
/// # use earrrl_logs::line::last_of_list;
/// assert_eq!(last_of_list(b"6.6.6.6, 203.0.113.9"), b"203.0.113.9");
/// ```
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
pub(crate) fn is_address(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).unwrap_or("");
    text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok()
}

/// The networks of addresses that no client on the Internet has: private, shared by the customers of
/// a provider, loopback, link-local, multicast and reserved.
static PRIVATE: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    parsed(&[
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.168.0.0/16 224.0.0.0/3",
        "::/127 fc00::/7 fe80::/10 ff00::/8",
    ])
});

/// The networks of the servers by which Cloudflare and Fastly pass on requests, as both publish them.
static EDGES: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    parsed(&[
        "103.21.244.0/22 103.22.200.0/22 103.31.4.0/22 104.16.0.0/13 104.24.0.0/14 108.162.192.0/18",
        "131.0.72.0/22 141.101.64.0/18 162.158.0.0/15 172.64.0.0/13 173.245.48.0/20 188.114.96.0/20",
        "190.93.240.0/20 197.234.240.0/22 198.41.128.0/17 2400:cb00::/32 2405:8100::/32 2405:b500::/32",
        "2606:4700::/32 2803:f800::/32 2a06:98c0::/29 2c0f:f248::/32",
        "23.235.32.0/20 43.249.72.0/22 103.244.50.0/24 103.245.222.0/23 103.245.224.0/24 104.156.80.0/20",
        "140.248.64.0/18 140.248.128.0/17 146.75.0.0/17 151.101.0.0/16 157.52.64.0/18 167.82.0.0/17",
        "172.111.64.0/18 185.31.16.0/22 199.27.72.0/21 199.232.0.0/16 2a04:4e40::/32 2a04:4e42::/32",
    ])
});

fn parsed(lines: &[&str]) -> Vec<IpNet> {
    let words = lines.iter().flat_map(|line| line.split_ascii_whitespace());
    words.filter_map(network).collect()
}

/// Returns the network that a key stands for, or the network of a single address; `None` if the key
/// is neither. An IPv4 address in IPv6 form counts as IPv4.
///
/// ```
/// # use earrrl_logs::line::network;
/// assert_eq!(network("192.0.2.7"), network("::ffff:192.0.2.7"));
/// assert_eq!(network("192.0.2.0/33"), None);
/// ```
pub fn network(key: &str) -> Option<IpNet> {
    let address = key
        .parse::<IpAddr>()
        .map(|address| address.to_canonical().into());
    address.ok().or_else(|| key.parse().ok())
}

/// Returns true if some address is in the network and in one of the others.
pub(crate) fn overlaps(network: &IpNet, others: &[IpNet]) -> bool {
    // They do if they agree in the bits of the shorter prefix.
    let meets = |other: &IpNet| {
        let bits = network.prefix_len().min(other.prefix_len());
        let agreeing = match (network.addr(), other.addr()) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                (one.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => {
                (one.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        agreeing >= u32::from(bits)
    };
    others.iter().any(meets)
}

/// Returns true if the text is an address, or a network with an address, that no client on the
/// Internet has.
///
/// ```
/// # use earrrl_logs::line::is_private;
/// assert!(is_private(b"10.0.0.1") && is_private(b"127.0.0.1"));
/// assert!(!is_private(b"203.0.113.9"));
/// ```
pub fn is_private(text: &[u8]) -> bool {
    is_in(text, &PRIVATE)
}

/// Returns true if the text is an address, or a network with an address, by which a well-known
/// content delivery network passes on the requests of others.
///
/// ```
/// # use earrrl_logs::line::is_edge;
/// assert!(is_edge(b"162.158.1.1") && !is_edge(b"203.0.113.9"));
/// ```
pub fn is_edge(text: &[u8]) -> bool {
    is_in(text, &EDGES)
}

fn is_in(text: &[u8], networks: &[IpNet]) -> bool {
    let text = std::str::from_utf8(text).unwrap_or("");
    network(text).is_some_and(|network| overlaps(&network, networks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_three_dots_have_the_form_of_an_address() {
        for text in [
            "1.2.3.4",
            "10.1.2.3",
            "192.0.2.70",
            "203.0.113.199",
            "999.1.1.1",
            "1..2..3",
        ] {
            let is_dotted = is_dotted(text.as_bytes());
            assert_eq!(is_dotted, text.matches('.').count() == 3, "{text}");
        }
        for text in [
            "",
            "1.2.3",
            "1.2.3.",
            "1.2.3.4.5",
            "12345678",
            "1.2.3.4\0",
            "1.2.3.a",
            "1.2.3:4",
            "1.2.3.4,5.6.7.8",
            "1.2.3.\u{b0}",
        ] {
            assert!(!is_dotted(text.as_bytes()), "{text}");
        }
    }

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
    fn every_network_of_the_lists_is_read() {
        assert_eq!((PRIVATE.len(), EDGES.len()), (12, 40));
        for (text, private, edge) in [
            ("100.64.0.1", true, false),
            ("fe80::1", true, false),
            ("::1", true, false),
            ("0.0.0.0/0", true, true),
            ("172.64.0.0/24", false, true),
            ("2606:4700:10::/64", false, true),
            ("2001:db8::/64", false, false),
            ("ann", false, false),
        ] {
            assert_eq!(is_private(text.as_bytes()), private, "{text}");
            assert_eq!(is_edge(text.as_bytes()), edge, "{text}");
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
