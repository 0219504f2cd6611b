//! Tests with common clients: redis-cli, redis-py, ioredis and curl. `scripts/setup` installs them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::path::Path;
use std::process::Command;

use crate::support::TestServer;
use crate::support::tools::{self, tool};

const CONFIG: &str = "[server]\ncheck_token = \"check-token-0123456789\"\n\
                      [[rule]]\nname = \"api\"\nlimit = \"gcra 1/1h burst=5\"\n";
const TOKEN: &str = "check-token-0123456789";

/// Returns the output of a command.
fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out
}

/// Runs a script of `tests/clients/` with the libraries that `scripts/setup` installed.
fn script(program: &str, name: &str, server: &TestServer) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let tools = tools::folder();
    let mut command = tool(program);
    command
        .arg(tests.join("clients").join(name))
        .args([&server.resp.port().to_string(), TOKEN]);
    command
        .env("PYTHONPATH", tools.join("python"))
        .env("NODE_PATH", tools.join("node_modules"));
    assert_eq!(output(command).trim(), "good");
}

#[test]
fn redis_cli() {
    let server = TestServer::start(CONFIG);
    let port = server.resp.port().to_string();
    let cli = |words: &str| {
        let mut command = tool("redis-cli");
        command
            .args(["-p", &port, "-a", TOKEN, "--no-auth-warning"])
            .args(words.split(' '));
        output(command)
    };
    assert_eq!(cli("CL.THROTTLE user123 15 30 60"), "0\n16\n15\n-1\n2\n");
    assert_eq!(cli("PING"), "PONG\n");
    let map = cli("-3 EARRRL.CHECK api alice");
    assert!(
        map.contains("true") && map.contains("action allow\n"),
        "{map}"
    );
    assert!(cli("INFO").contains("server_name:earrrl"));
}

#[test]
fn redis_py() {
    script("python3", "redis_py.py", &TestServer::start(CONFIG));
}

#[test]
fn ioredis() {
    script("node", "ioredis.cjs", &TestServer::start(CONFIG));
}

#[test]
fn curl() {
    let server = TestServer::start(CONFIG);
    let check = || {
        let mut command = tool("curl");
        command.args([
            "-s",
            "-w",
            " %{http_code}",
            "-H",
            "Content-Type: application/json",
        ]);
        command.args(["-H", &format!("Authorization: Bearer {TOKEN}")]);
        command.args(["-d", r#"{"rule":"api","key":"alice","cost":3}"#]);
        command.arg(format!("http://{}/v1/check", server.http));
        output(command)
    };
    let allowed = check();
    assert!(
        allowed.starts_with("{\"allowed\":true,") && allowed.ends_with(" 200"),
        "{allowed}"
    );
    let denied = check();
    assert!(
        denied.contains("\"allowed\":false,") && denied.ends_with(" 429"),
        "{denied}"
    );
}
