//! Tests requests that lack an attribute of a rule's key, under each setting of `missing`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::authz::{check, checked, codes};
use crate::support::TestServer;

/// Returns a server with one rule of this setting, which admits one request of a client.
fn server(missing: &str, action: &str) -> TestServer {
    TestServer::start(&format!(
        "[[rule]]\nname = \"api\"\nlimit = \"gcra 1/h burst=1\"\n\
         key = [\"client\", \"header:x-api-key\"]\n{missing}\naction = \"{action}\"\n"
    ))
}

/// Returns the outcomes of three requests that lack the header, the last with an empty one, and of
/// two that have it.
fn outcomes(server: &TestServer) -> Vec<String> {
    let empty = ",\"header:X-Api-Key\":\"\"";
    let key = ",\"header:X-Api-Key\":\"k\"";
    let ask = |more: &str| {
        let body = format!("{{\"attributes\":{{\"client\":\"192.0.2.7\"{more}}}}}");
        let answer = server.http().post("/v1/check", &body);
        let outcome = answer.json()["action"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert_eq!(
            answer.status,
            if outcome == "deny" { 429 } else { 200 },
            "{outcome}"
        );
        outcome
    };
    ["", "", empty, key, key].map(ask).into()
}

#[test]
fn a_missing_attribute_is_treated_as_configured() {
    for (missing, action, expected) in [
        ("", "deny", ["allow", "deny", "deny", "allow", "deny"]),
        (
            "missing = \"share\"",
            "deny",
            ["allow", "deny", "deny", "allow", "deny"],
        ),
        (
            "missing = \"skip\"",
            "deny",
            ["allow", "allow", "allow", "allow", "deny"],
        ),
        (
            "missing = \"deny\"",
            "deny",
            ["deny", "deny", "deny", "allow", "deny"],
        ),
        (
            "missing = \"deny\"",
            "observe",
            ["allow", "allow", "allow", "allow", "observe"],
        ),
    ] {
        let server = server(missing, action);
        assert_eq!(outcomes(&server), expected, "{missing} {action}");
        let metrics = server.http().get("/metrics").body;
        let counted = "earrrl_missing_attributes_total{rule=\"api\"} 3\n";
        assert!(metrics.contains(counted), "{missing} {action}: {metrics}");
    }
}

#[test]
fn proxies_get_a_denial_for_a_missing_attribute() {
    let server = server("missing = \"deny\"", "deny");
    let answer = server.http().request("GET", "/v1/authz", "", b"");
    assert_eq!(answer.status, 429);
    let answer = server
        .http()
        .request("GET", "/v1/authz", "X-Api-Key: k\r\n", b"");
    assert_eq!(answer.status, 200);
    let envoy = checked(&server, vec![check("192.0.2.7", "GET", "/", &[])]);
    assert_eq!(codes(&envoy), [8]);
}

/// "By user, else by address": a request is under exactly one of two rules, whichever way it has no user.
#[test]
fn a_request_without_a_user_is_under_the_rule_by_address() {
    let rules = |by_address: &str| {
        format!(
            "[client_address]\nhops = 1\n[[rule]]\nname = \"user\"\nlimit = \"gcra 1/h burst=1\"\nkey = \"header:x-user\"\nmissing = \"skip\"\n\
             [[rule]]\nname = \"address\"\nlimit = \"gcra 1/h burst=1\"\n{by_address}\n"
        )
    };
    for by_address in [
        "exempt = { \"header:x-user\" = \"*\" }",
        "match = { \"header:x-user\" = \"\" }",
        "[[rule.override]]\nkey = { \"header:x-user\" = \"*\" }\nlimit = \"gcra 1000/s burst=1000\"",
    ] {
        let server = TestServer::start(&rules(by_address));
        let mut statuses = Vec::new();
        for (client, header) in [
            (1, ""),
            (1, "X-User:\r\n"),
            (2, "X-User:\r\nX-User: \r\n"),
            (2, ""),
            (3, "X-User: ann\r\n"),
            (3, "X-User: ann\r\n"),
        ] {
            let proxied = format!("X-Forwarded-For: 192.0.2.{client}\r\n{header}");
            let answer = server.http().request("GET", "/v1/authz", &proxied, b"");
            statuses.push(answer.status);
        }
        assert_eq!(statuses, [200, 429, 200, 429, 200, 429], "{by_address}");
    }
}

/// The two ways of lacking an attribute are one in every field that names attributes.
#[test]
fn an_empty_attribute_is_an_absent_one() {
    let with = |fields: &str, cost: &str| {
        TestServer::start(&format!(
            "[[rule]]\nname = \"a\"\nlimit = \"gcra 1/h burst=5\"\nkey = \"attribute:team\"\n{cost}\n{fields}\n"
        ))
    };
    for (fields, cost, absent, present) in [
        ("match = { \"attribute:plan\" = \"\" }", "", Some(4), None),
        ("match = { \"attribute:plan\" = \"*\" }", "", None, Some(4)),
        ("exempt = { \"attribute:plan\" = \"\" }", "", None, Some(4)),
        ("exempt = { \"attribute:plan\" = \"*\" }", "", Some(4), None),
        (
            "override = [{ key = { \"attribute:plan\" = \"\" }, limit = \"gcra 1/h burst=9\" }]",
            "",
            Some(8),
            Some(4),
        ),
        (
            "override = [{ key = { \"attribute:plan\" = \"*\" }, limit = \"gcra 1/h burst=9\" }]",
            "",
            Some(4),
            Some(8),
        ),
        ("", "cost = \"attribute:plan\"", Some(4), Some(2)),
    ] {
        let server = with(fields, cost);
        for (team, plan, remaining) in [
            ("a", "", absent),
            ("b", ",\"plan\":\"\"", absent),
            ("c", ",\"plan\":\"3\"", present),
        ] {
            let body = format!("{{\"attributes\":{{\"team\":\"{team}\"{plan}}}}}");
            let answer = server.http().post("/v1/check", &body);
            assert_eq!(
                answer.json()["remaining"].as_u64(),
                remaining,
                "{fields} {plan} {}",
                answer.body
            );
        }
    }
}
