//! Warnings about settings of proxies that turn limits off, or make all clients one. Each is logged once, or once a
//! minute: requests cause them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use earrrl::Nanos;
use earrrl::internal::lock;

use super::attributes::shown;
use super::rule::ActiveRule;
use crate::config::attribute::KeyPart;
use crate::log::Seldom;
use crate::metrics::digest;

/// The time between two warnings about refused questions, in seconds.
const PERIOD: u64 = 60;
/// The number of unknown domains that are named.
const MAX_DOMAINS: usize = 16;

/// The warnings that were logged already.
#[derive(Debug, Default)]
pub struct Hints {
    refused: Seldom,
    proxy: AtomicBool,
    http1: AtomicBool,
    domains: Mutex<BTreeSet<String>>,
}

impl Hints {
    /// Logs that a proxy's question got an error in place of a verdict.
    pub fn refused(&self, now: Nanos, why: &str) {
        if self.refused.is_due_at(now.get() / 1_000_000_000, PERIOD) {
            tracing::warn!(
                error = why,
                "a proxy got no verdict on a client's request; until that is mended, it lets all requests pass, or none"
            );
        }
    }

    /// Returns true if no proxy was overlooked so far.
    pub fn awaits_proxy(&self) -> bool {
        !self.proxy.load(Relaxed)
    }

    /// Logs that the requests of what seems to be a proxy name other clients, which are not read.
    pub fn overlooked_proxy(&self, peer: IpAddr) {
        if !self.proxy.swap(true, Relaxed) {
            tracing::warn!(
                %peer,
                "requests from this address name clients in X-Forwarded-For, which is not read, so that all of these \
                 clients are one; if it is a proxy, add it to trusted_proxies in [client_address]"
            );
        }
    }

    /// Logs that a client of the gRPC port speaks another protocol than HTTP/2.
    pub fn not_http2(&self) {
        if !self.http1.swap(true, Relaxed) {
            tracing::warn!(
                "a connection for gRPC began with something other than HTTP/2; in Envoy, the cluster of the rate \
                 limit service needs http2_protocol_options, or it lets all requests pass"
            );
        }
    }

    /// Logs that no limit is in the domain that Envoy's rate limit filter names.
    pub fn unknown_domain(&self, domain: &str) {
        let mut named = lock(&self.domains);
        let domain = shown(domain);
        if named.len() < MAX_DOMAINS && !named.contains(&domain) {
            tracing::warn!(
                domain,
                "requests name a domain that no descriptor file and no rule has, so they are not limited"
            );
            named.insert(domain);
        }
    }
}

/// Logs the first request that lacks an attribute of the rule's key and shares a limit with all others like it.
pub(super) fn lacks(rule: &ActiveRule, attribute: &KeyPart) {
    if rule.outcomes.missing.get() == 0 {
        tracing::warn!(
            rule = %rule.name,
            %attribute,
            "a request lacks this attribute of the rule's key; all such requests share one limit, unless `missing` \
             is set. Does the proxy pass it on?"
        );
    }
}

/// Counts a request that states a cost which is none, and logs one of them a minute. The value is the client's, so it is
/// not logged, and neither is its key, which may be a credential.
pub(super) fn invalid_cost(rule: &ActiveRule, key: &[u8]) {
    rule.outcomes.invalid_costs.increment();
    if rule.outcomes.invalid_cost_logged.is_due(PERIOD) {
        tracing::warn!(
            rule = %rule.name,
            client = digest(key),
            "a request states a cost that is no number from 0 to 1e18: it counts as max_cost, and without max_cost \
             it never passes"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_questions_are_logged_once_a_minute() {
        let hints = Hints::default();
        let seconds = [100, 101, 159, 160, 90, 220].map(|second| {
            let before = format!("{:?}", hints.refused);
            hints.refused(Nanos::from_secs(second), "invalid token");
            format!("{:?}", hints.refused) != before
        });
        assert_eq!(seconds, [true, false, false, true, false, true]);
    }

    #[test]
    fn a_bounded_number_of_domains_is_remembered() {
        let hints = Hints::default();
        (0..100).for_each(|nth| hints.unknown_domain(&nth.to_string()));
        assert_eq!(hints.domains.lock().unwrap().len(), MAX_DOMAINS);
    }
}
