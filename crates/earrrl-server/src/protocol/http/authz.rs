//! `ANY /v1/authz`: authorizes a client's request for a proxy that has received it. nginx
//! (`auth_request`), Caddy (`forward_auth`), Traefik (`forwardAuth`), HAProxy (by a script) and
//! Envoy (`ext_authz` over HTTP) use this route.
//!
//! The proxy describes the client's request in headers. The query of the route is ignored, since it
//! may be a copy of the client's own query.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Instant;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

use crate::config::access::Scope;
use crate::protocol::authz::{Lines, NO_MEMORY, ProxiedRequest, decide, refuse};
use crate::protocol::bearer::authorize;
use crate::protocol::response::Problem;
use crate::protocol::response::Verdict;
use crate::server::Server;

/// The path of the route. A proxy may append the path of the client's request to it (Envoy's
/// `path_prefix`); such a proxy needs no headers.
pub(super) const PATH: &str = "/v1/authz";

static METHOD: [HeaderName; 2] = [
    HeaderName::from_static("x-forwarded-method"),
    HeaderName::from_static("x-original-method"),
];
static TARGET: [HeaderName; 2] = [
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-original-uri"),
];
static HOST: [HeaderName; 2] = [HeaderName::from_static("x-forwarded-host"), header::HOST];
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Returns true if `path` belongs to this route.
pub(super) fn is_asked(path: &str) -> bool {
    path.strip_prefix(PATH)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the denial of a proxied request when memory is short. The response has no body, since a
/// body would occupy memory until the proxy has read it.
pub(super) fn without_memory(server: &Server) -> axum::http::Response<()> {
    let (mut head, _body) = refuse(server.service.rules().deny_status, NO_MEMORY).into_parts();
    head.headers
        .insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    axum::http::Response::from_parts(head, ())
}

/// Answers a request to this route. The request bypasses the router to save time, since proxies
/// send one for each request that they receive.
pub(super) async fn answer(server: &Server, request: &Parts, peer: Option<IpAddr>) -> Response {
    let started = Instant::now();
    let metrics = &server.service.metrics;
    let permitted = authorize(server, &request.headers, Scope::Check)
        .and_then(|access| access.permit_all_rules().map_err(Problem::from));
    if let Err(problem) = permitted {
        server.service.refused_question(&problem.detail);
        return problem.into_response();
    }
    let verdict = verdict(server, request, peer).await;
    metrics.http_request.record(started.elapsed());
    verdict.map(|body| {
        if body.is_empty() {
            Body::empty()
        } else {
            Body::from(body)
        }
    })
}

async fn verdict(server: &Server, request: &Parts, peer: Option<IpAddr>) -> Verdict {
    match asked(request, peer) {
        Ok(asked) => {
            let lines = |name: &str| lines(&request.headers, name);
            decide(server, asked, lines, None, |verdict, _| verdict).await
        }
        Err(names) => {
            let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
            let names = names.join(", ");
            let status = server.service.rules().deny_status;
            refuse(
                status,
                &format!("{names}: several values; the proxy must overwrite all"),
            )
        }
    }
}

/// The names of headers that describe the same property with different values. One of these values
/// was sent by the client rather than the proxy, and it is unknown which one.
type Contradiction = &'static [HeaderName];

/// Returns the client's request as the proxy's headers describe it. Properties without a header are
/// taken from the proxy's own request.
fn asked(request: &Parts, peer: Option<IpAddr>) -> Result<ProxiedRequest<'_>, Contradiction> {
    let headers = &request.headers;
    let appended = request
        .uri
        .path()
        .strip_prefix(PATH)
        .filter(|path| path.starts_with('/'));
    let own = Cow::Borrowed(request.method.as_str().as_bytes());
    let (method, target) = match appended {
        Some(path) => (own, Cow::Borrowed(path.as_bytes())),
        None => {
            let target = only(headers, &TARGET)?;
            let target = target.unwrap_or(Cow::Borrowed(PATH.as_bytes()));
            (only(headers, &METHOD)?.unwrap_or(own), target)
        }
    };
    let first = |name| {
        headers
            .get(name)
            .map(|value| Cow::Borrowed(value.as_bytes()))
    };
    // HTTP/2 sends the host in the `:authority` pseudo-header instead of `Host`.
    let authority = || {
        request
            .uri
            .authority()
            .map(|authority| authority.as_str().as_bytes().into())
    };
    Ok(ProxiedRequest {
        method,
        target,
        host: HOST.iter().find_map(first).or_else(authority),
        proto: first(&PROTO),
        peer,
    })
}

/// Returns the value that these headers have in common, or `None` if all are absent. Returns an
/// error if their values differ.
fn only<'a>(
    headers: &'a HeaderMap,
    names: &'static [HeaderName],
) -> Result<Option<Cow<'a, [u8]>>, Contradiction> {
    let mut values = names.iter().flat_map(|name| headers.get_all(name));
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.any(|value| value != first) {
        return Err(names);
    }
    Ok(Some(first.as_bytes().into()))
}

/// Returns the values of a header, one for each of its lines.
fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Lines<'a> {
    headers
        .get_all(name)
        .iter()
        .map(|line| line.as_bytes().into())
        .collect()
}
