//! Addresses of clients: parsing, truncation to the prefix that counts as one client, and
//! formatting as keys.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};

/// The number of leading bits by which addresses of clients are distinguished.
///
/// ```
/// use earrrl_tower::Prefixes;
/// let key = |text: &str| Prefixes::default().key(text.parse().unwrap());
/// assert_eq!(key("192.0.2.7"), "192.0.2.7");
/// assert_eq!(key("2001:db8:0:1:2:3:4:5"), "2001:db8:0:1::/64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Default for Prefixes {
    /// Returns whole IPv4 addresses and /64 prefixes of IPv6, since a customer usually has at least
    /// a /64.
    fn default() -> Self {
        Self::new(32, 64)
    }
}

impl Prefixes {
    /// Returns prefixes of `ipv4` bits, at most 32, and of `ipv6` bits, at most 128.
    ///
    /// ```
    /// use earrrl_tower::Prefixes;
    /// let subscribers = Prefixes::new(32, 56);
    /// assert_eq!(subscribers.key("2001:db8:0:123::7".parse()?), "2001:db8:0:100::/56");
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub const fn new(ipv4: u8, ipv6: u8) -> Self {
        Self {
            ipv4: if ipv4 > 32 { 32 } else { ipv4 },
            ipv6: if ipv6 > 128 { 128 } else { ipv6 },
        }
    }

    /// Returns true if every IPv4 address is a client of its own.
    pub const fn keeps_ipv4(self) -> bool {
        self.ipv4 == 32
    }

    const fn length(self, is_ipv4: bool) -> u8 {
        if is_ipv4 { self.ipv4 } else { self.ipv6 }
    }

    /// Returns these lengths with others for IPv4 and IPv6, where there are any.
    pub(crate) fn with(self, ipv4: Option<u8>, ipv6: Option<u8>) -> Self {
        Self::new(ipv4.unwrap_or(self.ipv4), ipv6.unwrap_or(self.ipv6))
    }

    /// Returns an address's network as a key: `192.0.2.7`, `192.0.2.0/24`, `2001:db8:0:1::/64`.
    ///
    /// ```
    /// use earrrl_tower::Prefixes;
    /// assert_eq!(Prefixes::new(24, 64).key("192.0.2.7".parse()?), "192.0.2.0/24");
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn key(self, address: IpAddr) -> String {
        let mut text = Vec::with_capacity(24);
        // Writing to memory never fails.
        let _ = self.write(address, &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// Writes the key that [`Prefixes::key`] returns.
    ///
    /// # Errors
    /// Returns the errors of `out`. Writing to memory never fails.
    pub fn write(self, address: IpAddr, out: &mut impl Write) -> io::Result<()> {
        match self.network(address) {
            IpAddr::V4(network) => {
                let (text, len) = ipv4_text(network);
                out.write_all(&text[..len])?;
                write_length(self.ipv4, 32, out)
            }
            IpAddr::V6(network) => {
                let bits = u128::from(network);
                if bits << 64 == 0 && bits != 0 {
                    write_upper_half((bits >> 64) as u64, out)?;
                } else {
                    write!(out, "{network}")?;
                }
                write_length(self.ipv6, 128, out)
            }
        }
    }

    /// Returns the first address of the network that counts as one client.
    ///
    /// ```
    /// use earrrl_tower::Prefixes;
    /// let network = Prefixes::new(24, 48).network("192.0.2.7".parse()?);
    /// assert_eq!(network.to_string(), "192.0.2.0");
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn network(self, address: IpAddr) -> IpAddr {
        let address = canonical(address);
        let length = self.length(address.is_ipv4());
        IpNet::new(address, length).map_or(address, |network| network.network())
    }

    /// Returns the network, or the larger network that counts as one client if the network is a
    /// part of it.
    ///
    /// ```
    /// use earrrl_tower::Prefixes;
    /// let widened = Prefixes::default().widen("2001:db8::1/128".parse()?);
    /// assert_eq!(widened.to_string(), "2001:db8::/64");
    /// # Ok::<(), ipnet::AddrParseError>(())
    /// ```
    pub fn widen(self, network: IpNet) -> IpNet {
        let longest = self.length(network.addr().is_ipv4());
        match network.prefix_len() > longest {
            true => IpNet::new(network.network(), longest).map_or(network, |net| net.trunc()),
            false => network,
        }
    }

    /// Returns the key of an address that is given as text, such as in a log. Any other text, such
    /// as a host name, is used as the key itself.
    ///
    /// ```
    /// use earrrl_tower::Prefixes;
    /// let mut buffer = Vec::new();
    /// let key = Prefixes::default().key_of_text(b"crawler.example", &mut buffer);
    /// assert_eq!(key, b"crawler.example");
    /// ```
    #[inline]
    pub fn key_of_text<'a>(self, text: &'a [u8], buffer: &'a mut Vec<u8>) -> &'a [u8] {
        // A whole IPv4 address is its own key, so it need not be parsed.
        if self.keeps_ipv4() && !text.contains(&b':') {
            return text;
        }
        self.key_of_address(text, buffer).unwrap_or(text)
    }

    /// Returns the key of an address that is given as text; `None` for any other text.
    ///
    /// ```
    /// use earrrl_tower::Prefixes;
    /// let mut buffer = Vec::new();
    /// let key = Prefixes::default().key_of_address(b"[2001:db8::7]:443", &mut buffer);
    /// assert_eq!(key, Some(&b"2001:db8::/64"[..]));
    /// ```
    pub fn key_of_address<'a>(self, text: &[u8], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let address = str::from_utf8(text).ok().and_then(parse)?;
        buffer.clear();
        // Writing to memory never fails.
        let _ = self.write(address, buffer);
        Some(buffer)
    }
}

fn write_length(length: u8, whole: u8, out: &mut impl Write) -> io::Result<()> {
    if length == whole {
        Ok(())
    } else {
        write!(out, "/{length}")
    }
}

/// Returns the text of an address, as its [`Display`](std::fmt::Display) does, several times as fast for IPv4.
///
/// ```
/// use earrrl_tower::address::text;
/// assert_eq!(text("192.0.2.70".parse()?), "192.0.2.70");
/// assert_eq!(text("2001:db8::1".parse()?), "2001:db8::1");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn text(address: IpAddr) -> String {
    let IpAddr::V4(v4) = address else {
        return address.to_string();
    };
    let (text, len) = ipv4_text(v4);
    String::from_utf8_lossy(&text[..len]).into_owned()
}

