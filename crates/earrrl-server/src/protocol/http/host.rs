//! Checks the `Host` of requests. Every request must have one. If the server requires no token,
//! `Host` must also be a loopback address or `localhost`.
//!
//! This prevents DNS rebinding. The owner of a web page can let a domain name of theirs resolve to
//! this machine, so that the visitor's browser sends the page's requests to a server that trusts
//! local clients. The browser sends that domain name as the `Host`.

use std::net::{IpAddr, SocketAddr};

use axum::http::uri::Authority;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};

use crate::protocol::response::problem::Problem;
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
    if !server.guards_host || is_open(request.uri().path()) {
        return Ok(());
    }
    if host
        .and_then(|host| str::from_utf8(host).ok())
        .is_some_and(is_loopback)
    {
        return Ok(());
    }
    let detail = "Host: expected localhost or a loopback address, since no token is set";
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail))
}

/// Returns true for paths that monitors may request under any host name, since they change nothing
/// and reveal no client.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics" | "/healthcheck")
}

fn is_loopback(host: &str) -> bool {
    // `localhost`, the most common name, is compared without an allocation.
    if is_localhost(host) {
        return true;
    }
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().to_canonical().is_loopback();
    }
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host().to_ascii_lowercase();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    }
}

/// Returns true for `localhost`, with or without a port.
fn is_localhost(host: &str) -> bool {
    let (name, port) = host.split_once(':').unwrap_or((host, "0"));
    name == "localhost" && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
