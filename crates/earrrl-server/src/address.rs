//! Clients' addresses: which one a request comes from, and the prefix of it that counts as one client.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

/// How many leading bits of an address make a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefixes {
    /// Of an IPv4 address, at most 32.
    pub ipv4: u8,
    /// Of an IPv6 address, at most 128.
    pub ipv6: u8,
}

/// How a client's address is found from the peer's and from what proxies add.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientAddress {
    /// Proxies that are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Or how many proxies there are, whatever their addresses.
    pub hops: usize,
    /// The part of an address that makes a client.
    pub prefixes: Prefixes,
}

impl ClientAddress {
    /// The client's address, given the peer's and the `X-Forwarded-For` header, to which each proxy
    /// appends its own peer. Only what trusted proxies appended is believed, so the header is read
    /// from the right, and never beyond the first address that is not trusted.
    pub fn resolve(&self, peer: IpAddr, forwarded: &str) -> IpAddr {
        let trusted =
            |address: &IpAddr| self.trusted_proxies.iter().any(|net| net.contains(address));
        let mut client = peer;
        for (hop, entry) in forwarded.rsplit(',').enumerate() {
            let goes_on = if self.hops > 0 { hop < self.hops } else { trusted(&client) };
            match parse(entry.trim().as_bytes()) {
                Some(before) if goes_on => client = before,
                _ => break,
            }
        }
        client
    }
}

impl Default for Prefixes {
    /// Whoever has one IPv6 address has a /64 of them.
    fn default() -> Self {
        Self { ipv4: 32, ipv6: 64 }
    }
}

impl Prefixes {
    /// The client that an address belongs to, as text: `192.0.2.7`, `2001:db8:0:1::/64`.
    ///
    /// A port is left out, an IPv4 address written as IPv6 is taken as IPv4; what is no address, a
    /// host name say, stays as it is.
    #[inline]
    pub fn client<'a>(self, text: &'a [u8], buffer: &'a mut Vec<u8>) -> &'a [u8] {
        // An IPv4 address that stays whole needs no look at its parts.
        if self.ipv4 == 32 && memchr::memchr(b':', text).is_none() {
            return text;
        }
        let Some(address) = parse(text) else { return text };
        buffer.clear();
        self.write(address, buffer);
        buffer
    }

    /// The address as a client's key: `192.0.2.7`, `2001:db8:0:1::/64`.
    pub fn key(self, address: IpAddr) -> String {
        let mut text = Vec::new();
        self.write(address, &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// The first address of the network that the client is.
    pub fn network(self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => {
                let kept = u32::MAX.checked_shl(32 - u32::from(self.ipv4)).unwrap_or(0);
                Ipv4Addr::from(u32::from(address) & kept).into()
            }
            IpAddr::V6(address) => {
                let kept = u128::MAX.checked_shl(128 - u32::from(self.ipv6)).unwrap_or(0);
                Ipv6Addr::from(u128::from(address) & kept).into()
            }
        }
    }

    /// A network that is no smaller than a client.
    pub fn widen(self, network: IpNet) -> IpNet {
        let most = match network {
            IpNet::V4(_) => self.ipv4,
            IpNet::V6(_) => self.ipv6,
        };
        match network.prefix_len() > most {
            true => IpNet::new(network.network(), most).map_or(network, |net| net.trunc()),
            false => network,
        }
    }

    fn write(self, address: IpAddr, buffer: &mut Vec<u8>) {
        let (prefix, whole) = match address {
            IpAddr::V4(_) => (self.ipv4, 32),
            IpAddr::V6(_) => (self.ipv6, 128),
        };
        // Writing to a vector can't fail.
        let _ = match self.network(address) {
            IpAddr::V6(network) if (1..=64).contains(&prefix) => {
                write_upper_half((u128::from(network) >> 64) as u64, buffer);
                Ok(())
            }
            network => write!(buffer, "{network}"),
        };
        if prefix < whole {
            let _ = write!(buffer, "/{prefix}");
        }
    }
}

/// An address whose lower half is zero. Those zeros are the longest run, so they are what `::` stands
/// for; this is several times as fast as the standard library's formatting, which matters in a log.
fn write_upper_half(network: u64, buffer: &mut Vec<u8>) {
    let groups = 4 - network.trailing_zeros().min(64) / 16;
    for place in 0..groups {
        let group = (network >> (48 - 16 * place)) as u16;
        if place > 0 {
            buffer.push(b':');
        }
        let digits = 4 - (group | 1).leading_zeros() / 4;
        for digit in (0..digits).rev() {
            buffer.push(b"0123456789abcdef"[usize::from(group >> (4 * digit) & 15)]);
        }
    }
    buffer.extend_from_slice(b"::");
}

/// An address, with or without a port; an IPv4 address written as IPv6 is taken as IPv4.
pub fn parse(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let address = text.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_as_the_standard_library_does() {
        let mut network = 1u64;
        for _ in 0..10_000 {
            network = network.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Groups that are zero, or short, come often.
            let masked = network & (network << 13) & u64::MAX << (network % 64);
            let mut written = Vec::new();
            write_upper_half(masked, &mut written);
            let expected = Ipv6Addr::from(u128::from(masked) << 64).to_string();
            assert_eq!(String::from_utf8(written), Ok(expected));
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
        let wide = Prefixes { ipv4: 24, ipv6: 0 };
        assert_eq!(wide.widen("192.0.2.7/32".parse().unwrap()).to_string(), "192.0.2.0/24");
        assert_eq!(wide.widen("::1/128".parse().unwrap()).to_string(), "::/0");
    }

    #[test]
    fn addresses_are_cut_to_their_prefix() {
        let cases = [
            (32, 64, "192.0.2.7", "192.0.2.7"),
            (32, 64, "192.0.2.7:8080", "192.0.2.7"),
            (24, 64, "192.0.2.7", "192.0.2.0/24"),
            (0, 0, "192.0.2.7", "0.0.0.0/0"),
            (32, 64, "2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
            (32, 128, "2001:DB8::0:1", "2001:db8::1"),
            (32, 0, "2001:db8::1", "::/0"),
            (32, 48, "[2001:db8:7:1::2]:443", "2001:db8:7::/48"),
            (32, 64, "0:0:0:1::2", "0:0:0:1::/64"),
            (32, 64, "::1", "::/64"),
            (32, 33, "2001:db8:8000:1::1", "2001:db8:8000::/33"),
            (32, 65, "2001:db8::8000:0:0:1", "2001:db8:0:0:8000::/65"),
            (32, 64, "::ffff:192.0.2.7", "192.0.2.7"),
            (24, 64, "host.example.org", "host.example.org"),
            (24, 64, "host:with:colons", "host:with:colons"),
            (24, 64, "", ""),
        ];
        for (ipv4, ipv6, address, client) in cases {
            let prefixes = Prefixes { ipv4, ipv6 };
            let mut buffer = Vec::new();
            let found = prefixes.client(address.as_bytes(), &mut buffer);
            assert_eq!(std::str::from_utf8(found), Ok(client), "{address}");
        }
    }
}
