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
            let key = clients.key(client);
            let net = std::str::from_utf8(key).ok().and_then(network);
            let net = net.filter(|_| !is_edge(key)).and_then(|net| {
                let length = if net.addr().is_ipv4() { 24 } else { 48 };
                IpNet::new(net.addr(), length.min(net.prefix_len())).ok()
            });
            let number = net.map(|net| net.trunc()).map(|net| {
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
