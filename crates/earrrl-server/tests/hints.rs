//! Tests the warnings about settings of proxies by which all clients are one, or none is limited.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::support::process::{BINARY, Process};

const RULES: &str = "[[rule]]\nname = \"api\"\nlimit = \"gcra 1/s burst=9\"\nkey = [\"client\", \"header:x-api-key\"]\n";
const PASSES: &str = "HTTP/1.1 200";
const DESCRIPTORS: &str = "domain: shop\ndescriptors:\n  - key: path\n    rate_limit: {unit: second, requests_per_unit: 9}\n";

fn serve(settings: &str) -> (Process, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("limits.toml");
    let descriptors = folder.path().join("shop.yaml");
    std::fs::write(&rules, format!("{settings}{RULES}")).unwrap();
    std::fs::write(&descriptors, DESCRIPTORS).unwrap();
    let mut command = Command::new(BINARY);
    command
        .arg("serve")
        .arg("--config")
        .arg(rules)
        .arg("--envoy-config")
        .arg(descriptors);
    (Process::spawn(&mut command), folder)
}

/// Sends a request, and returns the beginning of the answer.
fn ask(address: SocketAddr, line: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).chars().take(12).collect()
}

fn authz(process: &Process, headers: &str) -> String {
    ask(process.http, "GET /v1/authz", headers, "")
}

/// Each mistake is made twice and logged once: the next line of the log is about the next mistake.
#[test]
fn mistakes_of_a_proxy_are_logged_once() {
    let (mut process, _folder) = serve("");
    let key = "X-Api-Key: k\r\n";
    let mut logged = Vec::new();
    let mut next = |process: &mut Process, text: &str| {
        let line = process.until_warned();
        let message = line["fields"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(text), "{message}");
        logged.push(line);
    };
    for own in ["", "X-Forwarded-For: 127.0.0.1\r\n"] {
        assert_eq!(authz(&process, &format!("{own}{key}")), PASSES);
    }
    for _ in 0..2 {
        let forwarded = format!("X-Forwarded-For: 198.51.100.1, 192.0.2.7\r\n{key}");
        assert_eq!(authz(&process, &forwarded), PASSES);
    }
    next(
        &mut process,
        "requests from this address name clients in X-Forwarded-For",
    );
    (0..2).for_each(|_| assert_eq!(authz(&process, ""), PASSES));
    next(
        &mut process,
        "a request lacks this attribute of the rule's key",
    );
    for domain in ["shop", "shpo", "shpo", "other"] {
        let request = format!(
            r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"none","value":"/"}}]}}]}}"#
        );
        let json = "Content-Type: application/json\r\n";
        assert_eq!(ask(process.http, "POST /json", json, &request), PASSES);
    }
    next(&mut process, "requests name a domain");
    next(&mut process, "requests name a domain");
    (0..2).for_each(|_| drop(ask(process.grpc, "POST /envoy", "", "")));
    next(
        &mut process,
        "a connection for gRPC began with something other than HTTP/2",
    );
    assert_eq!(logged[0]["fields"]["peer"], "127.0.0.1");
    assert_eq!(logged[1]["fields"]["attribute"], "header:x-api-key");
    assert_eq!(
        [2, 3].map(|nth| logged[nth]["fields"]["domain"].clone()),
        ["shpo", "other"]
    );
}

#[test]
fn a_proxy_with_a_wrong_token_is_logged() {
    let (mut process, _folder) = serve("[server]\ncheck_token = \"0123456789abcdef\"\n");
    for _ in 0..2 {
        let answer = authz(&process, "Authorization: Bearer 0123456789abcdeX\r\n");
        assert_eq!(answer, "HTTP/1.1 401");
    }
    let line = process.until_logged("a proxy got no verdict");
    assert_eq!(line["fields"]["error"], "invalid token");
}
