//! Tests the rate limit service with a real Envoy, and with a gRPC client.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::Command;

use crate::support::envoy::Envoy;
use crate::support::http::Client;
use crate::support::{TestServer, installed, testdata, until};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earrrl_server::protobuf::value::Kind;
use earrrl_server::protobuf::{Struct, Value};
use prost::Message as _;

const TOKEN: &str = "check-token-0123456789";

#[test]
fn an_independent_client_is_answered() {
    let server = TestServer::with_descriptors(&format!("[server]\ncheck_token = \"{TOKEN}\""));
    let script = testdata("../crates/earrrl-server/tests/clients/envoy.py");
    let port = server.grpc.port().to_string();
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", installed("python"));
    let output = python.arg(script).args([&port, TOKEN]).output();
    let output = output.unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(out.trim(), "good", "{err}");
    let metrics = server.http().request("GET", "/metrics", "", b"").body;
    assert!(
        metrics.contains("earrrl_failed_logins_total 1"),
        "{metrics}"
    );
}

/// Every line of the filter and its cluster in docs/envoy.md is one of the configuration that the tests run. A busy
/// machine needs another timeout, so a second Envoy starts with the one of the page.
#[test]
fn the_filter_of_the_documentation_is_accepted() {
    let page = std::fs::read_to_string(testdata("../docs/envoy.md")).unwrap();
    let (_, section) = page.split_once("\n## Envoy\n").unwrap();
    let (_, block) = section.split_once("```yaml\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let block = block.replace("port_value: 8081", "port_value: GRPC");
    let lines = block
        .lines()
        .map(|line| line.split('#').next().unwrap().trim());
    let (timeouts, others): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("timeout"));
    let tested = std::fs::read_to_string(testdata("envoy/proxy.yaml")).unwrap();
    for line in &others {
        assert!(tested.contains(line), "{line}");
    }
    assert_eq!((timeouts.len(), others.len()), (1, 22), "{block}");
    assert!(tested.contains("timeout: 30s"));
    let server = TestServer::with_descriptors("");
    drop(Envoy::start_with(server.grpc, |text| {
        text.replace("timeout: 30s", timeouts[0])
    }));
}

#[test]
fn envoy_obeys() {
    let server = TestServer::with_descriptors("");
    let envoy = Envoy::start(server.grpc);
    let mut client = envoy.client();
    let mut get = |headers: &str| client.request("GET", "/", headers, b"");
    for remaining in (0..20).rev() {
        let answer = get("x-user: alice\r\n");
        assert_eq!(answer.status, 200, "{answer:?}");
        let left = answer.header("x-ratelimit-remaining");
        assert_eq!(left, Some(remaining.to_string().as_str()), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-reset"), Some("60"), "{answer:?}");
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some("\"default\";q=20;w=60")
        );
    }
    let answer = get("x-user: alice\r\n");
    assert_eq!(
        (answer.status, answer.header("x-envoy-ratelimited")),
        (429, Some("true"))
    );
    assert_eq!(get("x-user: bob\r\n").status, 200);
    // A quarantined client is let through, and the application is informed by a header.
    let actions = (0..2000).map(|_| get("x-abuser: mallory\r\n"));
    let actions: Vec<_> = actions
        .map(|answer| answer.header("x-action").map(str::to_owned))
        .collect();
    assert_ne!(actions[0].as_deref(), Some("quarantine"));
    assert_eq!(actions[1999].as_deref(), Some("quarantine"));
}

