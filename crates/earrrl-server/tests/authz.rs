//! `ANY /v1/authz` as proxies ask it, and as a client that wants to choose its own verdict would.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::Duration;

use support::TestServer;
use support::http::Response;

const RULES: &str = r#"
[client_address]
trusted_proxies = ["127.0.0.1/32"]

[[rule]]
name = "login"
limit = "gcra 0.01/s burst=2"
key = "client"
match = { path = "/login", method = "POST" }

[[rule]]
name = "api"
limit = "gcra 0.01/s burst=3"
key = ["client", "header:x-api-key"]
match = { path = "/api/*" }
"#;

fn ask(server: &TestServer, method: &str, target: &str, headers: &str) -> Response {
    let head = format!("{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n");
    let mut client = server.http();
    client.send(head.as_bytes());
    client.response()
}

fn statuses(server: &TestServer, count: u32, ask: impl Fn(u32) -> Response) -> Vec<u16> {
    let _ = server;
    (0..count).map(|place| ask(place).status).collect()
}

/// A login by this client, as Caddy and Traefik ask about it.
fn login(server: &TestServer, client: &str, more: &str) -> Response {
    let headers = format!(
        "X-Forwarded-Method: POST\r\nX-Forwarded-Uri: /login?next=/\r\n\
         X-Forwarded-For: {client}\r\n{more}"
    );
    ask(server, "GET", "/v1/authz", &headers)
}

#[test]
fn proxies_are_answered_by_headers_alone() {
    let (server, clock) = TestServer::manual(RULES);
    let first = login(&server, "192.0.2.7", "");
    assert_eq!((first.status, first.header("x-ratelimit-action")), (200, Some("allow")));
    assert_eq!(first.header("ratelimit"), Some("\"login\";r=1;t=100"));
    assert!(first.body.is_empty());
    login(&server, "192.0.2.7", "");
    let denied = login(&server, "192.0.2.7", "");
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("100")));
    assert_eq!(denied.header("x-ratelimit-action"), Some("deny"));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["violated-policies"][0], "login");
    assert_eq!(login(&server, "192.0.2.8", "").status, 200, "another client");
    clock.advance(Duration::from_secs(100));
    assert_eq!(login(&server, "192.0.2.7", "").status, 200);
}

#[test]
fn every_method_is_answered_and_bodies_are_not_read() {
    let (server, _) = TestServer::manual(RULES);
    for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"] {
        let headers = "X-Forwarded-Uri: /\r\nContent-Length: 0\r\n";
        let answer = ask(&server, method, "/v1/authz", headers);
        assert_eq!(answer.status, 200, "{method}");
    }
}

#[test]
fn the_denials_status_is_configured() {
    let rules = format!("[authz]\ndeny_status = 403\n{RULES}");
    let (server, _) = TestServer::manual(&rules);
    let seen = statuses(&server, 3, |_| login(&server, "192.0.2.7", ""));
    assert_eq!(seen, [200, 200, 403]);
    let config = earrrl_server::config::Config::parse("[authz]\ndeny_status = 200", "test");
    let error = config.unwrap_err().to_string();
    assert!(error.contains("deny_status: 200 is none of 401, 403, 429, 503"), "{error}");
}

#[test]
fn a_path_appended_to_the_route_is_the_requests() {
    let (server, _) = TestServer::manual(RULES);
    let forged = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Method: GET\r\n\
                  Content-Length: 0\r\n";
    let seen =
        statuses(&server, 3, |_| ask(&server, "POST", "/v1/authz/login?deny_status=200", forged));
    assert_eq!(seen, [200, 200, 429]);
}

