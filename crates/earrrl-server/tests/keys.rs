//! Tests keys with alternatives, such as a user or else an address, and keys by networks of other lengths.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::explain::explain_under;
use crate::support::TestServer;

const BY_USER: &str = r#"
[client_address]
hops = 1
[[rule]]
name = "api"
limit = "fixed-window 3/1h"
key = "header:x-user | client/24"
exempt = { client = "203.0.113.9" }
[[rule.override]]
key = { "header:x-user" = "ann" }
limit = "fixed-window 9/1h"
[[rule.override]]
key = { client = "198.51.100.7" }
limit = "fixed-window 5/1h"
"#;

/// Asks as a proxy for a client that sends these headers, and returns what is left.
fn left(server: &TestServer, client: &str, headers: &str) -> Option<u64> {
    let headers = format!("X-Forwarded-For: {client}\r\n{headers}");
    let answer = server.http().request("GET", "/v1/authz", &headers, b"");
    let limits = answer.header("ratelimit")?.to_owned();
    let (_, left) = limits.split_once("r=")?;
    left.split(';').next()?.parse().ok()
}

#[test]
fn a_user_or_else_an_address_is_the_client() {
    let server = TestServer::start(BY_USER);
    for (client, headers, expected) in [
        ("192.0.2.1", "", 2),
        ("192.0.2.1", "X-User:\r\n", 1),
        ("192.0.2.99", "X-User:\r\nX-User: \r\n", 0),
        ("192.0.2.1", "X-User: bob\r\n", 2),
        ("192.0.3.1", "X-User: bob\r\n", 1),
        // No name is the client of an address, or the other way round.
        ("192.0.3.1", "X-User: 192.0.2.0/24\r\n", 2),
        ("192.0.3.1", "X-User: client/24=192.0.2.0/24\r\n", 2),
    ] {
        assert_eq!(
            left(&server, client, headers),
            Some(expected),
            "{client} {headers}"
        );
    }
    let two = "X-Forwarded-For: 192.0.2.1\r\nX-User: bob\r\nX-User: eve\r\n";
    let answer = server.http().request("GET", "/v1/authz", two, b"");
    assert_eq!(answer.status, 429, "{}", answer.body);
}

#[test]
fn overrides_are_for_the_clients_that_they_name() {
    let server = TestServer::start(BY_USER);
    assert_eq!(left(&server, "198.51.100.7", "X-User: ann\r\n"), Some(8));
    assert_eq!(left(&server, "198.51.100.8", ""), Some(4));
    // The override by address is not for a user at that address.
    assert_eq!(left(&server, "198.51.100.7", "X-User: bob\r\n"), Some(2));
    assert_eq!(left(&server, "203.0.113.9", ""), None, "exempt");
    let peek = |key: &str| {
        let body = format!("{{\"rule\":\"api\",\"key\":\"{key}\"}}");
        server.http().post("/v1/peek", &body).json()["remaining"].clone()
    };
    for (key, expected) in [
        ("header:x-user=ann", 8),
        ("client/24=198.51.100.0/24", 4),
        ("header:x-user=bob", 2),
        ("header:x-user=198.51.100.0/24", 3),
    ] {
        assert_eq!(peek(key), expected, "{key}");
    }
    let reset = "/v1/clients/api/client%2F24=198.51.100.0%2F24";
    assert_eq!(server.http().request("DELETE", reset, "", b"").status, 204);
    assert_eq!(peek("client/24=198.51.100.0/24"), 5);
    assert_eq!(left(&server, "198.51.100.9", ""), Some(4));
}

#[test]
fn a_network_is_limited_beside_its_addresses() {
    let server = TestServer::start(
        r#"
        [client_address]
        hops = 1
        [[rule]]
        name = "address"
        limit = "fixed-window 2/1h"
        [[rule]]
        name = "network"
        limit = "fixed-window 3/1h"
        key = "client/24,48"
        "#,
    );
    let statuses = |clients: &[&str]| {
        let of = |client: &&str| {
            let header = format!("X-Forwarded-For: {client}\r\n");
            server
                .http()
                .request("GET", "/v1/authz", &header, b"")
                .status
        };
        clients.iter().map(of).collect::<Vec<_>>()
    };
    let ipv4 = [
        "192.0.2.1",
        "192.0.2.1",
        "192.0.2.1",
        "192.0.2.2",
        "192.0.2.3",
        "192.0.3.1",
    ];
    assert_eq!(statuses(&ipv4), [200, 200, 429, 200, 429, 200]);
    let ipv6 = [
        "2001:db8:0:1::1",
        "2001:db8:0:1::2",
        "2001:db8:0:1::3",
        "2001:db8:0:2::1",
        "2001:db8:0:3::1",
    ];
    assert_eq!(statuses(&ipv6), [200, 200, 429, 200, 429]);
}

#[test]
fn an_explanation_shows_what_a_key_becomes() {
    let key = |attributes: &str| {
        let text = explain_under(BY_USER, attributes);
        text.lines().nth(1).unwrap_or_default().trim().to_owned()
    };
    assert_eq!(
        key("client=192.0.2.7 header:x-user=ann"),
        "key: \"header:x-user=ann\""
    );
    assert_eq!(
        key("client=192.0.2.7 header:x-user="),
        "key: \"client/24=192.0.2.0/24\""
    );
    let without = explain_under(BY_USER, "path=/");
    let told = "the request has no `header:x-user | client/24`";
    assert!(without.contains(told), "{without}");
}
