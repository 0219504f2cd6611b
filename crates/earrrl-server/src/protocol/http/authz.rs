//! `ANY /v1/authz`: the answer to a proxy that asks about a request before it passes it on: nginx's
//! `auth_request`, Caddy's `forward_auth`, Traefik's `forwardAuth`, HAProxy by a script, Envoy's
//! `ext_authz` over HTTP.
//!
//! What the request is stands in headers that the proxy writes. Nothing is read from the query: it
//! may be the client's own.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Instant;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::problem::Problem;
use super::request::authorize;
use crate::config::access::Access;
use crate::protocol::authz::{ProxiedRequest, decide};
use crate::protocol::http::answer::Verdict;
use crate::server::Server;

/// The route. A proxy that appends the request's path to it (Envoy's `path_prefix`) needs no headers.
pub(super) const PATH: &str = "/v1/authz";

const METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
const TARGET: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-uri"), HeaderName::from_static("x-original-uri")];
const HOST: [HeaderName; 2] = [HeaderName::from_static("x-forwarded-host"), header::HOST];
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Whether this is a path of this route.
pub(super) fn is_asked(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a request to this route. It is asked for each request of a proxy's, so it does without the
/// router.
pub(super) async fn answer(server: &Server, request: &Parts, peer: Option<IpAddr>) -> Response {
    let started = Instant::now();
    match verdict(server, request, peer).await {
        Ok(verdict) => {
            server.service.metrics.http_request.record(started.elapsed());
            verdict.map(|body| if body.is_empty() { Body::empty() } else { Body::from(body) })
        }
        Err(problem) => problem.into_response(),
    }
}

async fn verdict(
    server: &Server,
    request: &Parts,
    peer: Option<IpAddr>,
) -> Result<Verdict, Problem> {
    let headers = &request.headers;
    authorize(server, headers, Access::Ask)?;
    server.service.metrics.http_requests.increment();
    let asked = asked(request, peer)?;
    Ok(decide(server, asked, |name| line(headers, name), |verdict, _| verdict).await?)
}

/// What the request is, by the proxy's headers; what they do not tell, by the question itself.
fn asked(request: &Parts, peer: Option<IpAddr>) -> Result<ProxiedRequest<'_>, Problem> {
    let headers = &request.headers;
    let appended = request.uri.path().strip_prefix(PATH).filter(|path| path.starts_with('/'));
    let own = Cow::Borrowed(request.method.as_str());
    let (method, target) = match appended {
        Some(path) => (own, Cow::Borrowed(path)),
        None => {
            let target = only(headers, &TARGET)?;
            (only(headers, &METHOD)?.unwrap_or(own), target.unwrap_or(Cow::Borrowed(PATH)))
        }
    };
    let first = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    // HTTP/2 tells the host beside the headers.
    let authority = || request.uri.authority().map(|authority| authority.as_str().into());
    Ok(ProxiedRequest {
        method,
        target,
        host: HOST.iter().find_map(first).or_else(authority),
        proto: first(&PROTO),
        peer,
    })
}

/// The one value that these headers have. Where they differ, one of them is the client's, and which
/// one can't be told.
fn only<'a>(headers: &'a HeaderMap, names: &[HeaderName]) -> Result<Option<Cow<'a, str>>, Problem> {
    let mut values = names.iter().flat_map(|name| headers.get_all(name));
    let Some(first) = values.next() else { return Ok(None) };
    if values.any(|value| value != first) {
        let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
        let detail = format!("{}: several values; the proxy must overwrite all", names.join(", "));
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    Ok(Some(String::from_utf8_lossy(first.as_bytes())))
}

/// A header's value: the first one, as applications read it; a list of addresses is its lines
/// together.
fn line<'a>(headers: &'a HeaderMap, name: &str) -> Option<Cow<'a, str>> {
    let mut lines =
        headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
    let first = lines.next()?;
    if name != "x-forwarded-for" {
        return Some(first);
    }
    Some(lines.fold(first, |list, line| format!("{list}, {line}").into()))
}
