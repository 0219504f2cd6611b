//! Warnings about settings by which all clients are one. Without them, an operator would notice that only when
//! the first client uses up the limit of all.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use earrrl::EngineError;
use http::request::Parts;

use crate::ClientAddress;
use crate::key::{Key, peer_address};

/// The number of a rule's first requests that are examined for an overlooked proxy.
const EXAMINED: u32 = 10_000;

/// The warnings about a rule that were logged.
#[derive(Default)]
pub(crate) struct Hints {
    /// True once a request without a connection's address was logged.
    no_peer: AtomicBool,
    /// True once a limit of a request that is not in force was logged.
    refused: AtomicBool,
    /// The number of requests that were examined for an overlooked proxy.
    examined: AtomicU32,
}

impl Hints {
    /// Logs once that the key of a rule needs the connection's address and the server does not supply it.
    /// `missing` is the treatment of such requests.
    #[cold]
    pub(crate) fn no_peer(&self, rule: &str, missing: impl fmt::Debug) {
        if !self.no_peer.swap(true, Relaxed) {
            warn(&format_args!(
                "rule {rule}: requests lack the address of their connection, as over a Unix socket, so the rule cannot \
                 tell clients apart (missing = {missing:?}); the section \"Clients\" of docs/middleware.md, docs/python.md \
                 or docs/node.md says how the server supplies it",
            ));
        }
    }

    /// Logs once that a limit of a request is not in force.
    #[cold]
    pub(crate) fn refused(&self, rule: &str, error: &EngineError) {
        if !self.refused.swap(true, Relaxed) {
            warn(&format_args!(
                "rule {rule}: a limit that limit_by has returned is not in force, so that of the rule applies: {error}",
            ));
        }
    }

    /// Logs once, among a rule's first requests, that a proxy is not trusted.
    #[inline]
    pub(crate) fn proxy(&self, rule: &str, key: &dyn Key, request: &Parts) {
        if self.examined.load(Relaxed) < EXAMINED {
            self.examine(rule, key, request);
        }
    }

    #[cold]
    fn examine(&self, rule: &str, key: &dyn Key, request: &Parts) {
        let overlooked = key
            .client_address()
            .is_some_and(|address| overlooks_proxy(address, request));
        if !overlooked {
            self.examined.fetch_add(1, Relaxed);
        } else if self.examined.swap(EXAMINED, Relaxed) < EXAMINED
            && let Some(peer) = peer_address(request)
        {
            let length = if peer.is_ipv4() { 32 } else { 128 };
            warn(&format_args!(
                "rule {rule}: requests from {peer} name clients in X-Forwarded-For or the like, which is not read, \
                 so that all of these clients are one; if {peer} is a proxy, trust it: \
                 `ClientAddress::trust(\"{peer}/{length}\".parse()?)`, or trusted_proxies or trustedProxies",
            ));
        }
    }
}

/// Returns true if a request seems to come from a proxy that is not trusted, so that the address is
/// the proxy's and not the client's.
fn overlooks_proxy(address: &ClientAddress, request: &Parts) -> bool {
    let names = [
        "x-forwarded-for",
        "forwarded",
        "x-real-ip",
        address.header(),
    ];
    names.iter().any(|name| request.headers.contains_key(*name))
        && peer_address(request).is_some_and(|peer| address.overlooks(peer))
}

/// Logs a warning; to stderr if the program has no subscriber of `tracing`, since nobody would see it otherwise.
#[expect(
    clippy::print_stderr,
    reason = "a program without a subscriber shows no other warnings"
)]
fn warn(message: &dyn fmt::Display) {
    tracing::warn!("{message}");
    if !tracing::dispatcher::has_been_set() {
        eprintln!("earrrl: {message}");
    }
}
