//! Tests that the OpenAPI document describes every route, and every answer of the golden exchanges.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::support::TestServer;
use serde_json::Value;

const RULE: &str = "[[rule]]\nname = \"api\"\nlimit = \"recent-average 1/s half-life=10s\"\n";

fn document(server: &TestServer) -> Value {
    let response = server.http().get("/openapi.json");
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, Some("application/json"))
    );
    response.json()
}

/// Returns the schema that a reference points to, or the schema itself if it is no reference.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(path) => resolve(document, document.pointer(&path[1..]).unwrap()),
        None => schema,
    }
}

/// Checks that an answer has no undescribed property, and all required ones.
fn conforms(document: &Value, schema: &Value, answer: &Value) {
    let schema = resolve(document, schema);
    let mut parts = vec![schema];
    if let Some(all) = schema["allOf"].as_array() {
        parts = all.iter().map(|part| resolve(document, part)).collect();
    }
    for part in &parts {
        for name in part["required"].as_array().unwrap() {
            assert!(
                answer.get(name.as_str().unwrap()).is_some(),
                "{name} is missing: {answer}"
            );
        }
    }
    for name in answer.as_object().unwrap().keys() {
        assert!(
            parts
                .iter()
                .any(|part| part["properties"].get(name).is_some()),
            "{name}: {answer}"
        );
    }
}

#[test]
fn every_documented_route_answers_as_documented() {
    let server = TestServer::start(RULE);
    let document = document(&server);
    let mut client = server.http();
    let json = "Content-Type: application/json\r\n";
    let one = r#"{"rule":"api","key":"k","cost":1}"#;
    let all = r#"{"rules":[{"rule":"api","key":"k","cost":100}]}"#;
    let requests = [
        ("/v1/check", "post", "/v1/check", one),
        ("/v1/check", "post", "/v1/check", all),
        ("/v1/check", "post", "/v1/check", all),
        (
            "/v1/check",
            "post",
            "/v1/check",
            r#"{"rule":"apu","key":"k"}"#,
        ),
        (
            "/v1/check",
            "post",
            "/v1/check",
            r#"{"attributes":{"client":"192.0.2.7"}}"#,
        ),
        (
            "/v1/check/batch",
            "post",
            "/v1/check/batch",
            r#"{"checks":[]}"#,
        ),
        ("/v1/peek", "post", "/v1/peek", one),
        ("/v1/charge", "post", "/v1/charge", one),
        ("/v1/authz", "get", "/v1/authz", ""),
        ("/v1/refund", "post", "/v1/refund", one),
        ("/v1/refund", "post", "/v1/refund", "[]"),
        (
            "/v1/reserve",
            "post",
            "/v1/reserve",
            r#"{"rule":"api","key":"new","cost":1}"#,
        ),
        (
            "/v1/reserve",
            "post",
            "/v1/reserve",
            r#"{"rules":[{"rule":"api","key":"new"}]}"#,
        ),
        (
            "/v1/reserve",
            "post",
            "/v1/reserve",
            r#"{"rule":"api","key":"k"}"#,
        ),
        (
            "/v1/commit",
            "post",
            "/v1/commit",
            r#"{"reservation":"0123456789abcdef0123456789abcdef"}"#,
        ),
        (
            "/v1/renew",
            "post",
            "/v1/renew",
            r#"{"reservation":"0123456789abcdef0123456789abcdef","ttl":9}"#,
        ),
        ("/v1/clients/{rule}/{key}", "get", "/v1/clients/api/k", ""),
        (
            "/v1/clients/{rule}/{key}",
            "delete",
            "/v1/clients/api/k",
            "",
        ),
        (
            "/v1/overrides/{rule}/{key}",
            "put",
            "/v1/overrides/api/k",
            r#"{"limit":"gcra 1/s burst=1"}"#,
        ),
        (
            "/v1/overrides/{rule}/{key}",
            "get",
            "/v1/overrides/api/k",
            "",
        ),
        ("/v1/overrides", "get", "/v1/overrides?rule=api", ""),
        (
            "/v1/overrides/{rule}/{key}",
            "delete",
            "/v1/overrides/api/k",
            "",
        ),
        ("/v1/rules", "get", "/v1/rules", ""),
        ("/v1/top", "get", "/v1/top?rule=api", ""),
        ("/v1/top", "get", "/v1/top?rule=api&limit=0", ""),
        ("/v1/rates", "get", "/v1/rates?rule=api&above=1", ""),
        ("/openapi.json", "get", "/openapi.json", ""),
        ("/healthz", "get", "/healthz", ""),
        ("/readyz", "get", "/readyz", ""),
        ("/metrics", "get", "/metrics", ""),
    ];
    for (route, method, path, body) in requests {
        let response = client.request(&method.to_uppercase(), path, json, body.as_bytes());
        let answers = &document["paths"][route][method]["responses"];
        let answer = &answers[response.status.to_string()];
        assert!(
            !answer.is_null(),
            "{method} {path}: {} is not documented",
            response.status
        );
        let Some(kind) = response.header("content-type") else {
            continue;
        };
        let schema = &answer["content"][kind.split(';').next().unwrap()]["schema"];
        assert!(
            !schema.is_null(),
            "{method} {path}: {kind} is not documented"
        );
        if kind.ends_with("json") && route != "/openapi.json" {
            conforms(&document, schema, &response.json());
        }
    }
    let documented = document["paths"].as_object().unwrap();
    let missing = documented
        .keys()
        .find(|path| !requests.iter().any(|(route, ..)| route == path));
    assert_eq!(missing, None, "documented and not tried");
}

/// The document describes the routes and the authentication of this server's configuration.
#[test]
fn the_document_is_this_servers() {
    let open = document(&TestServer::start(""));
    assert!(open.get("security").is_none() && open["paths"].get("/metrics").is_some());
    let closed = "[server]\ncheck_token = \"0123456789abcdef\"\nadmin = \"127.0.0.1:0\"\n";
    let closed = document(&TestServer::start(closed));
    assert!(closed.get("security").is_some() && closed["paths"].get("/metrics").is_none());
    for method in [
        "get", "put", "post", "delete", "options", "head", "patch", "trace",
    ] {
        assert!(open["paths"]["/v1/authz"].get(method).is_some(), "{method}");
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document(&TestServer::start(""));
    fn walk(document: &Value, value: &Value) {
        resolve(document, value);
        match value {
            Value::Object(members) => members.values().for_each(|member| walk(document, member)),
            Value::Array(items) => items.iter().for_each(|item| walk(document, item)),
            _ => {}
        }
    }
    walk(&document, &document);
}
