//! Decides for a proxy if it may pass a request on. `/v1/authz` and Envoy's `ext_authz` are two ways to
//! ask this.
//!
//! Nothing that a client can send leads to an error: proxies serve a request whose check failed. A
//! request that cannot be read is denied; a rule that cannot be judged leaves the verdict to the others,
//! or denies (`on_error`).

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use earrrl::{Mode, Outcome};
use earrrl_tower::problem::CONTENT_TYPE;
use smallvec::SmallVec;

use super::response::problem::Problem;
use super::response::{self, ACTION, Verdict};
use crate::metrics::PassReason;
use crate::server::Server;
use crate::service::ask::{Answer, Manner};
use crate::service::attributes::{Attributes, bytes};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The reason why a proxied request is denied for which there is no memory.
pub(super) const NO_MEMORY: &str = "no memory for a request of this size; try a smaller one";

/// A request that a proxy asks about.
#[derive(Debug, Default)]
pub(super) struct ProxiedRequest<'a> {
    pub(super) method: Cow<'a, [u8]>,
    /// The path, with a query or without.
    pub(super) target: Cow<'a, [u8]>,
    pub(super) host: Option<Cow<'a, [u8]>>,
    pub(super) proto: Option<Cow<'a, [u8]>>,
    /// The peer of the proxy that asks, or that proxy itself where its headers name the client.
    pub(super) peer: Option<IpAddr>,
}

/// The values of a header, in their order.
pub(super) type Lines<'a> = SmallVec<[Cow<'a, [u8]>; 1]>;

/// Decides under every rule that matches. Only the headers that rules name are read; `lines` finds
/// one by its name in lower case. `then` sees the decision beside the verdict.
pub(super) async fn decide<'a, T>(
    server: &Server,
    asked: ProxiedRequest<'a>,
    lines: impl Fn(&str) -> Lines<'a>,
    then: impl FnOnce(Verdict, &Answer<'_>) -> T,
) -> T {
    let rules = server.service.rules();
    let peer = asked.peer.map(|peer| bytes(peer.to_string().into()));
    let known = [
        ("method", Some(asked.method)),
        ("path", Some(asked.target)),
        ("client", peer),
        ("host", asked.host),
        ("proto", asked.proto),
    ];
    let known = known.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
    let client_header = rules.reading.client_address.header();
    let named = rules.headers.iter().flat_map(|attribute| {
        let name = attribute.strip_prefix("header:").unwrap_or(attribute);
        let lines = if name == client_header { joined(lines(name)) } else { lines(name) };
        lines.into_iter().map(|line| (Cow::from(attribute.as_str()), line))
    });
    let attributes = Attributes::new(known.chain(named), &rules.reading);
    let manner = Manner { mode: Mode::Check, available: true };
    let answer = server.service.ask_matching(&rules, &attributes, manner).await;
    let mut verdict = match &answer.unjudged {
        Some(unjudged) if answer.is_denied_by_error() => {
            refuse(rules.deny_status, &format!("rule {}: no verdict", unjudged.rule.name))
        }
        unjudged => {
            if unjudged.is_some() && !answer.is_over() {
                server.service.metrics.unjudged.count(PassReason::RuleFailed);
            }
            let status = status(rules.deny_status);
            response::authorize(&answer, status, server.config.x_ratelimit_headers)
        }
    };
    let is_grpc = |kind: &Cow<'_, [u8]>| kind.starts_with(b"application/grpc");
    if verdict.status() != StatusCode::OK && lines("content-type").first().is_some_and(is_grpc) {
        // Envoy would say UNAVAILABLE, upon which clients try again at once.
        verdict.headers_mut().insert(GRPC_STATUS, HeaderValue::from_static("8"));
    }
    then(verdict, &answer)
}

/// Returns several lines as one, with commas between them. Proxies append to a list of addresses as
/// they like: to its last line, or in a line of their own.
fn joined(lines: Lines<'_>) -> Lines<'_> {
    if lines.len() < 2 {
        return lines;
    }
    let list: Cow<'_, [u8]> = lines.join(&b", "[..]).into();
    [list].into_iter().collect()
}

/// Denies a request for another reason than a limit.
pub(super) fn refuse(deny_status: u16, why: &str) -> Verdict {
    let status = status(deny_status);
    let mut verdict = Verdict::new(Problem::new(status, why).to_json().to_string().into_bytes());
    *verdict.status_mut() = status;
    verdict.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    verdict.headers_mut().insert(ACTION, HeaderValue::from_static(Outcome::Deny.name()));
    verdict
}

fn status(deny_status: u16) -> StatusCode {
    StatusCode::from_u16(deny_status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}
