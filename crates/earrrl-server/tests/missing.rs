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
