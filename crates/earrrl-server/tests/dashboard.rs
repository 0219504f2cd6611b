//! Tests of the dashboard: the page in Chromium, and its events.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::path::Path;

use crate::support::TestServer;
use crate::support::http::Client;
use crate::support::tools::{self, tool};

const CONFIG: &str = r#"
[server]
admin = "127.0.0.1:0"
check_token = "check-token-0123456789"
admin_token = "admin-token-0123456789"
[[rule]]
name = "api"
limit = "recent-average 0.05/s half-life=10m"
key = "user"
[[rule]]
name = "search"
limit = "recent-average 5/s half-life=1m"
key = "client"
"#;
const ADMIN: &str = "admin-token-0123456789";
const CHECK: &str = "check-token-0123456789";

#[test]
fn the_page_works_in_a_browser() {
    let server = TestServer::start(CONFIG);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut script = root.join("tests/clients/dashboard.cjs");
    // With EARRRL_SCREENSHOTS the documentation's pictures are taken instead.
    if std::env::var_os("EARRRL_SCREENSHOTS").is_some() {
        script = root.join("tests/clients/dashboard-pictures.cjs");
    }
    let mut command = tool("node");
    command
        .env("NODE_PATH", tools::folder().join("node_modules"))
        .arg(script);
    command.args([
        format!("http://{}", server.admin.unwrap()),
        format!("http://{}", server.http),
    ]);
    command
        .args([ADMIN, CHECK])
        .arg(root.join("../../docs/figures"));
    let output = command.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(out.trim(), "good", "{err}");
}

#[test]
fn events_need_the_admin_token_and_are_bounded() {
    let server = TestServer::start(CONFIG);
    let admin = server.admin.unwrap();
    let ask = |token: &str, path: &str| {
        let mut client = Client::connect(admin);
        client.send(
            format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
            )
            .as_bytes(),
        );
        client
    };
    for (token, path, status) in [
        (CHECK, "/v1/live?rule=api", 403),
        ("wrong-token-0123456789", "/v1/live?rule=api", 401),
        (ADMIN, "/v1/live?rule=no", 404),
        (ADMIN, "/v1/live", 422),
        (CHECK, "/", 200),
        (CHECK, "/v1/check", 404),
    ] {
        assert_eq!(ask(token, path).response().status, status, "{path}");
    }
    let mut open = Vec::new();
    for nth in 0..17 {
        let mut client = ask(ADMIN, "/v1/live?rule=api");
        let response = client.response();
        assert_eq!(
            response.status,
            if nth < 16 { 200 } else { 503 },
            "watcher {nth}"
        );
        open.push(client);
    }
    drop(open);
    // The places are free again once the server has noticed, at the next event.
    crate::support::until("a place is free", || {
        ask(ADMIN, "/v1/live?rule=api").response().status == 200
    });
}
