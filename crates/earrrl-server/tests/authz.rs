//! Tests `ANY /v1/authz` with the questions that proxies send, and with those of clients that try
//! to influence their own verdict.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;
use tonic::IntoRequest;

use crate::support::http::Response;
use crate::support::process::BINARY;
use crate::support::{TestServer, grpc};
use earrrl_server::protobuf::authorization::{
    Address, AddressKind, AttributeContext, CheckRequest, CheckResponse, HeaderValueOption,
    HttpRequest, HttpResponse, Peer, Request, SocketAddress,
};
use earrrl_server::protobuf::value::Kind;

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

/// Sends the question that Caddy and Traefik ask about a login by this client.
fn login(server: &TestServer, client: &str, more: &str) -> Response {
    let headers = format!(
        "X-Forwarded-Method: POST\r\nX-Forwarded-Uri: /login?next=/\r\n\
         X-Forwarded-For: {client}\r\n{more}"
    );
    ask(server, "GET", "/v1/authz", &headers)
}

/// A proxy appends the client's address to what the client sent, in a line of its own.
#[test]
fn the_client_is_in_the_header_that_is_configured() {
    for (header, lines) in [
        (
            "forwarded",
            "Forwarded: for=6.6.6.6\r\nForwarded: for=\"192.0.2.7:80\"; proto=https\r\n",
        ),
        ("X-Real-IP", "X-Real-Ip: 192.0.2.7\r\n"),
    ] {
        let setting = format!("[client_address]\nheader = \"{header}\"");
        let (server, _) = TestServer::manual(&RULES.replace("[client_address]", &setting));
        let of = |client: &str| {
            let more = lines.replace("192.0.2.7", client);
            login(&server, "203.0.113.1", &more).status
        };
        let seen: Vec<_> = (0..3).map(|_| of("192.0.2.7")).collect();
        assert_eq!(seen, [200, 200, 429], "{header}");
        assert_eq!(of("192.0.2.8"), 200, "{header}");
    }
}

#[test]
fn proxies_are_answered_by_headers_alone() {
    let (server, clock) = TestServer::manual(RULES);
    let first = login(&server, "192.0.2.7", "");
    assert_eq!(
        (first.status, first.header("x-ratelimit-action")),
        (200, Some("allow"))
    );
    assert_eq!(first.header("ratelimit"), Some("\"login\";r=1;t=100"));
    assert!(first.body.is_empty());
    login(&server, "192.0.2.7", "");
    let denied = login(&server, "192.0.2.7", "");
    assert_eq!(
        (denied.status, denied.header("retry-after")),
        (429, Some("100"))
    );
    assert_eq!(denied.header("x-ratelimit-action"), Some("deny"));
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(denied.json()["violated-policies"][0], "login");
    assert_eq!(
        login(&server, "192.0.2.8", "").status,
        200,
        "another client"
    );
    clock.advance(Duration::from_secs(100));
    assert_eq!(login(&server, "192.0.2.7", "").status, 200);
}

