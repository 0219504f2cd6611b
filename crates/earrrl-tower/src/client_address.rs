//! Which address a request comes from, told from the connection and from what proxies add.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::address::{self, Prefixes};
use crate::forwarded;

/// Where proxies write the client's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressSource {
    /// `X-Forwarded-For`, to which each proxy appends its peer.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239), to which each proxy appends an element.
    Forwarded,
    /// A header that holds one address, which the nearest proxy overwrites: `X-Real-Ip`,
    /// `CF-Connecting-IP`, `CloudFront-Viewer-Address`, `Fly-Client-IP`, `True-Client-IP`,
    /// `X-Envoy-External-Address`.
    Header(HeaderName),
}

/// How a client's address is told. By default it is the address of the connection, and no header is
/// believed.
///
/// Only what trusted proxies appended is believed, so lists are read from the right, and never
/// beyond the first address that is not trusted: whatever a client writes itself stands to the left
/// of that.
///
/// ```
/// use earrrl_tower::ClientAddress;
/// use http::{HeaderMap, HeaderValue};
///
/// let behind_proxy = ClientAddress::default().trust("10.0.0.0/8".parse()?);
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", HeaderValue::from_static("6.6.6.6, 192.0.2.7"));
/// let peer = Some("10.0.0.1".parse()?);
/// assert_eq!(behind_proxy.resolve(peer, &headers), Some("192.0.2.7".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddress {
    source: AddressSource,
    trusted: Vec<IpNet>,
    hops: usize,
    prefixes: Prefixes,
}

impl ClientAddress {
    /// Believes proxies of this network.
    #[must_use]
    pub fn trust(mut self, network: IpNet) -> Self {
        self.trusted.push(network);
        self
    }

    /// Believes this many proxies, whatever their addresses: for a service that can be reached only
    /// through them. Trusted networks play no part then.
    #[must_use]
    pub fn hops(self, hops: usize) -> Self {
        Self { hops, ..self }
    }

    /// Reads another header than `X-Forwarded-For`.
    #[must_use]
    pub fn source(self, source: AddressSource) -> Self {
        Self { source, ..self }
    }

    /// How many bits of an address make a client.
    #[must_use]
    pub fn prefixes(self, prefixes: Prefixes) -> Self {
        Self { prefixes, ..self }
    }

    /// How many bits of an address make a client; for [`ClientAddress::prefixes`].
    pub fn client_prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// The client's address, given the address of the connection, where that has one.
    pub fn resolve(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = peer.map(|peer| peer.to_canonical());
        if self.hops == 0 && !peer.is_some_and(|peer| self.trusts(peer)) {
            return peer;
        }
        match &self.source {
            AddressSource::XForwardedFor => {
                let lines = values(headers, &X_FORWARDED_FOR);
                self.walk(peer, lines.flat_map(|line| line.rsplit(',').map(address::parse)))
            }
            AddressSource::Forwarded => {
                let lines = values(headers, &http::header::FORWARDED);
                self.walk(peer, lines.flat_map(forwarded::addresses))
            }
            AddressSource::Header(name) => {
                let mut lines = values(headers, name);
                // Two of them: the proxy does not overwrite it, so neither can be believed.
                let only = lines.next().filter(|_| lines.next().is_none());
                only.and_then(address::parse).or(peer)
            }
        }
    }

    /// As [`ClientAddress::resolve`], given the text of a list of addresses as `X-Forwarded-For`
    /// has it.
    pub fn resolve_list(&self, peer: Option<IpAddr>, list: &str) -> Option<IpAddr> {
        self.walk(peer, list.rsplit(',').map(address::parse))
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }

