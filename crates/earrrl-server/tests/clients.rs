//! The clients that people use: redis-cli, redis-benchmark, redis-py, ioredis, curl.
//!
//! Those that are not installed are left out and named; with `EARRRL_CLIENTS=1` that is an error.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod support;

use std::path::Path;
use std::process::Command;

use support::TestServer;

const CONFIG: &str = "[server]\ncheck_token = \"check-token-0123456789\"\n\
                      [[rule]]\nname = \"api\"\nlimit = \"gcra 1/1h burst=5\"\n";
const TOKEN: &str = "check-token-0123456789";

/// What a command prints. `None` when it is not installed.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        assert!(std::env::var_os("EARRRL_CLIENTS").is_none(), "{program} is not installed");
        println!("left out: {program} is not installed");
        return None;
    };
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program}: {out}{err}");
    Some(out)
}

/// Runs a script of `tests/clients/`, if what `probe` tries is there.
fn script(program: &str, probe: &[&str], name: &str, server: &TestServer) {
    let there =
        Command::new(program).args(probe).output().is_ok_and(|output| output.status.success());
    if !there {
        assert!(std::env::var_os("EARRRL_CLIENTS").is_none(), "{program} {probe:?} fails");
        return println!("left out: {program} {probe:?} fails");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
    let port = server.resp.port().to_string();
    let printed = output(program, &[path.to_str().unwrap(), &port, TOKEN]).unwrap();
    assert_eq!(printed.trim(), "good");
}

#[test]
fn redis_cli() {
    let server = TestServer::start(CONFIG);
    let port = server.resp.port().to_string();
    let cli = |words: &str| {
        let mut arguments = vec!["-p", &port, "-a", TOKEN, "--no-auth-warning"];
        arguments.extend(words.split(' '));
        output("redis-cli", &arguments)
    };
    let Some(first) = cli("CL.THROTTLE user123 15 30 60") else { return };
    assert_eq!(first, "0\n16\n15\n-1\n2\n");
    assert_eq!(cli("PING").unwrap(), "PONG\n");
    let map = cli("-3 EARRRL.CHECK api alice").unwrap();
    assert!(map.contains("true") && map.contains("action allow\n"), "{map}");
    assert!(cli("INFO").unwrap().contains("server_name:earrrl"));
}

#[test]
fn redis_benchmark() {
    let server = TestServer::start(CONFIG);
    let port = server.resp.port().to_string();
    for depth in ["1", "16", "64"] {
        let arguments = [
            "-p",
            &port,
            "-a",
            TOKEN,
            "-c",
            "20",
            "-n",
            "20000",
            "-P",
            depth,
            "-r",
            "1000",
            "-q",
            "CL.THROTTLE",
            "user:__rand_int__",
            "15",
            "30",
            "60",
        ];
        let Some(printed) = output("redis-benchmark", &arguments) else { return };
        assert!(printed.contains("requests per second"), "{printed}");
    }
    assert!(server.server.service.engine().throttle.table().len() > 500);
}

#[test]
fn redis_py() {
    let server = TestServer::start(CONFIG);
    script("python3", &["-c", "import redis"], "redis_py.py", &server);
}

#[test]
fn ioredis() {
    let server = TestServer::start(CONFIG);
    script("node", &["-e", "require('ioredis')"], "ioredis.cjs", &server);
}

#[test]
fn curl() {
    let server = TestServer::start(CONFIG);
    let url = format!("http://{}/v1/check", server.http);
    let authorization = format!("Authorization: Bearer {TOKEN}");
    let check = || {
        output(
            "curl",
            &[
                "-s",
                "-w",
                " %{http_code}",
                "-H",
                "Content-Type: application/json",
                "-H",
                &authorization,
                "-d",
                r#"{"rule":"api","key":"alice","cost":3}"#,
                &url,
            ],
        )
    };
    let Some(allowed) = check() else { return };
    assert!(allowed.starts_with("{\"allowed\":true,") && allowed.ends_with(" 200"), "{allowed}");
    let denied = check().unwrap();
    assert!(denied.contains("\"allowed\":false,") && denied.ends_with(" 429"), "{denied}");
}