/// Returns the text of an IPv4 address, and its length. Every request needs this text, so it is
/// written without branches, which is several times as fast as the standard library's formatting.
pub(crate) fn ipv4_text(address: Ipv4Addr) -> ([u8; 16], usize) {
    let mut text = [0; 16];
    let mut end = 0;
    for octet in address.octets() {
        text[end..end + 4].copy_from_slice(&DOTTED[usize::from(octet)]);
        end += 2 + usize::from(octet > 9) + usize::from(octet > 99);
    }
    (text, end - 1)
}

/// The decimal text of every octet, with a dot.
static DOTTED: [[u8; 4]; 256] = {
    let mut all = [[0; 4]; 256];
    let mut octet = 0;
    while octet < 256 {
        let hundreds = digit(octet / 100);
        let tens = digit(octet / 10);
        let ones = digit(octet);
        all[octet] = match octet {
            0..10 => [ones, b'.', 0, 0],
            10..100 => [tens, ones, b'.', 0],
            _ => [hundreds, tens, ones, b'.'],
        };
        octet += 1;
    }
    all
};

const fn digit(number: usize) -> u8 {
    b'0' + (number % 10) as u8
}

/// Writes an IPv6 address whose lower half is zero. Its `::` stands for those zeros, since they are
/// the longest run.
fn write_upper_half(network: u64, out: &mut impl Write) -> io::Result<()> {
    let mut text = [0; 21];
    let mut end = 0;
    let groups = 4 - network.trailing_zeros().min(64) / 16;
    for place in 0..groups {
        let group = (network >> (48 - 16 * place)) as u16;
        if place > 0 {
            text[end] = b':';
            end += 1;
        }
        for digit in (0..4 - (group | 1).leading_zeros() / 4).rev() {
            text[end] = b"0123456789abcdef"[usize::from(group >> (4 * digit) & 15)];
            end += 1;
        }
    }
    text[end..end + 2].copy_from_slice(b"::");
    out.write_all(&text[..end + 2])
}

