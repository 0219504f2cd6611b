//! Warnings about settings by which all clients are one. Without them, an operator would notice that only when
//! the first client uses up the limit of all.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use http::request::Parts;

use crate::key::peer_address;
use crate::request_rule::RequestRule;

/// The number of a rule's first requests that are examined for an overlooked proxy.
const EXAMINED: u32 = 10_000;

/// What was not logged yet about a rule.
pub(crate) struct Hints {
    /// True once a request without a connection's address was logged.
    no_peer: AtomicBool,
    /// The number of requests that are still examined for an overlooked proxy.
    left: AtomicU32,
}

impl Default for Hints {
    fn default() -> Self {
        Self { no_peer: AtomicBool::new(false), left: AtomicU32::new(EXAMINED) }
    }
}

impl RequestRule {
    /// Logs once that the key needs the connection's address and the server does not supply it.
    #[cold]
    pub(crate) fn warn_without_peer(&self, request: &Parts) {
        if !self.key.needs_peer_address() || peer_address(request).is_some() {
            return;
        }
        if !self.hints.no_peer.swap(true, Relaxed) {
            warn(&format_args!(
                "rule {}: requests lack the address of their connection, so the rule cannot tell clients apart \
                 (missing = {:?}); with axum 0.8, enable the feature `axum` of earrrl-tower and serve \
                 `into_make_service_with_connect_info::<SocketAddr>()`; with tonic 0.14, enable the feature \
                 `tonic`; elsewhere, insert `earrrl_tower::PeerAddress` into the requests' extensions",
                self.name, self.missing,
            ));
        }
    }

    /// Logs once, among the first requests, that a proxy is not trusted.
    #[inline]
    pub(crate) fn warn_of_proxy(&self, request: &Parts) {
        if self.hints.left.load(Relaxed) > 0 {
            self.examine(request);
        }
    }

    #[cold]
    fn examine(&self, request: &Parts) {
        if !self.key.overlooks_proxy(request) {
            let _ = self.hints.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        } else if self.hints.left.swap(0, Relaxed) > 0
            && let Some(peer) = peer_address(request)
        {
            warn(&format_args!(
                "rule {}: requests from {peer} name clients in X-Forwarded-For or the like, which is not read, \
                 so that all of these clients are one; if {peer} is a proxy, trust it: \
                 `ClientAddress::trust(\"{peer}/{}\".parse()?)`, or trusted_proxies or trustedProxies",
                self.name,
                if peer.is_ipv4() { 32 } else { 128 },
            ));
        }
    }
}

/// Logs a warning; to stderr if the program has no subscriber of `tracing`, since nobody would see it otherwise.
#[expect(clippy::print_stderr, reason = "a program without a subscriber shows no other warnings")]
fn warn(message: &dyn fmt::Display) {
    tracing::warn!("{message}");
    if !tracing::dispatcher::has_been_set() {
        eprintln!("earrrl: {message}");
    }
}
