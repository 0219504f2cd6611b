//! Whether a proxy may pass a request on: what the request is, however the proxy tells it, and the
//! verdict. `/v1/authz` and Envoy's `ext_authz` are two ways to ask this.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::StatusCode;
use earrrl::Mode;

use super::http::answer::{self, Verdict};
use crate::server::Server;
use crate::service::attributes::Attributes;
use crate::service::error::AskError;
use crate::service::{Answer, Manner};

/// A request that a proxy asks about.
#[derive(Debug, Default)]
pub(super) struct ProxiedRequest<'a> {
    pub(super) method: Cow<'a, str>,
    /// The path, with a query or without.
    pub(super) target: Cow<'a, str>,
    pub(super) host: Option<Cow<'a, str>>,
    pub(super) proto: Option<Cow<'a, str>>,
    /// The peer of the proxy that asks, or that proxy itself where its headers tell the rest.
    pub(super) peer: Option<IpAddr>,
}

/// Decides under every rule that matches. Of the headers those are read that rules name; `header`
/// finds one by its name in lower case. `then` sees the decision beside the verdict.
///
/// # Errors
/// When no decision can be had.
pub(super) async fn decide<'a, T>(
    server: &Server,
    asked: ProxiedRequest<'a>,
    header: impl Fn(&str) -> Option<Cow<'a, str>>,
    then: impl FnOnce(Verdict, &Answer<'_>) -> T,
) -> Result<T, AskError> {
    let rules = server.service.rules();
    let peer = asked.peer.map(|peer| Cow::Owned(peer.to_string()));
    let known = [
        ("method", Some(asked.method)),
        ("path", Some(asked.target)),
        ("client", peer),
        ("host", asked.host),
        ("proto", asked.proto),
    ];
    let known = known.into_iter().filter_map(|(name, value)| Some((name.into(), value?)));
    let named = rules.headers.iter().filter_map(|attribute| {
        let name = attribute.strip_prefix("header:")?;
        Some((Cow::from(attribute.as_str()), header(name)?))
    });
    let attributes = Attributes::new(known.chain(named), &rules.reading);
    let manner = Manner { mode: Mode::Check, available: true };
    let answer = server.service.ask_matching(&rules, &attributes, manner).await?;
    let denied = StatusCode::from_u16(rules.deny_status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let verdict = answer::authorize(&answer, denied, server.config.x_ratelimit_headers);
    Ok(then(verdict, &answer))
}
