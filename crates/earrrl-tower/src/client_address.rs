//! The address of a client, from the connection and the headers that trusted proxies add.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::address::{self, Prefixes};
use crate::forwarded;

/// The header in which proxies pass on the client's address.
///
/// ```
/// use earrrl_tower::{AddressSource, ClientAddress};
/// use http::HeaderName;
/// let header = AddressSource::Header(HeaderName::from_static("cf-connecting-ip"));
/// let behind_cdn = ClientAddress::default().trust("173.245.48.0/20".parse()?).source(header);
/// assert!(behind_cdn.believes_proxies());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// The settings that determine a client's address. By default it is the address of the connection,
/// and all headers are ignored.
///
/// Lists are read from the right, up to the first address that is not trusted: proxies append to
/// them, so everything that a client may have forged is to the left of that address.
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
    /// Trusts proxies in this network.
    ///
    /// ```
    /// use earrrl_tower::ClientAddress;
    /// let behind_proxies = ClientAddress::default().trust("10.0.0.0/8".parse()?);
    /// assert!(behind_proxies.trusts("10.1.2.3".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn trust(mut self, network: IpNet) -> Self {
        self.trusted.push(address::canonical_network(network));
        self
    }

    /// Trusts this number of proxies, regardless of their addresses, for a service that can be reached
    /// only through them. Trusted networks are then ignored.
    ///
    /// ```
    /// use earrrl_tower::ClientAddress;
    /// use http::{HeaderMap, HeaderValue};
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", HeaderValue::from_static("6.6.6.6, 192.0.2.7"));
    /// let behind_one = ClientAddress::default().hops(1);
    /// let client = behind_one.resolve("10.0.0.1".parse().ok(), &headers);
    /// assert_eq!(client, "192.0.2.7".parse().ok());
    /// ```
    #[must_use]
    pub fn hops(self, hops: usize) -> Self {
        Self { hops, ..self }
    }

    /// Sets the header to read, `X-Forwarded-For` by default.
    ///
    /// ```
    /// use earrrl_tower::{AddressSource, ClientAddress};
    /// let behind_proxy = ClientAddress::default().hops(1).source(AddressSource::Forwarded);
    /// assert_eq!(behind_proxy.header(), "forwarded");
    /// ```
    #[must_use]
    pub fn source(self, source: AddressSource) -> Self {
        Self { source, ..self }
    }

    /// Sets the number of leading bits by which addresses of clients are distinguished.
    ///
    /// ```
    /// use earrrl_tower::{ClientAddress, Prefixes};
    /// let by_network = ClientAddress::default().prefixes(Prefixes::new(24, 48));
    /// assert_eq!(by_network.client_prefixes(), Prefixes::new(24, 48));
    /// ```
    #[must_use]
    pub fn prefixes(self, prefixes: Prefixes) -> Self {
        Self { prefixes, ..self }
    }

    /// Returns the name of the header that reports the client's address, in lower case.
    pub fn header(&self) -> &str {
        self.header_name().as_str()
    }

    fn header_name(&self) -> &HeaderName {
        match &self.source {
            AddressSource::XForwardedFor => &X_FORWARDED_FOR,
            AddressSource::Forwarded => &FORWARDED,
            AddressSource::Header(name) => name,
        }
    }

    /// Returns the prefixes that were set by [`ClientAddress::prefixes`].
    pub fn client_prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// Returns true if any proxy is trusted.
    pub fn believes_proxies(&self) -> bool {
        self.hops > 0 || !self.trusted.is_empty()
    }

    /// Returns an error for settings that contradict each other, or that let clients choose their address:
    /// for configurations that others write.
    ///
    /// ```
    /// use earrrl_tower::ClientAddress;
    /// let everybody = ClientAddress::default().trust("0.0.0.0/0".parse()?);
    /// assert!(everybody.validate().is_err_and(|error| error.starts_with("trusted_proxies: 0.0.0.0/0")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The text begins with `trusted_proxies`, `hops` or `source`, and says what would be right.
    pub fn validate(&self) -> Result<(), String> {
        if let Some(all) = self
            .trusted
            .iter()
            .find(|network| network.prefix_len() == 0)
        {
            let why = "is everybody; name the proxies' networks, or set hops";
            return Err(format!("trusted_proxies: {all} {why}"));
        }
        if self.hops > 0 && !self.trusted.is_empty() {
            return Err("hops: trusted_proxies is set already; want one of them".to_owned());
        }
        if self.source != AddressSource::XForwardedFor && !self.believes_proxies() {
            let why = "is read only behind proxies; set trusted_proxies or hops";
            return Err(format!("source: {} {why}", self.header()));
        }
        Ok(())
    }

    /// Returns true if `address` belongs to a trusted network.
    ///
    /// ```
    /// use earrrl_tower::ClientAddress;
    /// let behind_proxy = ClientAddress::default().trust("10.0.0.0/8".parse()?);
    /// assert!(behind_proxy.trusts("::ffff:10.1.2.3".parse()?));
    /// assert!(!behind_proxy.trusts("192.0.2.7".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address::canonical(address);
        self.trusted
            .iter()
            .any(|network| network.contains(&address))
    }

    /// Returns true if `peer` looks like a proxy that is not trusted: a loopback or private address. If its
    /// requests have [`header`](Self::header) or the like, the proxy's clients count as one.
    ///
    /// ```
    /// use earrrl_tower::ClientAddress;
    /// let behind_proxy = ClientAddress::default().trust("10.0.0.0/8".parse()?);
    /// assert!(behind_proxy.overlooks("127.0.0.1".parse()?));
    /// assert!(!behind_proxy.overlooks("10.0.0.1".parse()?));
    /// assert!(!behind_proxy.overlooks("192.0.2.7".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn overlooks(&self, peer: IpAddr) -> bool {
        self.hops == 0 && !self.trusts(peer) && address::is_internal(address::canonical(peer))
    }

    /// Returns the client's address. `peer` is the address of the connection, if it has one.
    ///
    /// ```
    /// use earrrl_tower::ClientAddress;
    /// use http::{HeaderMap, HeaderValue};
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-forwarded-for", HeaderValue::from_static("6.6.6.6"));
    /// // Without a trusted proxy, the header may be forged.
    /// let client = ClientAddress::default().resolve("192.0.2.7".parse().ok(), &headers);
    /// assert_eq!(client, "192.0.2.7".parse().ok());
    /// ```
    pub fn resolve(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = peer.map(address::canonical);
        if self.hops == 0 && !peer.is_some_and(|peer| self.trusts(peer)) {
            return peer;
        }
        self.follow(peer, values(headers, self.header_name()))
    }

    /// Returns the client's address, given the value of [`header`](Self::header). Several lines of the
    /// header are one value, with commas between them. The address is whole: pass it to
    /// [`Prefixes::key`] or [`Prefixes::network`], so that the addresses of one customer are one client.
    ///
    /// ```
    /// use earrrl_tower::ClientAddress;
    /// let two_proxies = ClientAddress::default().hops(2);
    /// let client = two_proxies.resolve_value("10.0.0.1".parse().ok(), "6.6.6.6, 192.0.2.7, 10.0.0.9");
    /// assert_eq!(client, "192.0.2.7".parse().ok());
    /// ```
    pub fn resolve_value(&self, peer: Option<IpAddr>, value: &str) -> Option<IpAddr> {
        self.follow(peer, std::iter::once(value))
    }

    /// Returns the client's address, given the lines of [`header`](Self::header), the last one first.
    fn follow<'a>(
        &self,
        peer: Option<IpAddr>,
        mut lines: impl Iterator<Item = &'a str>,
    ) -> Option<IpAddr> {
        match &self.source {
            AddressSource::XForwardedFor => {
                let reported = lines.flat_map(|line| line.rsplit(',').map(address::parse));
                self.walk(peer, reported)
            }
            AddressSource::Forwarded => self.walk(peer, lines.flat_map(forwarded::addresses)),
            AddressSource::Header(_) => {
                // With two values, the proxy cannot have overwritten the header, and either may be
                // forged.
                let only = lines.next().filter(|_| lines.next().is_none());
                self.walk(peer, only.map(address::parse).into_iter())
            }
        }
    }

    /// Follows the reported addresses from the connection towards the client, as long as the
    /// address that reported the next one is trusted. `reported` begins with the address that the
    /// nearest proxy reported.
    fn walk(
        &self,
        peer: Option<IpAddr>,
        reported: impl Iterator<Item = Option<IpAddr>>,
    ) -> Option<IpAddr> {
        let mut client = peer.map(address::canonical);
        for (hop, next) in reported.enumerate() {
            let trusted = match self.hops {
                0 => client.is_some_and(|reporter| self.trusts(reporter)),
                hops => hop < hops,
            };
            match next {
                Some(next) if trusted => client = Some(next),
                _ => break,
            }
        }
        client
    }
}

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static FORWARDED: HeaderName = http::header::FORWARDED;

