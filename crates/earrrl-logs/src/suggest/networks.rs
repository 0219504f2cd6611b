//! The networks that clients are in, to find those from which many clients attack.

use ipnet::IpNet;

use super::rows::Table;
use crate::line::{is_edge, network};
use crate::reading::ClientNumbers;

/// The networks of all clients, /24 of IPv4 and /48 of IPv6. Proxies of content delivery networks have none, since they
/// send the requests of all visitors.
#[derive(Default)]
pub(super) struct Networks {
    /// The networks by their numbers.
    pub all: Vec<IpNet>,
    /// The number of each client's network; `u32::MAX` if it has none.
    pub of: Vec<u32>,
}

impl Networks {
    /// Finds the networks of clients.
    pub(super) fn of(clients: &ClientNumbers) -> Self {
        let mut numbers: Table<IpNet, u32> = Table::default();
        let mut found = Self::default();
        for client in 0..clients.len() as u32 {
            let number = network_of(clients.key(client)).map(|net| {
                *numbers.entry(net).or_insert_with(|| {
                    found.all.push(net);
                    found.all.len() as u32 - 1
                })
            });
            found.of.push(number.unwrap_or(u32::MAX));
        }
        found
    }
}

/// Returns the network of an address: /24 of IPv4, /48 of IPv6; `None` for other keys and for proxies of content
/// delivery networks.
pub(crate) fn network_of(key: &[u8]) -> Option<IpNet> {
    let net = std::str::from_utf8(key).ok().and_then(network);
    let net = net.filter(|_| !is_edge(key))?;
    let length = if net.addr().is_ipv4() { 24 } else { 48 };
    let net = IpNet::new(net.addr(), length.min(net.prefix_len()));
    Some(net.ok()?.trunc())
}