/// Envoy takes the limit of a tenant's plan from dynamic metadata, which another filter has set: here,
/// from a header.
#[test]
fn limits_that_envoy_brings_are_compared_with_one_count() {
    let server = TestServer::with_descriptors("");
    let envoy = Envoy::start_with(server.grpc, |text| {
        let ask = "                  - name: envoy.filters.http.ratelimit\n";
        let plan = r#"                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - header: x-plan
                          on_header_present: {metadata_namespace: plan, key: limit, type: PROTOBUF_VALUE, encode: BASE64}
"#;
        let user = "                              - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]\n";
        let tenant = r#"                              - actions: [{request_headers: {header_name: x-tenant, descriptor_key: tenant-id}}]
                                limit: {dynamic_metadata: {metadata_key: {key: plan, path: [{key: limit}]}}}
"#;
        assert!(text.contains(ask) && text.contains(user), "{text}");
        let text = text.replacen(ask, &format!("{plan}{ask}"), 1);
        text.replacen(user, &format!("{tenant}{user}"), 1)
    });
    let mut client = envoy.client();
    let mut get = |tenant: &str, requests: u32| {
        let fields = [
            (
                "requests_per_unit".to_owned(),
                Kind::NumberValue(requests.into()),
            ),
            ("unit".to_owned(), Kind::StringValue("YEAR".to_owned())),
        ];
        let fields = fields.map(|(name, kind)| (name, Value { kind: Some(kind) }));
        let limit = Kind::StructValue(Struct {
            fields: fields.into_iter().collect(),
        });
        let plan = STANDARD.encode(Value { kind: Some(limit) }.encode_to_vec());
        let headers = format!("x-tenant: {tenant}\r\nx-plan: {plan}\r\n");
        client.request("GET", "/", &headers, b"").status
    };
    assert_eq!([(); 4].map(|()| get("a", 3)), [200, 200, 200, 429]);
    assert_eq!([(); 2].map(|()| get("a", 4)), [200, 429], "one more");
    let changing: Vec<_> = (5..25).map(|requests| get("b", requests)).collect();
    assert_eq!(changing, [200; 20]);
    let changing: Vec<_> = (1..=20).map(|requests| get("b", requests)).collect();
    assert_eq!(changing, [429; 20]);
}

/// Each of these values once made the service return an error, upon which Envoy let the client
/// pass.
#[test]
fn values_of_any_length_and_any_bytes_are_limited() {
    let server = TestServer::with_descriptors("");
    let envoy = Envoy::start(server.grpc);
    let long = [b'v'; 5_000];
    for value in [&b"\xff\xfe"[..], b"\xff", b"caf\xe9", &long] {
        let mut client = envoy.client();
        let request = [b"GET / HTTP/1.1\r\nHost: a\r\nx-user: ", value, b"\r\n\r\n"].concat();
        for expected in [200; 20].into_iter().chain([429; 2]) {
            client.send(&request);
            assert_eq!(
                client.response().status,
                expected,
                "{}",
                value.escape_ascii()
            );
        }
    }
}

