//! Finds out whether the addresses of a log are those of proxies in front of the server.

use crate::line::{is_edge, is_private};
use crate::reading::ClientNumbers;
use crate::suggest::Profiles;
use crate::text::counted;

/// The most clients that are profiled because they send half of all requests.
const MOST: usize = 1000;

/// A private address belongs to a proxy if it sends at least this share of all requests, in percent.
/// Many internal clients beside public ones are normal, and each sends less.
const LEAST: u64 = 1;

/// Returns the clients with the most requests that together send at least half of all requests; none if
/// these are too many to be proxies.
pub fn busiest(counts: &[u64]) -> Vec<u32> {
    let half = counts.iter().sum::<u64>().div_ceil(2);
    let mut clients: Vec<u32> = (0..).take(counts.len()).collect();
    clients.sort_by_key(|&client| std::cmp::Reverse(counts[client as usize]));
    let mut sent = 0;
    let enough = clients.iter().position(|&client| {
        sent += counts[client as usize];
        sent >= half
    });
    match enough {
        Some(last) if last < MOST => clients.truncate(last + 1),
        _ => clients.clear(),
    }
    clients
}

/// Returns a clause about the clients that are probably proxies, if they send at least half of all
/// requests, whose numbers by client are given.
///
/// Proxies have private addresses, those of a content delivery network, or profiles that no single
/// client has.
pub fn proxies(clients: &ClientNumbers, counts: &[u64], profiles: &Profiles) -> Option<String> {
    let all: u64 = counts.iter().sum();
    let numbers = || 0..clients.len() as u32;
    let private = |client: &u32| is_private(clients.key(*client));
    if !clients.is_empty() && numbers().all(|client| private(&client)) {
        return Some("all clients have private addresses".into());
    }
    let is_proxy = |client: &u32| {
        private(client) && counts[*client as usize] * 100 >= all * LEAST
            || is_edge(clients.key(*client))
            || profiles.is_proxy(*client)
    };
    let found: Vec<u32> = numbers().filter(is_proxy).collect();
    let sent: u64 = found.iter().map(|&client| counts[client as usize]).sum();
    if found.is_empty() || sent * 2 < all {
        return None;
    }
    let count = found.len() as u64;
    let few = if found.iter().all(private) {
        counted(count, "private client")
    } else if found.iter().all(|&client| is_edge(clients.key(client))) {
        counted(count, "client") + " of a content delivery network"
    } else {
        counted(count, "client") + " with the user agents or X-Forwarded-For of many"
    };
    Some(format!("{sent} of {all} requests come from {few}"))
}