#[test]
fn every_method_is_answered_and_bodies_are_not_read() {
    let (server, _) = TestServer::manual(RULES);
    for method in [
        "GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND",
    ] {
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
    assert!(
        error.contains("deny_status: 200 is none of 401, 403, 429, 503"),
        "{error}"
    );
}

#[test]
fn a_path_appended_to_the_route_is_the_requests() {
    let (server, _) = TestServer::manual(RULES);
    let forged = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Method: GET\r\n\
                  Content-Length: 0\r\n";
    let seen = statuses(&server, 3, |_| {
        ask(&server, "POST", "/v1/authz/login?deny_status=200", forged)
    });
    assert_eq!(seen, [200, 200, 429]);
    assert_eq!(
        ask(&server, "GET", "/v1/authz/", "").status,
        200,
        "the root"
    );
}

/// Each case is an attempt of a client to get another verdict; its third login must be denied.
#[test]
fn nobody_chooses_the_own_verdict() {
    for (target, headers) in [
        ("/v1/authz?deny_status=200&client=6.6.6.6&path=/", ""),
        ("/v1/authz?attributes={\"client\":\"6.6.6.6\"}", ""),
        (
            "/v1/authz",
            "X-RateLimit-Action: allow\r\nX-Real-Ip: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n",
        ),
        (
            "/v1/authz",
            "X-Forwarded-Host: \",\"path\":\"/\r\nX-Forwarded-Proto: https\"\r\n",
        ),
        (
            "/v1/authz",
            "Connection: X-Forwarded-Uri\r\nX-HTTP-Method-Override: GET\r\n",
        ),
        (
            "/v1/authz",
            "Client: 6.6.6.6\r\nPath: /\r\nMethod: GET\r\nheader:client: 6.6.6.6\r\n",
        ),
    ] {
        let (server, _) = TestServer::manual(RULES);
        let proxys = "X-Forwarded-Method: POST\r\nX-Forwarded-Uri: /login\r\n";
        let seen = statuses(&server, 3, |place| {
            let client = format!("X-Forwarded-For: 203.0.113.{place}, 192.0.2.7\r\n");
            ask(
                &server,
                "GET",
                target,
                &format!("{proxys}{client}{headers}"),
            )
        });
        assert!(
            seen[2] == 429 || seen == [400; 3],
            "{target} {headers}: {seen:?}"
        );
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
fn headers_that_contradict_each_other_are_a_denial() {
    let rules = format!("[authz]\ndeny_status = 403\n{RULES}");
    let (server, _) = TestServer::manual(&rules);
    for headers in [
        "X-Forwarded-Uri: /\r\nX-Forwarded-Uri: /login\r\n",
        "X-Forwarded-Uri: /\r\nX-Original-URI: /login\r\n",
        "X-Forwarded-Method: GET\r\nX-Original-Method: POST\r\n",
    ] {
        let answer = ask(&server, "GET", "/v1/authz", headers);
        assert_eq!(
            (answer.status, answer.header("x-ratelimit-action")),
            (403, Some("deny"))
        );
        assert_eq!(answer.json()["status"], 403, "{headers}");
    }
    let same = "X-Forwarded-Uri: /x\r\nX-Original-URI: /x\r\n";
    assert_eq!(ask(&server, "GET", "/v1/authz", same).status, 200);
}

/// The limiter and the application may look at different lines of a header.
#[test]
fn a_repeated_header_that_tells_clients_apart_is_a_denial() {
    let (server, _) = TestServer::manual(
        r#"
        [authz]
        deny_status = 403
        [client_address]
        hops = 1
        [[rule]]
        name = "keys"
        limit = "gcra 1/h burst=5"
        key = "header:x-api-key"
        match = { "header:accept" = "text/*", "header:x-plan" = "free" }
        cost = "header:x-cost"
        max_cost = 5
        "#,
    );
    let usual = "X-Forwarded-Uri: /a\r\nAccept: text/html\r\nX-Plan: free\r\n";
    for (headers, status) in [
        ("X-Api-Key: a\r\n", 200),
        ("X-Api-Key: a\r\nX-Api-Key: a\r\n", 200),
        ("X-Api-Key: a\r\nX-Api-Key: b\r\n", 403),
        ("X-Api-Key: b\r\nx-api-key: a\r\n", 403),
        ("X-Api-Key: a\r\nX-Plan: paid\r\n", 403),
        // These have several lines in the requests of usual clients and proxies.
        ("X-Api-Key: c\r\nX-Cost: 1\r\nX-Cost: 2\r\n", 200),
        ("X-Api-Key: a\r\nAccept: image/png\r\n", 200),
        (
            "X-Api-Key: a\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-For: 192.0.2.8\r\n",
            200,
        ),
    ] {
        let answer = ask(&server, "GET", "/v1/authz", &format!("{usual}{headers}"));
        assert_eq!(answer.status, status, "{headers}");
    }
}

/// Returns the statuses of three logins with these bytes among the headers.
fn logins_with(server: &TestServer, headers: &[u8]) -> [u16; 3] {
    let head = "GET /v1/authz HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-Method: POST\r\n\
                X-Forwarded-Uri: /login\r\nX-Forwarded-For: 192.0.2.7\r\n";
    [(); 3].map(|()| {
        let mut client = server.http();
        client.send(&[head.as_bytes(), headers, b"\r\n"].concat());
        client.response().status
    })
}

/// Each case once made the service return an error, which proxies treat as permission.
#[test]
fn whatever_a_client_sends_gets_a_verdict() {
    let mut cases: Vec<Vec<u8>> = [57, 70, 96]
        .map(|count| {
            (0..count)
                .flat_map(|n| format!("H{n}: v\r\n").into_bytes())
                .collect()
        })
        .into();
    let odd = (1..=0xff).filter(|byte| !matches!(byte, b'\r' | b'\n'));
    cases.extend(odd.map(|byte| vec![b'X', b':', b'a', byte, b'b', b'\r', b'\n']));
    for (count, length) in [(3, 6_000), (4, 4_000), (1, 60_000)] {
        let header = format!("X-Long: {}\r\n", "v".repeat(length));
        cases.push(header.repeat(count).into_bytes());
    }
    cases.push(b"Host: b.example\r\nHost: c.example\r\n".to_vec());
    let query = format!("X-Original-URI: /login?{}\r\n", "q".repeat(50_000));
    cases.push(query.replace("X-Original-URI", "X-Query").into_bytes());
    for headers in cases {
        let (server, _) = TestServer::manual(RULES);
        let shown = String::from_utf8_lossy(&headers[..headers.len().min(100)]).into_owned();
        assert_eq!(logins_with(&server, &headers), [200, 200, 429], "{shown:?}");
    }
}

/// The bytes of a body must never be read as a request.
#[test]
fn many_fields_after_another_request_are_no_request_of_their_own() {
    let (server, _) = TestServer::manual(RULES);
    let inner = "GET /v1/authz HTTP/1.1\r\nHost: a\r\n";
    let fields: String = (0..200).map(|n| format!("H{n}: v\r\n")).collect();
    let mut client = server.http();
    client.send(b"POST /v1/authz HTTP/1.1\r\nHost: a\r\nContent-Length: 34\r\n\r\nGET");
    assert_eq!(client.response().status, 200);
    client.send(format!("{}{inner}{fields}\r\n", "x".repeat(31)).as_bytes());
    let rest = String::from_utf8_lossy(&client.rest()).into_owned();
    assert!(
        rest.is_empty() || rest.starts_with("HTTP/1.1 429 "),
        "{rest}"
    );
}

#[test]
fn a_head_beyond_the_bounds_is_a_denial() {
    let rules = format!("[authz]\ndeny_status = 403\n{RULES}");
    let (server, _) = TestServer::manual(&rules);
    let many: String = (0..97).map(|n| format!("H{n}: v\r\n")).collect();
    let long = format!("X: {}\r\n", "v".repeat(80_000));
    for headers in [many, long] {
        assert_eq!(logins_with(&server, headers.as_bytes()), [403; 3]);
    }
    let answer = ask(&server, "GET", "/v1/authz", &"A: b\r\n".repeat(101));
    assert_eq!(answer.header("x-ratelimit-action"), Some("deny"));
    assert_eq!(answer.json()["title"], "Forbidden");
}

/// Returns how many requests to `/api/x` with this header are allowed before one is denied.
fn allowed_with(server: &TestServer, header: &[u8]) -> usize {
    let head = "GET /v1/authz HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.7\r\n\
                X-Forwarded-Uri: /api/x\r\nX-Api-Key: ";
    let one = || {
        let mut client = server.http();
        client.send(&[head.as_bytes(), header, b"\r\n\r\n"].concat());
        client.response().status
    };
    (0..9).take_while(|_| one() == 200).count()
}

#[test]
fn keys_of_any_length_and_any_bytes_are_counted_apart() {
    let (server, _) = TestServer::manual(RULES);
    let long = |last: u8| [vec![b'k'; 20_000], vec![last]].concat();
    for key in [
        &b"\xff"[..],
        b"\xfe",
        b"\xef\xbf\xbd",
        b"a\x01",
        b"a\x02",
        &long(b'a'),
        &long(b'b'),
        &[b'k'; 4096],
    ] {
        assert_eq!(
            allowed_with(&server, key),
            3,
            "{:?}",
            key.escape_ascii().to_string().get(..9)
        );
        assert_eq!(allowed_with(&server, key), 0);
    }
    // The same client must be known by its key over another protocol, too.
    let key = format!(
        "9:192.0.2.7,20001:{},",
        String::from_utf8(long(b'a')).unwrap()
    );
    let body = format!("{{\"rule\":\"api\",\"key\":\"{key}\"}}");
    assert_eq!(server.http().post("/v1/check", &body).status, 429);
}

#[test]
fn a_cost_that_is_none_counts_as_the_greatest() {
    let rules = "[[rule]]\nname = \"tokens\"\nlimit = \"gcra 0.01/s burst=10\"\n\
                 cost = \"attribute:header:x-cost\"\nmax_cost = 4\n";
    for cost in [
        "x",
        "-1",
        "NaN",
        "inf",
        "1e400",
        "5",
        "1e3",
        "99999999999999999999",
        "\u{e9}",
    ] {
        let (server, _) = TestServer::manual(rules);
        let headers = format!("X-Cost: {cost}\r\n");
        let seen = statuses(&server, 3, |_| ask(&server, "GET", "/v1/authz", &headers));
        assert_eq!(seen, [200, 200, 429], "{cost}");
        let metrics = server.http().get("/metrics").body;
        let invalid = if ["5", "1e3"].contains(&cost) { 0 } else { 3 };
        let counted = format!("earrrl_invalid_costs_total{{rule=\"tokens\"}} {invalid}\n");
        assert!(metrics.contains(&counted), "{cost}: {metrics}");
    }
    // An empty header is as good as none, and `1e0` is a number.
    for cost in ["", "1e0", "1"] {
        let (server, _) = TestServer::manual(rules);
        let headers = format!("X-Cost: {cost}\r\n");
        let seen = statuses(&server, 11, |_| ask(&server, "GET", "/v1/authz", &headers));
        assert_eq!(
            seen.iter().filter(|status| **status == 200).count(),
            10,
            "{cost}"
        );
    }
    // Without max_cost such a request never passes, since the limit's own greatest cost is above its quota.
    let (server, _) = TestServer::manual(&rules.replace("max_cost = 4\n", ""));
    assert_eq!(
        ask(&server, "GET", "/v1/authz", "X-Cost: x\r\n").status,
        429
    );
}

/// A cost that the client names can be zero only if the operator allows that.
#[test]
fn a_cost_is_at_least_the_smallest_and_of_several_the_largest() {
    let allowed = |min: &str, headers: &str| {
        let rules = format!(
            "[[rule]]\nname = \"tokens\"\nlimit = \"gcra 0.01/s burst=8\"\n\
             cost = \"attribute:header:x-cost\"\nmax_cost = 4\n{min}\n"
        );
        let (server, _) = TestServer::manual(&rules);
        let is_allowed = |_: &u32| ask(&server, "GET", "/v1/authz", headers).status == 200;
        (0..20).take_while(is_allowed).count()
    };
    for (min, headers, count) in [
        ("", "", 8),
        ("", "X-Cost: 0\r\n", 8),
        ("", "X-Cost: 0.000000001\r\n", 8),
        ("", "X-Cost: -0\r\n", 2),
        ("", "X-Cost: 1, 0\r\n", 2),
        ("", "X-Cost: 0\r\nX-Cost: 2\r\n", 4),
        ("", "X-Cost: 2\r\nX-Cost: 0\r\nX-Cost: 1\r\n", 4),
        ("", "X-Cost: 0\r\nX-Cost: nothing\r\n", 2),
        ("min_cost = 2", "X-Cost: 0\r\n", 4),
        ("min_cost = 2", "", 4),
        ("min_cost = 0.5", "X-Cost: 0.1\r\n", 16),
        ("min_cost = 0", "X-Cost: 0\r\n", 20),
    ] {
        assert_eq!(allowed(min, headers), count, "{min} {headers:?}");
    }
}

/// More rules match than one decision can contain, so they are judged by several, still all or nothing.
#[test]
fn more_rules_than_one_decision_takes_are_all_or_nothing() {
    let rule = |n: u32, burst: u32| {
        format!(
            "[[rule]]\nname = \"r{n}\"\nlimit = \"gcra 0.01/s burst={burst}\"\n\
             match = {{ path = \"/api/*\" }}\n"
        )
    };
    let rules: String = (0..70)
        .map(|n| rule(n, if n == 69 { 2 } else { 9 }))
        .collect();
    let (server, _) = TestServer::manual(&rules);
    let seen = statuses(&server, 4, |_| {
        ask(&server, "GET", "/v1/authz", "X-Forwarded-Uri: /api/x\r\n")
    });
    assert_eq!(seen, [200, 200, 429, 429]);
    let peek = server
        .http()
        .post("/v1/peek", "{\"rule\":\"r0\",\"key\":\"127.0.0.1\"}");
    assert_eq!(peek.json()["remaining"], 7, "the denials cost nothing");
    let denied = ask(&server, "GET", "/v1/authz", "X-Forwarded-Uri: /api/x\r\n").json();
    assert_eq!(denied["violated-policies"], serde_json::json!(["r69"]));
}

#[test]
fn passing_without_a_verdict_is_counted() {
    let rules = format!("[server]\ncheck_token = \"0123456789abcdef\"\n{RULES}");
    let (server, _) = TestServer::manual(&rules);
    let passed = || server.http().get("/readyz").json()["passed_without_verdict"].clone();
    assert_eq!(passed()["refused"], 0);
    login(&server, "192.0.2.7", "");
    assert_eq!(passed()["refused"], 1);
    let metrics = server.http().get("/metrics").body;
    assert!(
        metrics.contains("earrrl_unjudged_total{reason=\"refused\"} 1"),
        "{metrics}"
    );
}

#[test]
fn a_client_that_is_only_flagged_does_not_learn_it_from_the_limits() {
    let rules =
        "[[rule]]\nname = \"slow\"\nlimit = \"gcra 0.01/s burst=1\"\naction = \"shadow-ban\"\n";
    let (server, _) = TestServer::manual(rules);
    let seen: Vec<_> = (0..2)
        .map(|_| ask(&server, "GET", "/v1/authz", ""))
        .collect();
    assert_eq!(seen[1].header("x-ratelimit-action"), Some("shadow-ban"));
    assert!(
        seen.iter()
            .all(|answer| answer.status == 200 && answer.header("ratelimit").is_none())
    );
}

#[test]
fn a_delay_is_a_header() {
    let rules = "[[rule]]\nname = \"slow\"\nlimit = \"gcra 2/s burst=1\"\n\
                 action = \"delay\"\nmax_delay = \"5s\"\n";
    let (server, _) = TestServer::manual(rules);
    let seen: Vec<_> = (0..2)
        .map(|_| ask(&server, "GET", "/v1/authz", ""))
        .collect();
    assert_eq!(seen[0].header("x-ratelimit-delay"), None);
    assert_eq!(
        (seen[1].status, seen[1].header("x-ratelimit-delay")),
        (200, Some("0.5"))
    );
}

#[test]
fn config_check_warns_of_delays_that_proxies_do_not_make() {
    let rule = "[[rule]]\nname = \"slow\"\nlimit = \"gcra 2/s burst=1\"\n\
                action = \"delay\"\nmax_delay = \"5s\"\n";
    let warning = |before: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{before}{rule}")).unwrap();
        let mut check = std::process::Command::new(BINARY);
        let output = check
            .args(["config", "check"])
            .arg(file.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(warning(""), "");
    for settings in [
        "[authz]\ndeny_status = 403\n",
        "[client_address]\nhops = 1\n",
    ] {
        let warning = warning(settings);
        assert!(
            warning.starts_with("warning: slow: action = \"delay\""),
            "{warning}"
        );
        assert!(warning.contains("X-RateLimit-Delay"), "{warning}");
    }
}

#[test]
fn a_denied_grpc_call_has_the_status_that_is_not_tried_again() {
    let (server, _) = TestServer::manual(RULES);
    let kind = "Content-Type: application/grpc+proto\r\n";
    let seen: Vec<_> = (0..3).map(|_| login(&server, "192.0.2.7", kind)).collect();
    assert_eq!(seen[0].header("grpc-status"), None);
    assert_eq!(seen[2].header("grpc-status"), Some("8"));
    assert_eq!(login(&server, "192.0.2.7", "").header("grpc-status"), None);
}

#[test]
fn where_tokens_are_set_a_proxy_must_show_one() {
    let rules = format!("[server]\ncheck_token = \"0123456789abcdef\"\n{RULES}");
    let (server, _) = TestServer::manual(&rules);
    assert_eq!(login(&server, "192.0.2.7", "").status, 401);
    let token = "Authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(login(&server, "192.0.2.7", token).status, 200);
}

/// Returns a question as Envoy sends it over gRPC, with the address of the peer and the request.
pub(crate) fn check(
    peer: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> CheckRequest {
    let address = SocketAddress {
        address: peer.to_owned(),
    };
    let address = Address {
        address: Some(AddressKind::Socket(address)),
    };
    let header = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).into());
    let http = HttpRequest {
        method: method.into(),
        path: path.into(),
        host: "shop.example".into(),
        headers: headers.iter().map(header).collect(),
        ..HttpRequest::default()
    };
    let attributes = AttributeContext {
        source: Some(Peer {
            address: Some(address),
        }),
        request: Some(Request { http: Some(http) }),
    };
    CheckRequest {
        attributes: Some(attributes),
    }
}

/// Returns the answers to these questions, in order.
pub(crate) fn checked(
    server: &TestServer,
    asked: Vec<impl IntoRequest<CheckRequest>>,
) -> Vec<Result<CheckResponse, i32>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let channel = grpc::connect(server.grpc).await;
        let mut answers = Vec::new();
        for question in asked {
            let method = "/envoy.service.auth.v3.Authorization/Check";
            let answer =
                grpc::call::<CheckRequest, CheckResponse>(&channel, method, question).await;
            answers.push(answer.map_err(|status| status.code().into()));
        }
        answers
    })
}