/// Returns the lines of a header, the last one first. A line is cut after its last byte that is not
/// ASCII, so that its right end, which a proxy wrote, is readable whatever the client sent.
fn values<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> + use<'a> {
    headers.get_all(name).into_iter().rev().map(|line| {
        let line = line.as_bytes();
        let start = line
            .iter()
            .rposition(|byte| !byte.is_ascii())
            .map_or(0, |at| at + 1);
        str::from_utf8(&line[start..]).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn trusting(networks: &[&str], hops: usize) -> ClientAddress {
        let none = ClientAddress::default().hops(hops);
        networks.iter().fold(none, |address, network| {
            address.trust(network.parse().unwrap())
        })
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
    fn a_network_in_ipv6_notation_is_that_of_ipv4() {
        let mapped = trusting(&["::ffff:10.0.0.0/104"], 0);
        let trusts = |address: &str| mapped.trusts(address.parse().unwrap());
        assert!(trusts("10.1.2.3") && trusts("::ffff:10.1.2.3") && !trusts("192.0.2.7"));
        assert!(trusting(&["::ffff:0:0/96"], 0).validate().is_err());
    }

    #[test]
    fn only_trusted_proxies_count() {
        let near = ["10.0.0.0/8"];
        for (settings, peer, forwarded, client) in [
            (trusting(&[], 0), "192.0.2.7", "198.51.100.1", "192.0.2.7"),
            (
                trusting(&near, 0),
                "10.0.0.1",
                "198.51.100.1",
                "198.51.100.1",
            ),
            (
                trusting(&near, 0),
                "::ffff:10.0.0.1",
                "198.51.100.1",
                "198.51.100.1",
            ),
            (trusting(&near, 0), "192.0.2.7", "198.51.100.1", "192.0.2.7"),
            (
                trusting(&near, 0),
                "10.0.0.1",
                "6.6.6.6, 192.0.2.1, 10.0.0.2",
                "192.0.2.1",
            ),
            (
                trusting(&near, 0),
                "10.0.0.1",
                "6.6.6.6, junk, 10.0.0.2",
                "10.0.0.2",
            ),
            (
                trusting(&near, 0),
                "10.0.0.1",
                "6.6.6.6, \u{e9}",
                "10.0.0.1",
            ),
            (
                trusting(&near, 0),
                "10.0.0.1",
                "6.6.6.6, \u{e9}, 192.0.2.1",
                "192.0.2.1",
            ),
            (trusting(&near, 0), "10.0.0.1", "", "10.0.0.1"),
            (trusting(&near, 0), "none", "192.0.2.1", "none"),
            (
                trusting(&[], 1),
                "10.0.0.1",
                "6.6.6.6, 192.0.2.1",
                "192.0.2.1",
            ),
            (trusting(&[], 1), "none", "6.6.6.6, 192.0.2.1", "192.0.2.1"),
            (
                trusting(&[], 2),
                "10.0.0.1",
                "6.6.6.6, 192.0.2.1, 10.0.0.2",
                "192.0.2.1",
            ),
            (trusting(&[], 3), "10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ] {
            let lines = [("x-forwarded-for", forwarded)];
            assert_eq!(
                resolve(&settings, peer, &lines),
                client,
                "{peer} {forwarded}"
            );
            assert!(settings.hops == 0 || resolve(&settings, peer, &[]) == peer);
        }
    }

    #[test]
    fn several_lines_are_one_list() {
        let lines = [
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-for", "192.0.2.1"),
        ];
        assert_eq!(
            resolve(&trusting(&["10.0.0.0/8"], 0), "10.0.0.1", &lines),
            "192.0.2.1"
        );
        let settings = trusting(&[], 2).source(AddressSource::Forwarded);
        let lines = [
            ("forwarded", "for=6.6.6.6, for=192.0.2.1"),
            ("forwarded", "for=10.0.0.2"),
        ];
        assert_eq!(resolve(&settings, "10.0.0.1", &lines), "192.0.2.1");
    }

    #[test]
    fn a_header_of_one_address_counts_if_there_is_one() {
        let name = HeaderName::from_static("cloudfront-viewer-address");
        let settings = trusting(&["10.0.0.0/8"], 0).source(AddressSource::Header(name));
        let line = ("cloudfront-viewer-address", "192.0.2.1:4711");
        assert_eq!(resolve(&settings, "10.0.0.1", &[line]), "192.0.2.1");
        assert_eq!(resolve(&settings, "198.51.100.9", &[line]), "198.51.100.9");
        assert_eq!(resolve(&settings, "10.0.0.1", &[line, line]), "10.0.0.1");
        assert_eq!(resolve(&settings, "10.0.0.1", &[]), "10.0.0.1");
    }
}