/// Parses an address with or without a port; an IPv6 address with a port needs brackets. An IPv4
/// address in IPv6 notation becomes IPv4.
///
/// ```
/// use earrrl_tower::address::parse;
/// assert_eq!(parse(" [::ffff:192.0.2.7]:80 "), "192.0.2.7".parse().ok());
/// assert_eq!(parse("example.org"), None);
/// ```
pub fn parse(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let address = match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    };
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))?;
    Some(canonical(address))
}

/// The prefixes of IPv6 addresses in which an IPv4 address follows, each with its length: addresses that are
/// written as IPv6 (`::ffff:0:0/96`), that a translator of an IPv6-only network assigns (NAT64, RFC 6052), and
/// that a router with IPv4 alone derives (6to4, RFC 3056).
const EMBEDDING: [(u128, u8); 3] = [
    (0xffff << 32, 96),
    (0x64_ff9b << 96, 96),
    (0x2002 << 112, 16),
];

/// Returns the IPv4 address in an IPv6 address, and the number of bits before it.
fn embedded(address: Ipv6Addr) -> Option<(Ipv4Addr, u8)> {
    let bits = u128::from(address);
    let (_, length) = EMBEDDING
        .into_iter()
        .find(|(prefix, length)| (bits ^ prefix) >> (128 - length) == 0)?;
    Some((Ipv4Addr::from((bits >> (96 - length)) as u32), length))
}

/// Returns the IPv4 address that an IPv6 address stands for, or the address itself. Without this, all IPv4 clients
/// of an IPv6-only data centre would be in one /64, and so one client. A private IPv4 address behind NAT64 or
/// 6to4 is none of this network, and stays IPv6: it must not count as one that is trusted.
///
/// ```
/// use earrrl_tower::address::canonical;
/// for address in ["::ffff:192.0.2.7", "64:ff9b::192.0.2.7", "2002:c000:207::1"] {
///     assert_eq!(canonical(address.parse()?).to_string(), "192.0.2.7");
/// }
/// assert_eq!(canonical("2002:a00:1::1".parse()?).to_string(), "2002:a00:1::1");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    match embedded(v6) {
        Some((v4, _)) if v6.to_ipv4_mapped().is_some() || !is_internal(v4.into()) => v4.into(),
        _ => address,
    }
}

/// Returns the network of [`canonical`] addresses that a network stands for.
///
/// ```
/// use earrrl_tower::address::canonical_network;
/// assert_eq!(canonical_network("64:ff9b::192.0.2.0/120".parse()?).to_string(), "192.0.2.0/24");
/// # Ok::<(), ipnet::AddrParseError>(())
/// ```
pub fn canonical_network(network: IpNet) -> IpNet {
    let first = network.network();
    let IpNet::V6(wide) = network else {
        return network;
    };
    let IpAddr::V4(v4) = canonical(first) else {
        return network;
    };
    let before = embedded(wide.network()).map_or(0, |(_, length)| length);
    match network.prefix_len().checked_sub(before) {
        Some(length) => Ipv4Net::new(v4, length.min(32)).map_or(network, IpNet::V4),
        None => network,
    }
}