/// Checks before each request, charges the real number of tokens afterwards, and refunds the
/// excess: the balance must be exact.
#[test]
fn tokens_are_billed_to_the_last_one() {
    const REQUESTS: u64 = 10_000;
    let server = TestServer::with_descriptors("");
    let envoy = Envoy::start(server.grpc);
    let mut client = envoy.client();
    let mut billed = 0;
    for number in 0..REQUESTS {
        let tokens = number % 977;
        let headers = format!("x-team: big\r\nx-tokens: {tokens}\r\n");
        let answer = client.request("GET", "/tokens", &headers, b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        billed += tokens;
    }
    let remaining = |team: &str, own: &str| {
        let entries = format!("[{{\"key\":\"team\",\"value\":\"{team}\"}}]");
        let descriptor = format!("{{\"entries\":{entries},{own}}}");
        let body = format!("{{\"domain\":\"shop\",\"descriptors\":[{descriptor}]}}");
        let answer = server.http().post("/json", &body);
        answer.json()["statuses"][0]["limitRemaining"]
            .as_u64()
            .unwrap_or(0)
    };
    let ask = "\"hitsAddend\":\"0\"";
    until("every bill has come", || {
        remaining("big", ask) == 4_000_000_000 - billed
    });
    let back = "\"hitsAddend\":\"1234\",\"isNegativeHits\":true";
    assert_eq!(remaining("big", back), 4_000_000_000 - billed + 1234);

    // A charge beyond the limit counts in full, so that the next check is denied.
    let small = |client: &mut Client, tokens: u64| {
        let headers = format!("x-team: small\r\nx-tokens: {tokens}\r\n");
        client.request("GET", "/tokens", &headers, b"").status
    };
    assert_eq!(small(&mut client, 60), 200);
    until("the first bill has come", || remaining("small", ask) == 40);
    assert_eq!(small(&mut client, 60), 200);
    until("the second bill has come", || remaining("small", ask) == 0);
    assert_eq!(small(&mut client, 60), 429);
}

/// Inserts the filter of the documentation before the filter that asks the service.
#[test]
fn a_local_limit_comes_before_the_global_one() {
    let page = std::fs::read_to_string(testdata("../docs/envoy.md")).unwrap();
    let (_, section) = page
        .split_once("\n## A local limit before the global one\n")
        .unwrap();
    let (_, filter) = section.split_once("```yaml\nhttp_filters:\n").unwrap();
    let (filter, _) = filter.split_once("```").unwrap();
    let bucket = "max_tokens: 10000, tokens_per_fill: 10000, fill_interval: 1s";
    assert!(filter.contains(bucket), "{filter}");
    let filter = filter.replace(
        bucket,
        "max_tokens: 30, tokens_per_fill: 30, fill_interval: 3600s",
    );
    let server = TestServer::with_descriptors("");
    let envoy = Envoy::start_with(server.grpc, |text| {
        let global = "                  - name: envoy.filters.http.ratelimit\n";
        text.replacen(global, &format!("{}{global}", indent(&filter, 16)), 1)
    });
    let mut client = envoy.client();
    let mut get = |user: &str| {
        client
            .request("GET", "/", &format!("x-user: {user}\r\n"), b"")
            .status
    };
    let alice: Vec<_> = (0..25).map(|_| get("alice")).collect();
    assert_eq!(alice, [[200; 20].as_slice(), &[429; 5]].concat());
    assert_eq!([(); 5].map(|()| get("bob")), [200; 5]);
    // Now Envoy refuses every client by itself, and does not ask the service.
    assert_eq!([(); 5].map(|()| get("bob")), [429; 5]);
    let metrics = server.http().get("/metrics").body;
    assert!(
        metrics.contains("\nearrrl_grpc_responses_total{code=\"0\"} 30\n"),
        "{metrics}"
    );
}

/// Inserts the patches of `contrib/envoy/istio.yaml` where Istio does.
#[test]
fn istios_patches_are_obeyed() {
    let recipe = std::fs::read_to_string(testdata("../contrib/envoy/istio.yaml")).unwrap();
    let recipe = recipe.replace(
        "outbound|8081||ratelimit.default.svc.cluster.local",
        "ratelimit",
    );
    // The timeout is longer than in the recipe, since the machine may be busy.
    let patches = values(&recipe.replace("timeout: 0.02s", "timeout: 30s"));
    let [filter, limits] = &*patches else {
        panic!("{patches:?}")
    };
    let server = TestServer::with_descriptors("");
    let envoy = Envoy::start_with(server.grpc, |text| {
        let (start, rest) = text
            .split_once("                  - name: envoy.filters.http.ratelimit\n")
            .unwrap();
        let (_, end) = rest
            .split_once("                  - name: envoy.filters.http.router")
            .unwrap();
        let filter = indent(filter, 20).replacen("  name:", "- name:", 1);
        let text =
            format!("{start}{filter}                  - name: envoy.filters.http.router{end}");
        let (start, rest) = text
            .split_once("                    - name: shop\n")
            .unwrap();
        let (rest, _) = rest
            .split_once("                        - match: {prefix: /tokens}")
            .unwrap();
        let route = "                        - {match: {prefix: /}, route: {cluster: app}}\n";
        format!(
            "{start}                    - name: shop\n{}{rest}{route}",
            indent(limits, 22)
        )
    });
    let mut client = envoy.client();
    for expected in [200; 20].into_iter().chain([429; 5]) {
        assert_eq!(
            client.request("GET", "/", "x-user: alice\r\n", b"").status,
            expected
        );
    }
    assert_eq!(client.request("GET", "/", "", b"").status, 200);
}

/// Returns the blocks under each `value:` of a YAML text, without their indentation.
fn values(text: &str) -> Vec<String> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = text.lines().collect();
    let keys = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.trim() == "value:");
    let block = |(at, key): (usize, &&str)| {
        let inside = lines[at + 1..]
            .iter()
            .take_while(|line| depth(line) > depth(key));
        let inside: Vec<&str> = inside.copied().collect();
        let least = inside.iter().map(|line| depth(line)).min().unwrap();
        inside
            .iter()
            .map(|line| format!("{}\n", &line[least..]))
            .collect()
    };
    keys.map(block).collect()
}

fn indent(text: &str, spaces: usize) -> String {
    text.lines()
        .map(|line| format!("{:spaces$}{line}\n", ""))
        .collect()
}