fn shown(headers: &[HeaderValueOption]) -> Vec<(&str, &str)> {
    let mut shown: Vec<_> = headers
        .iter()
        .filter_map(|option| option.header.as_ref())
        .collect();
    shown.sort_by(|a, b| a.key.cmp(&b.key));
    shown
        .into_iter()
        .map(|header| (&*header.key, &*header.value))
        .collect()
}

#[test]
fn envoy_is_answered_over_grpc_as_others_are() {
    let (server, _) = TestServer::manual(RULES);
    let plain = || check("192.0.2.7", "POST", "/a/%2e%2e/login?deny_status=200", &[]);
    // A trusted proxy in front of Envoy names the client. A client that is connected to Envoy
    // directly must not be able to name another.
    let behind = |client: &str| {
        check(
            "127.0.0.1",
            "POST",
            "/login",
            &[("x-forwarded-for", &format!("6.6.6.6, {client}"))],
        )
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
    let asked = vec![
        plain(),
        behind("192.0.2.7"),
        plain(),
        forged,
        behind("192.0.2.8"),
    ];
    let answers = checked(&server, asked);
    let codes: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().status.as_ref().unwrap().code)
        .collect();
    assert_eq!(codes, [0, 0, 8, 8, 0]);

    let first = answers[0].as_ref().unwrap();
    let Some(HttpResponse::Ok(passed)) = &first.http_response else {
        panic!("{first:?}")
    };
    assert_eq!(shown(&passed.headers), [("x-ratelimit-action", "allow")]);
    let to_client = shown(&passed.response_headers_to_add);
    let limits = ("ratelimit", "\"login\";r=1;t=100");
    assert_eq!(
        to_client,
        [limits, ("ratelimit-policy", "\"login\";q=2;w=200")]
    );
    let metadata = first.dynamic_metadata.as_ref().unwrap();
    let text = |name: &str| {
        metadata
            .fields
            .get(name)
            .and_then(|value| value.kind.clone())
    };
    assert_eq!(text("rule"), Some(Kind::StringValue("login".into())));
    assert_eq!(text("remaining"), Some(Kind::NumberValue(1.0)));

    // The verdict must equal the one over HTTP byte for byte.
    let denied = answers[2].as_ref().unwrap();
    let Some(HttpResponse::Denied(denied)) = &denied.http_response else {
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
fn over_grpc_whatever_a_client_sends_gets_a_verdict() {
    let long = "v".repeat(5_000);
    let target = format!("/login?{}", "q".repeat(60_000));
    let many: Vec<(String, String)> = (0..5_000)
        .map(|n| (format!("h{n}"), long.clone()))
        .take(700)
        .collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    for (path, headers) in [("/login", &many[..]), (&*target, &[])] {
        let (server, _) = TestServer::manual(RULES);
        let asked = (0..3)
            .map(|_| check("192.0.2.7", "POST", path, headers))
            .collect();
        assert_eq!(codes(&checked(&server, asked)), [0, 0, 8]);
    }
    let (server, _) = TestServer::manual(RULES);
    let headers = [("x-api-key", &*long)];
    let asked = (0..4)
        .map(|_| check("192.0.2.7", "GET", "/api/x", &headers))
        .collect();
    assert_eq!(codes(&checked(&server, asked)), [0, 0, 0, 8]);
}

pub(crate) fn codes(answers: &[Result<CheckResponse, i32>]) -> Vec<i32> {
    let code = |answer: &Result<CheckResponse, i32>| {
        answer.as_ref().unwrap().status.as_ref().unwrap().code
    };
    answers.iter().map(code).collect()
}

#[test]
fn over_grpc_nonsense_is_refused_and_tokens_are_asked_for() {
    let (server, _) = TestServer::manual(RULES);
    let headless = CheckRequest {
        attributes: Some(AttributeContext::default()),
    };
    let answers = checked(&server, vec![CheckRequest::default(), headless]);
    assert!(
        answers.iter().all(|answer| answer == &Err(3)),
        "{answers:?}"
    );
    // All clients without an address share one key.
    let nobody = |path: &str| check("", "POST", path, &[]);
    let answers = checked(
        &server,
        vec![nobody("/login"), nobody("/login"), nobody("/login")],
    );
    let codes = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().status.as_ref().unwrap().code);
    assert_eq!(codes.collect::<Vec<_>>(), [0, 0, 8]);
    let large = nobody(&format!("/{}", "a".repeat(5 << 20)));
    let denied = checked(&server, vec![large]).remove(0).unwrap();
    assert_eq!(
        denied.status.unwrap().code,
        8,
        "Envoy passes a request on after an error"
    );
    let rules = format!("[server]\ncheck_token = \"0123456789abcdef\"\n{RULES}");
    let (server, _) = TestServer::manual(&rules);
    assert_eq!(checked(&server, vec![nobody("/login")]), [Err(16)]);
}

/// A client that reaches the route without its proxy can send any question. It must never get a
/// better verdict than for the plain request.
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
