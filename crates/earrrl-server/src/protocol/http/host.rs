//! Checks the `Host` and the `Origin` of requests. Every request must have one host.
//!
//! If the server requires no token, the host must be one that no web page can have. This prevents DNS rebinding.
//! The owner of a web page can let a domain name of theirs resolve to this machine, so that the visitor's browser
//! sends the page's requests to a server that trusts local clients. The browser sends that domain name as the
//! `Host`.
//!
//! A request that changes something must not come from a page of another site, with or without tokens: the
//! browser names that site as the `Origin`. Programs send no `Origin`.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Version, header};

use crate::protocol::response::Problem;
use crate::server::Server;

/// Checks that the request names exactly one host, and that this server accepts it.
pub(super) fn check<B>(server: &Server, request: &Request<B>) -> Result<(), Problem> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    let more = hosts.next();
    let host = host.map(HeaderValue::as_bytes);
    // The host may also be in the request target: in HTTP/2's `:authority`, or in HTTP/1.1's
    // absolute form.
    let authority = request
        .uri()
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let contradict = authority.is_some_and(|own| host.is_some_and(|host| host != own));
    let host = host.or(authority);
    if more.is_some() || contradict || (host.is_none() && request.version() != Version::HTTP_10) {
        return Err(Problem::new(StatusCode::BAD_REQUEST, "Host: expected one"));
    }
    let host = host
        .and_then(|host| str::from_utf8(host).ok())
        .unwrap_or_default();
    let is_known = |host: &str| {
        let name = without_port(host);
        let mut names = server.config.hosts.iter();
        names.any(|known| known.eq_ignore_ascii_case(name))
    };
    if !request.method().is_safe() && !is_same_origin(request.headers(), host, is_known) {
        let detail = "Origin: expected none, or this server's own: pages of other sites may change nothing; \
                      [server] hosts names further hosts of the server";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    if !server.guards_host || is_open(request.uri().path()) || is_loopback(host) || is_known(host) {
        return Ok(());
    }
    if server.config.is_remote() && is_private(host) {
        return Ok(());
    }
    let detail = "Host: expected localhost or an IP address, since no token is set; [server] hosts names others";
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail))
}

/// Returns true if the request names no origin, the host itself, or a host of this server that `is_known`.
fn is_same_origin(headers: &HeaderMap, host: &str, is_known: impl Fn(&str) -> bool) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    origins.all(|origin| {
        let origin = str::from_utf8(origin.as_bytes()).unwrap_or_default();
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_some_and(|own| own.eq_ignore_ascii_case(host) || is_known(own))
    })
}

/// Returns a host without its port, if it has one.
fn without_port(host: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    }
}

/// Returns true for hosts that no web page on the Internet can have: IP addresses, names without a dot, and names
/// below domains that the Internet does not have.
fn is_private(host: &str) -> bool {
    let name = without_port(host);
    let is_local = ["local", "internal", "svc", "lan"]
        .iter()
        .any(|domain| is_below(name, domain));
    address(name).is_some() || (!name.is_empty() && !name.contains('.')) || is_local
}

/// Returns true if the last part of a name is this domain.
fn is_below(name: &str, domain: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case(domain)
}

/// Returns the IP address that a name is, with or without the brackets of IPv6.
fn address(name: &str) -> Option<IpAddr> {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.parse().ok()
}

/// Returns true for paths that monitors may request under any host name, since they change nothing
/// and reveal no client.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics" | "/healthcheck")
}

fn is_loopback(host: &str) -> bool {
    let name = without_port(host);
    is_below(name, "localhost")
        || address(name).is_some_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_hosts_are_none_of_the_internet() {
        for (host, private) in [
            ("10.0.0.1:8080", true),
            ("[2001:db8::1]:8080", true),
            ("earrrl:8080", true),
            ("earrrl.default.svc", true),
            ("earrrl.default.svc.cluster.local:8080", true),
            ("limits.internal", true),
            ("evil.example", false),
            ("10.0.0.1.evil.example", false),
            ("internal.evil.example:8080", false),
            ("", false),
            (":8080", false),
        ] {
            assert_eq!(is_private(host), private, "{host}");
        }
    }

    #[test]
    fn an_origin_is_that_of_the_host() {
        for (origin, host, same) in [
            (None, "h:1", true),
            (Some("http://h:1"), "h:1", true),
            (Some("https://H:1"), "h:1", true),
            (Some("http://known.example"), "h:1", true),
            (Some("http://h:2"), "h:1", false),
            (Some("http://evil.example"), "h:1", false),
            (Some("http://known.example.evil.example"), "h:1", false),
            (Some("null"), "h:1", false),
            (Some(""), "", false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            }
            let found = is_same_origin(&headers, host, |name| name == "known.example");
            assert_eq!(found, same, "{origin:?}");
        }
    }

    #[test]
    fn only_loopback_names_are_this_machines_own() {
        for (host, own) in [
            ("localhost", true),
            ("localhost:8080", true),
            ("LOCALHOST:8080", true),
            ("app.localhost:80", true),
            ("127.0.0.1:8080", true),
            ("127.8.9.1", true),
            ("[::1]:8080", true),
            ("[::ffff:127.0.0.1]", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("notlocalhost", false),
            ("localhost:8080@evil.example", false),
            ("localhost:8080:8080", false),
            ("10.0.0.1:8080", false),
            ("0.0.0.0", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(is_loopback(host), own, "{host}");
        }
    }
}
