//! `ANY /v1/authz`: the answer to a proxy that asks about a request before it passes it on: nginx's
//! `auth_request`, Caddy's `forward_auth`, Traefik's `forwardAuth`, Envoy's `ext_authz` over HTTP.
//!
//! What the request is stands in headers that the proxy writes. Nothing is read from the query: it
//! may be the client's own.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::Response;
use earrrl::Mode;

use super::answer;
use super::problem::Problem;
use super::request::{Shared, authorize};
use crate::config::access::Access;
use crate::service::Manner;
use crate::service::attributes::{Attributes, MAX_ATTRIBUTES};

/// The route. A proxy that appends the request's path to it (Envoy's `path_prefix`) needs no headers.
pub(super) const PATH: &str = "/v1/authz";

const METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
const TARGET: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-uri"), HeaderName::from_static("x-original-uri")];
const HOST: [HeaderName; 2] = [HeaderName::from_static("x-forwarded-host"), header::HOST];
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The address that asks; [`super::serve`] puts it into requests to this route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

pub(super) async fn authz(State(server): Shared, request: Request) -> Result<Response, Problem> {
    authorize(&server, request.headers(), Access::Ask)?;
    server.service.metrics.http_requests.increment();
    let started = Instant::now();
    let rules = server.service.rules();
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let pairs = attributes(&request, peer)?;
    let attributes = Attributes::new(pairs, &rules.reading);
    let manner = Manner { mode: Mode::Check, available: true };
    let answer = server.service.ask_matching(&rules, &attributes, manner).await?;
    let older = server.config.x_ratelimit_headers;
    let denied = StatusCode::from_u16(rules.deny_status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let response = answer::authorize(&answer, denied, older);
    server.service.metrics.http_request.record(started.elapsed());
    Ok(response)
}

/// What the request is, by the proxy's headers; what they do not tell, by the question itself.
fn attributes(request: &Request, peer: Option<IpAddr>) -> Result<Vec<Pair<'_>>, Problem> {
    let headers = request.headers();
    let appended = request.uri().path().strip_prefix(PATH).filter(|path| path.starts_with('/'));
    let own = Cow::Borrowed(request.method().as_str());
    let (method, path) = match appended {
        Some(path) => (own, Cow::Borrowed(path)),
        None => {
            let target = only(headers, &TARGET)?;
            (only(headers, &METHOD)?.unwrap_or(own), target.unwrap_or(Cow::Borrowed(PATH)))
        }
    };
    let mut pairs = vec![("method".into(), method), ("path".into(), path)];
    if let Some(peer) = peer {
        pairs.push(("client".into(), peer.to_string().into()));
    }
    if let Some(host) = HOST.iter().find_map(|name| headers.get(name)) {
        pairs.push(("host".into(), String::from_utf8_lossy(host.as_bytes())));
    }
    if let Some(proto) = headers.get(&PROTO) {
        pairs.push(("proto".into(), String::from_utf8_lossy(proto.as_bytes())));
    }
    pairs.extend(headers.keys().map(|name| (format!("header:{name}").into(), line(headers, name))));
    if pairs.len() > MAX_ATTRIBUTES {
        let detail = format!("{} attributes; at most {MAX_ATTRIBUTES}", pairs.len());
        return Err(Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail));
    }
    Ok(pairs)
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
fn line<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Cow<'a, str> {
    let mut lines =
        headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
    let first = lines.next().unwrap_or_default();
    if *name != "x-forwarded-for" {
        return first;
    }
    lines.fold(first, |list, line| format!("{list}, {line}").into())
}
