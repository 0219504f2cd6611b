//! `ANY /v1/authz`: the answer to a proxy that asks about a request before it passes it on: nginx's
//! `auth_request`, Caddy's `forward_auth`, Traefik's `forwardAuth`, HAProxy by a script, Envoy's
//! `ext_authz` over HTTP.
//!
//! The proxy describes the request in headers. Nothing is read from the query, which may be the
//! client's own.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Instant;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

use super::request::authorize;
use crate::config::access::Access;
use crate::metrics::PassReason;
use crate::protocol::authz::{Lines, NO_MEMORY, ProxiedRequest, decide, refuse};
use crate::protocol::response::Verdict;
use crate::server::Server;

/// The route. A proxy that appends the request's path to it (Envoy's `path_prefix`) needs no headers.
pub(super) const PATH: &str = "/v1/authz";

static METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
static TARGET: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-uri"), HeaderName::from_static("x-original-uri")];
static HOST: [HeaderName; 2] = [HeaderName::from_static("x-forwarded-host"), header::HOST];
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Returns true for a path of this route.
pub(super) fn is_asked(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the denial of a proxied request for which there is no memory. It has no body, which would have to
/// be kept until the proxy fetches it.
pub(super) fn without_memory(server: &Server) -> axum::http::Response<()> {
    let (mut head, _body) = refuse(server.service.rules().deny_status, NO_MEMORY).into_parts();
    head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    axum::http::Response::from_parts(head, ())
}

/// Answers a request to this route. Proxies send one for each request of theirs, so it bypasses the
/// router.
pub(super) async fn answer(server: &Server, request: &Parts, peer: Option<IpAddr>) -> Response {
    let started = Instant::now();
    let metrics = &server.service.metrics;
    if let Err(problem) = authorize(server, &request.headers, Access::Ask) {
        metrics.unjudged.count(PassReason::Refused);
        return problem.into_response();
    }
    let verdict = verdict(server, request, peer).await;
    metrics.http_request.record(started.elapsed());
    verdict.map(|body| if body.is_empty() { Body::empty() } else { Body::from(body) })
}

async fn verdict(server: &Server, request: &Parts, peer: Option<IpAddr>) -> Verdict {
    match asked(request, peer) {
        Ok(asked) => {
            let lines = |name: &str| lines(&request.headers, name);
            decide(server, asked, lines, |verdict, _| verdict).await
        }
        Err(Contradiction(names)) => {
            let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
            let names = names.join(", ");
            let status = server.service.rules().deny_status;
            refuse(status, &format!("{names}: several values; the proxy must overwrite all"))
        }
    }
}

/// Headers that differ from each other: one of them is the client's own, and nothing shows which.
struct Contradiction<'a>(&'a [HeaderName]);

/// Returns the proxied request, by the proxy's headers, or where they lack something by the question
/// itself.
fn asked(
    request: &Parts,
    peer: Option<IpAddr>,
) -> Result<ProxiedRequest<'_>, Contradiction<'static>> {
    let headers = &request.headers;
    let appended = request.uri.path().strip_prefix(PATH).filter(|path| path.starts_with('/'));
    let own = Cow::Borrowed(request.method.as_str().as_bytes());
    let (method, target) = match appended {
        Some(path) => (own, Cow::Borrowed(path.as_bytes())),
        None => {
            let target = only(headers, &TARGET)?;
            let target = target.unwrap_or(Cow::Borrowed(PATH.as_bytes()));
            (only(headers, &METHOD)?.unwrap_or(own), target)
        }
    };
    let first = |name| headers.get(name).map(|value| Cow::Borrowed(value.as_bytes()));
    // HTTP/2 has the host beside the headers.
    let authority =
        || request.uri.authority().map(|authority| authority.as_str().as_bytes().into());
    Ok(ProxiedRequest {
        method,
        target,
        host: HOST.iter().find_map(first).or_else(authority),
        proto: first(&PROTO),
        peer,
    })
}

/// Returns the one value that these headers have.
fn only<'a>(
    headers: &'a HeaderMap,
    names: &'static [HeaderName],
) -> Result<Option<Cow<'a, [u8]>>, Contradiction<'static>> {
    let mut values = names.iter().flat_map(|name| headers.get_all(name));
    let Some(first) = values.next() else { return Ok(None) };
    if values.any(|value| value != first) {
        return Err(Contradiction(names));
    }
    Ok(Some(first.as_bytes().into()))
}

/// Returns the lines of a header.
fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Lines<'a> {
    headers.get_all(name).iter().map(|line| line.as_bytes().into()).collect()
}