/// Returns true for the addresses of this machine and of private networks, which are no clients on the Internet.
pub(crate) fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let carrier_grade = v4.octets()[0] == 100 && v4.octets()[1] & 0xC0 == 64;
            v4.is_loopback() || v4.is_private() || v4.is_link_local() || carrier_grade
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_cut_to_their_prefix() {
        for (ipv4, ipv6, address, key) in [
            (32, 64, "192.0.2.7", "192.0.2.7"),
            (32, 64, "255.0.20.107:8080", "255.0.20.107"),
            (24, 64, "192.0.2.7", "192.0.2.0/24"),
            (0, 0, "192.0.2.7", "0.0.0.0/0"),
            (99, 255, "192.0.2.7", "192.0.2.7"),
            (32, 64, "2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
            (32, 128, "2001:DB8::0:1", "2001:db8::1"),
            (32, 0, "2001:db8::1", "::/0"),
            (32, 48, "[2001:db8:7:1::2]:443", "2001:db8:7::/48"),
            (32, 64, "[2001:db8::2]", "2001:db8::/64"),
            (32, 64, "0:0:0:1::2", "0:0:0:1::/64"),
            (32, 64, "::1", "::/64"),
            (32, 65, "2001:db8::8000:0:0:1", "2001:db8:0:0:8000::/65"),
            (32, 64, "::ffff:192.0.2.7", "192.0.2.7"),
            (32, 64, "64:ff9b::192.0.2.7", "192.0.2.7"),
            (24, 64, "[64:ff9b::c000:207]:443", "192.0.2.0/24"),
            (32, 64, "2002:c000:207:1::9", "192.0.2.7"),
            (32, 64, "64:ff9b::10.0.0.1", "64:ff9b::/64"),
            (32, 64, "2002:7f00:1::1", "2002:7f00:1::/64"),
            (32, 64, "64:ff9b:1::192.0.2.7", "64:ff9b:1::/64"),
            (32, 64, "2003:c000:207::1", "2003:c000:207::/64"),
        ] {
            assert_eq!(
                Prefixes::new(ipv4, ipv6).key(parse(address).unwrap()),
                key,
                "{address}"
            );
        }
    }

    #[test]
    fn networks_are_written_as_the_standard_library_does() {
        let mut network = 1u64;
        for _ in 0..10_000 {
            network = network
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // The masks make short groups, and groups of zero, frequent.
            let masked = network & (network << 13) & u64::MAX << (network % 64);
            let address = Ipv6Addr::from(u128::from(masked) << 64);
            // 6to4 addresses stand for IPv4 addresses.
            if address.segments()[0] == 0x2002 {
                continue;
            }
            assert_eq!(
                Prefixes::default().key(address.into()),
                format!("{address}/64")
            );
        }
    }

    #[test]
    fn networks_of_embedded_addresses_are_those_of_ipv4() {
        for (network, meant) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("64:ff9b::192.0.2.7/128", "192.0.2.7/32"),
            ("64:ff9b::/96", "0.0.0.0/0"),
            ("2002:c000:200::/40", "192.0.2.0/24"),
            ("2002:c000:207:1::/64", "192.0.2.7/32"),
            ("2002:a00::/24", "2002:a00::/24"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("64:ff9b::/64", "64:ff9b::/64"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            let found = canonical_network(network.parse().unwrap());
            assert_eq!(found.to_string(), meant, "{network}");
        }
    }

    #[test]
    fn no_network_is_smaller_than_a_client() {
        for (network, meant) in [
            ("2001:db8::1:2:3:4/128", "2001:db8::/64"),
            ("2001:db8::/72", "2001:db8::/64"),
            ("2001:db8::/64", "2001:db8::/64"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("192.0.2.7/32", "192.0.2.7/32"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            let widened = Prefixes::default().widen(network.parse().unwrap());
            assert_eq!(widened.to_string(), meant, "{network}");
        }
        let wide = Prefixes::new(24, 0);
        assert_eq!(
            wide.widen("192.0.2.7/32".parse().unwrap()).to_string(),
            "192.0.2.0/24"
        );
        assert_eq!(wide.widen("::1/128".parse().unwrap()).to_string(), "::/0");
    }

    #[test]
    fn text_that_is_no_address_is_its_own_key() {
        for (ipv4, text, key) in [
            (32, "192.0.2.7", "192.0.2.7"),
            (32, "192.0.2.7:8080", "192.0.2.7"),
            (24, "192.0.2.7", "192.0.2.0/24"),
            (32, "2001:db8:8000:1::1", "2001:db8:8000:1::/64"),
            (24, "host.example.org", "host.example.org"),
            (24, "host:with:colons", "host:with:colons"),
            (24, "", ""),
        ] {
            let mut buffer = Vec::new();
            let found = Prefixes::new(ipv4, 64).key_of_text(text.as_bytes(), &mut buffer);
            assert_eq!(str::from_utf8(found), Ok(key), "{text}");
        }
    }

    #[test]
    fn internal_addresses_are_known() {
        let internal = [
            "127.0.0.9",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.0.1",
            "169.254.0.1",
            "100.127.0.1",
            "::1",
        ];
        let external = [
            "192.0.2.7",
            "172.32.0.1",
            "100.128.0.1",
            "100.63.0.1",
            "2001:db8::1",
            "fec0::1",
        ];
        let is_internal = |text: &&str| is_internal(text.parse().unwrap());
        assert!(
            internal
                .iter()
                .chain(&["fd00::1", "fe80::1"])
                .all(is_internal)
        );
        assert!(!external.iter().any(is_internal));
    }

    #[test]
    fn what_is_no_address_is_none() {
        for text in [
            "",
            "1.2.3",
            "1.2.3.4.5",
            "[192.0.2.7]",
            "[::1",
            "::1]",
            "1.2.3.4:99999",
            "a",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