/// Each of these is a client's try at another verdict: its third login must not pass.
#[test]
fn nobody_chooses_the_own_verdict() {
    for (target, headers) in [
        ("/v1/authz?deny_status=200&client=6.6.6.6&path=/", ""),
        ("/v1/authz?attributes={\"client\":\"6.6.6.6\"}", ""),
        (
            "/v1/authz",
            "X-RateLimit-Action: allow\r\nX-Real-Ip: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n",
        ),
        ("/v1/authz", "X-Forwarded-Host: \",\"path\":\"/\r\nX-Forwarded-Proto: https\"\r\n"),
        ("/v1/authz", "Connection: X-Forwarded-Uri\r\nX-HTTP-Method-Override: GET\r\n"),
        ("/v1/authz", "Client: 6.6.6.6\r\nPath: /\r\nMethod: GET\r\nheader:client: 6.6.6.6\r\n"),
    ] {
        let (server, _) = TestServer::manual(RULES);
        let proxys = "X-Forwarded-Method: POST\r\nX-Forwarded-Uri: /login\r\n";
        let seen = statuses(&server, 3, |place| {
            let client = format!("X-Forwarded-For: 203.0.113.{place}, 192.0.2.7\r\n");
            ask(&server, "GET", target, &format!("{proxys}{client}{headers}"))
        });
        assert!(seen[2] == 429 || seen == [400; 3], "{target} {headers}: {seen:?}");
    }
}

#[test]
fn no_spelling_of_a_path_leads_past_its_rule() {
    for path in [
        "/login",
        "//login",
        "/./login",
        "/a/../login",
        "/%6cogin",
        "/%6Cogin?x",
        "/login?/../x",
        "http://example.org/login",
        "/a/%2e%2e/login",
        "/login#x",
        "/a/%2E%2E//login",
    ] {
        let (server, _) = TestServer::manual(RULES);
        let headers = format!(
            "X-Forwarded-Method: post\r\nX-Forwarded-Uri: {path}\r\nX-Forwarded-For: 192.0.2.7\r\n"
        );
        let seen = statuses(&server, 3, |_| ask(&server, "GET", "/v1/authz", &headers));
        assert_eq!(seen, [200, 200, 429], "{path}");
    }
    let (server, _) = TestServer::manual(RULES);
    let long = format!("X-Forwarded-Uri: /api/{}\r\n", "a".repeat(8000));
    assert_eq!(ask(&server, "GET", "/v1/authz", &long).status, 200);
}

#[test]
fn headers_that_contradict_each_other_are_refused() {
    let (server, _) = TestServer::manual(RULES);
    for headers in [
        "X-Forwarded-Uri: /\r\nX-Forwarded-Uri: /login\r\n",
        "X-Forwarded-Uri: /\r\nX-Original-URI: /login\r\n",
        "X-Forwarded-Method: GET\r\nX-Original-Method: POST\r\n",
    ] {
        let answer = ask(&server, "GET", "/v1/authz", headers);
        assert_eq!(answer.status, 400, "{headers}");
    }
    let same = "X-Forwarded-Uri: /x\r\nX-Original-URI: /x\r\n";
    assert_eq!(ask(&server, "GET", "/v1/authz", same).status, 200);
}

#[test]
fn a_repeated_key_is_no_new_client() {
    let (server, _) = TestServer::manual(RULES);
    let seen = statuses(&server, 4, |place| {
        let headers = format!(
            "X-Forwarded-Uri: /api/x\r\nX-Forwarded-For: 192.0.2.7\r\n\
             X-Api-Key: k\r\nX-Api-Key: forged-{place}\r\n"
        );
        ask(&server, "GET", "/v1/authz", &headers)
    });
    assert_eq!(seen, [200, 200, 200, 429]);
}

#[test]
fn a_client_that_is_only_flagged_does_not_learn_it_from_the_limits() {
    let rules =
        "[[rule]]\nname = \"slow\"\nlimit = \"gcra 0.01/s burst=1\"\naction = \"shadow-ban\"\n";
    let (server, _) = TestServer::manual(rules);
    let seen: Vec<_> = (0..2).map(|_| ask(&server, "GET", "/v1/authz", "")).collect();
    assert_eq!(seen[1].header("x-ratelimit-action"), Some("shadow-ban"));
    assert!(seen.iter().all(|answer| answer.status == 200 && answer.header("ratelimit").is_none()));
}

#[test]
fn where_tokens_are_set_a_proxy_must_show_one() {
    let rules = format!("[server]\ncheck_token = \"0123456789abcdef\"\n{RULES}");
    let (server, _) = TestServer::manual(&rules);
    assert_eq!(login(&server, "192.0.2.7", "").status, 401);
    let token = "Authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(login(&server, "192.0.2.7", token).status, 200);
}