    /// Goes from the connection towards the client, as long as the one that tells the next address is
    /// believed.
    fn walk(
        &self,
        peer: Option<IpAddr>,
        told: impl Iterator<Item = Option<IpAddr>>,
    ) -> Option<IpAddr> {
        let mut client = peer.map(|peer| peer.to_canonical());
        for (hop, before) in told.enumerate() {
            let believed = match self.hops {
                0 => client.is_some_and(|teller| self.trusts(teller)),
                hops => hop < hops,
            };
            match before {
                Some(before) if believed => client = Some(before),
                _ => break,
            }
        }
        client
    }
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The lines of a header, the last one first; of a line, what follows the last byte that is no
/// ASCII. The right end, which proxies wrote, is always read.
fn values<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> + use<'a> {
    headers.get_all(name).into_iter().rev().map(|line| {
        let line = line.as_bytes();
        let start = line.iter().rposition(|byte| !byte.is_ascii()).map_or(0, |at| at + 1);
        str::from_utf8(&line[start..]).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn trusting(networks: &[&str], hops: usize) -> ClientAddress {
        let none = ClientAddress::default().hops(hops);
        networks.iter().fold(none, |address, network| address.trust(network.parse().unwrap()))
    }

    fn resolve(settings: &ClientAddress, peer: &str, lines: &[(&str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let found = settings.resolve(peer.parse().ok(), &headers);
        found.map_or_else(|| "none".to_owned(), |address| address.to_string())
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let near = ["10.0.0.0/8"];
        for (settings, peer, forwarded, client) in [
            (trusting(&[], 0), "192.0.2.7", "198.51.100.1", "192.0.2.7"),
            (trusting(&near, 0), "10.0.0.1", "198.51.100.1", "198.51.100.1"),
            (trusting(&near, 0), "::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
            (trusting(&near, 0), "192.0.2.7", "198.51.100.1", "192.0.2.7"),
            (trusting(&near, 0), "10.0.0.1", "6.6.6.6, 192.0.2.1, 10.0.0.2", "192.0.2.1"),
            (trusting(&near, 0), "10.0.0.1", "6.6.6.6, junk, 10.0.0.2", "10.0.0.2"),
            (trusting(&near, 0), "10.0.0.1", "6.6.6.6, \u{e9}", "10.0.0.1"),
            (trusting(&near, 0), "10.0.0.1", "6.6.6.6, \u{e9}, 192.0.2.1", "192.0.2.1"),
            (trusting(&near, 0), "10.0.0.1", "", "10.0.0.1"),
            (trusting(&near, 0), "none", "192.0.2.1", "none"),
            (trusting(&[], 1), "10.0.0.1", "6.6.6.6, 192.0.2.1", "192.0.2.1"),
            (trusting(&[], 1), "none", "6.6.6.6, 192.0.2.1", "192.0.2.1"),
            (trusting(&[], 2), "10.0.0.1", "6.6.6.6, 192.0.2.1, 10.0.0.2", "192.0.2.1"),
            (trusting(&[], 3), "10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ] {
            let lines = [("x-forwarded-for", forwarded)];
            assert_eq!(resolve(&settings, peer, &lines), client, "{peer} {forwarded}");
            assert!(settings.hops == 0 || resolve(&settings, peer, &[]) == peer);
        }
    }

    #[test]
    fn several_lines_are_one_list() {
        let lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "192.0.2.1")];
        assert_eq!(resolve(&trusting(&["10.0.0.0/8"], 0), "10.0.0.1", &lines), "192.0.2.1");
        let settings = trusting(&[], 2).source(AddressSource::Forwarded);
        let lines = [("forwarded", "for=6.6.6.6, for=192.0.2.1"), ("forwarded", "for=10.0.0.2")];
        assert_eq!(resolve(&settings, "10.0.0.1", &lines), "192.0.2.1");
    }

    #[test]
    fn a_header_of_one_address_is_believed_once() {
        let name = HeaderName::from_static("cloudfront-viewer-address");
        let settings = trusting(&["10.0.0.0/8"], 0).source(AddressSource::Header(name));
        let line = ("cloudfront-viewer-address", "192.0.2.1:4711");
        assert_eq!(resolve(&settings, "10.0.0.1", &[line]), "192.0.2.1");
        assert_eq!(resolve(&settings, "198.51.100.9", &[line]), "198.51.100.9");
        assert_eq!(resolve(&settings, "10.0.0.1", &[line, line]), "10.0.0.1");
        assert_eq!(resolve(&settings, "10.0.0.1", &[]), "10.0.0.1");
    }
}
