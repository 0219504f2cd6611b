//! `ANY /v1/authz` as proxies ask it, and as a client that wants to choose its own verdict would.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use crate::support::TestServer;
use crate::support::http::Response;
use envoy_types::pb::envoy::config::core::v3::address::Address;
use envoy_types::pb::envoy::config::core::v3::{
    Address as Place, HeaderValueOption, SocketAddress,
};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest, CheckResponse};
use envoy_types::pb::google::protobuf::value::Kind;

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
    assert_eq!(ask(&server, "GET", "/v1/authz/", "").status, 200, "the root");
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

/// A question as Envoy asks it over gRPC: who is connected with it, and the request.
fn check(peer: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> CheckRequest {
    let address = SocketAddress { address: peer.to_owned(), ..SocketAddress::default() };
    let address = Place { address: Some(Address::SocketAddress(address)) };
    let header = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let http = HttpRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        host: "shop.example".to_owned(),
        headers: headers.iter().map(header).collect(),
        ..HttpRequest::default()
    };
    let attributes = AttributeContext {
        source: Some(Peer { address: Some(address), ..Peer::default() }),
        request: Some(Request { http: Some(http), ..Request::default() }),
        ..AttributeContext::default()
    };
    CheckRequest { attributes: Some(attributes) }
}

/// The answers to these questions, in order.
fn checked(server: &TestServer, asked: Vec<CheckRequest>) -> Vec<Result<CheckResponse, i32>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client =
            AuthorizationClient::connect(format!("http://{}", server.grpc)).await.unwrap();
        let mut answers = Vec::new();
        for question in asked {
            let answer = client.check(question).await;
            answers.push(answer.map(|a| a.into_inner()).map_err(|status| status.code().into()));
        }
        answers
    })
}

fn shown(headers: &[HeaderValueOption]) -> Vec<(&str, &str)> {
    let mut shown: Vec<_> = headers.iter().filter_map(|option| option.header.as_ref()).collect();
    shown.sort_by(|a, b| a.key.cmp(&b.key));
    shown.into_iter().map(|header| (header.key.as_str(), header.value.as_str())).collect()
}

#[test]
fn envoy_is_answered_over_grpc_as_others_are() {
    let (server, _) = TestServer::manual(RULES);
    let plain = || check("192.0.2.7", "POST", "/a/%2e%2e/login?deny_status=200", &[]);
    // The proxy before Envoy is believed, and whoever is connected with it directly is not.
    let behind = |client: &str| {
        check("127.0.0.1", "POST", "/login", &[("x-forwarded-for", &format!("6.6.6.6, {client}"))])
    };
    let forged = check(
        "192.0.2.7",
        "POST",
        "/login",
        &[
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-uri", "/"),
            ("x-forwarded-method", "GET"),
            (":path", "/"),
        ],
    );
    let asked = vec![plain(), behind("192.0.2.7"), plain(), forged, behind("192.0.2.8")];
    let answers = checked(&server, asked);
    let codes: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().status.as_ref().unwrap().code)
        .collect();
    assert_eq!(codes, [0, 0, 8, 8, 0]);

    let first = answers[0].as_ref().unwrap();
    let Some(HttpResponse::OkResponse(passed)) = &first.http_response else { panic!("{first:?}") };
    assert_eq!(shown(&passed.headers), [("x-ratelimit-action", "allow")]);
    let to_client = shown(&passed.response_headers_to_add);
    let limits = ("ratelimit", "\"login\";r=1;t=100");
    assert_eq!(to_client, [limits, ("ratelimit-policy", "\"login\";q=2;w=200")]);
    let metadata = first.dynamic_metadata.as_ref().unwrap();
    let text = |name: &str| metadata.fields.get(name).and_then(|value| value.kind.clone());
    assert_eq!(text("rule"), Some(Kind::StringValue("login".into())));
    assert_eq!(text("remaining"), Some(Kind::NumberValue(1.0)));

    // The same verdict as over HTTP, to the byte.
    let denied = answers[2].as_ref().unwrap();
    let Some(HttpResponse::DeniedResponse(denied)) = &denied.http_response else {
        panic!("{denied:?}")
    };
    assert_eq!(denied.status.as_ref().unwrap().code, 429);
    let over_http = login(&server, "192.0.2.7", "");
    assert_eq!((over_http.status, &over_http.body), (429, &denied.body));
    for (name, value) in shown(&denied.headers) {
        assert_eq!(over_http.header(name), Some(value), "{name}");
    }
    assert!(shown(&denied.headers).contains(&("retry-after", "100")));
}

#[test]
fn over_grpc_nonsense_is_refused_and_tokens_are_asked_for() {
    let (server, _) = TestServer::manual(RULES);
    let headless = CheckRequest { attributes: Some(AttributeContext::default()) };
    let answers = checked(&server, vec![CheckRequest::default(), headless]);
    assert!(answers.iter().all(|answer| answer == &Err(3)), "{answers:?}");
    // No address: all such clients are one.
    let nobody = |path: &str| check("", "POST", path, &[]);
    let answers = checked(&server, vec![nobody("/login"), nobody("/login"), nobody("/login")]);
    let codes = answers.iter().map(|answer| answer.as_ref().unwrap().status.as_ref().unwrap().code);
    assert_eq!(codes.collect::<Vec<_>>(), [0, 0, 8]);
    let rules = format!("[server]\ncheck_token = \"0123456789abcdef\"\n{RULES}");
    let (server, _) = TestServer::manual(&rules);
    assert_eq!(checked(&server, vec![nobody("/login")]), [Err(16)]);
}

/// What a client can do to a question itself, where it reaches the route past its proxy: never a
/// verdict that is better than for the plain request.
#[test]
fn garbage_in_questions_is_refused_or_means_nothing() {
    let long = format!("X-Forwarded-Uri: /login?{}\r\n", "a".repeat(8000));
    let proxys = "X-Forwarded-Method: POST\r\nX-Forwarded-For: 192.0.2.7\r\n";
    let uri = "X-Forwarded-Uri: /login\r\n";
    for headers in [
        format!("{proxys}{long}"),
        format!("{proxys}X-Forwarded-Uri: /login\"}},\"path\":\"/\r\n"),
        format!("{proxys}{uri}X-Forwarded-Uri: /\r\n"),
        format!("{proxys}{uri}X-Forwarded-Method: GET\r\n"),
        format!("{proxys}{uri}X-Original-URI: /\r\n"),
        format!("{proxys}{uri}X-Forwarded-Host: a\r\nX-Forwarded-Host: b\r\n"),
        format!("{proxys}{uri}X-A: b\rX-Forwarded-Uri: /\r\n"),
        format!("{proxys}{uri}X-A: b\r\n X-Forwarded-Uri: /\r\n"),
        format!("{proxys}{uri}X-Forwarded-For : 6.6.6.6\r\n"),
        format!("{proxys}{uri}Client: 6.6.6.6\r\nX-Forwarded-Proto: a, b\r\n"),
        format!("{proxys}{uri}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
    ] {
        let (server, _) = TestServer::manual(RULES);
        let seen = statuses(&server, 3, |_| ask(&server, "GET", "/v1/authz", &headers));
        let path_is_another = headers.contains("},");
        assert!(
            seen[2] == 429 || seen[2] == 400 || path_is_another,
            "{:?}: {seen:?}",
            &headers[..headers.len().min(300)]
        );
    }
}
