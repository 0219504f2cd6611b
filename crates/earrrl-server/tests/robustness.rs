//! Tests that faulty and hostile peers do no harm to a server in this process.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::support;
use crate::support::resp::{Client, Reply, encode};
use crate::support::{TestServer, connect, connect_narrow, http2};

const QUICK: &str = "[server]\nrequest_timeout = \"1s\"\nidle_timeout = \"2s\"\n";
const RULE: &str = "[[rule]]\nname = \"api\"\nlimit = \"gcra 1/s burst=5\"\n";

fn is_alive(server: &TestServer) {
    assert_eq!(server.resp().line("PING"), Reply::Simple("PONG".into()));
}

fn shed(server: &TestServer) -> u64 {
    server.server.service.metrics.shed.get()
}

/// Reads until the server closes the connection; a reset counts as a close.
fn until_closed(mut stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return all,
            Ok(read) => all.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
            Err(error) => panic!("not closed: {error}"),
        }
    }
}

#[test]
fn absurd_throttle_parameters_stop_nothing() {
    let (server, _clock) = TestServer::manual("");
    let mut client = server.resp();
    for line in [
        "CL.THROTTLE a 4294967295 1 9223372036854775807",
        "CL.THROTTLE a 9223372036854775807 1 1",
        "CL.THROTTLE a 9223372036854775806 1 9223372036854775807 9223372036854775807",
        "CL.THROTTLE a 0 0 0 0",
        "CL.THROTTLE a -9223372036854775808 1 1",
    ] {
        assert!(matches!(client.line(line), Reply::Error(_)), "{line}");
    }
    assert_eq!(
        client.line("CL.THROTTLE a 0 1 60"),
        Reply::integers(&[0, 1, 0, -1, 60])
    );
    assert_eq!(
        client.line("CL.THROTTLE a 0 1 60"),
        Reply::integers(&[1, 1, 0, 60, 60])
    );
}

#[test]
fn a_cost_that_is_not_given_is_one() {
    let (server, _clock) = TestServer::manual(RULE);
    let mut http = server.http();
    let mut resp = server.resp();
    for _ in 0..3 {
        assert_eq!(
            http.post("/v1/check", r#"{"rule":"api","key":"k"}"#).status,
            200
        );
    }
    for _ in 0..2 {
        resp.line("EARRRL.CHECK api k");
    }
    assert_eq!(
        http.post("/v1/check", r#"{"rule":"api","key":"k"}"#).status,
        429
    );
}

#[test]
fn unknown_rules_are_errors_not_permissions() {
    let server = TestServer::start(RULE);
    assert_eq!(
        server
            .http()
            .post("/v1/check", r#"{"rule":"apu","key":"k"}"#)
            .status,
        404
    );
    assert!(matches!(
        server.resp().line("EARRRL.CHECK apu k"),
        Reply::Error(_)
    ));
}

#[test]
fn scripts_are_answered_with_a_hint() {
    let server = TestServer::start("");
    for line in [
        "EVALSHA 0000 1 k",
        "eval return 0",
        "SCRIPT LOAD x",
        "FCALL f 0",
    ] {
        let Reply::Error(error) = server.resp().line(line) else {
            panic!("{line}")
        };
        assert!(
            error.contains("docs/clients.md shows how to call these"),
            "{line}: {error}"
        );
    }
}

#[test]
fn names_are_never_echoed_raw() {
    let server = TestServer::start("");
    for name in [&b"GET\r\n+OK"[..], b"\xff\x00", b"a b", &[b'x'; 5000]] {
        let mut client = server.resp();
        assert_eq!(
            client.call(&[name]),
            Reply::Error("ERR unknown command".into())
        );
        assert_eq!(client.line("PING"), Reply::Simple("PONG".into()), "in step");
    }
}

#[test]
fn errors_name_the_field_and_the_value() {
    let server = TestServer::start(RULE);
    let mut client = server.resp();
    let several = format!("EARRRL.CHECK api k{}", " AND api k".repeat(64));
    for (line, expected) in [
        (
            "EARRRL.CHECK api k COST nan",
            "cost: `nan` is not a number from 0 to 1e18",
        ),
        (
            "EARRRL.ALLOW api k COST -1",
            "cost: `-1` is not a number from 0 to 1e18",
        ),
        (
            "CL.THROTTLE k 5 1.5 60",
            "count: `1.5` is not a whole number",
        ),
        (
            "EARRRL.CHECK api k OR api l",
            "after a key: `OR` is not COST or AND",
        ),
        (&several, "a command may charge at most 64 rules"),
        (
            "EARRRL.TOP api 0",
            "n: `0` is not a whole number from 1 to 1000",
        ),
        (
            "EARRRL.REFUND api k 1 T0 yesterday",
            "t0: `yesterday` is not a number of seconds",
        ),
    ] {
        let Reply::Error(error) = client.line(line) else {
            panic!("{line}")
        };
        assert!(
            error.starts_with(&format!("ERR {expected}")),
            "{line}: {error}"
        );
    }
    let words: [&[u8]; 5] = [b"EARRRL.CHECK", b"api", b"k", b"COST", b"1\r\n+OK\xff"];
    let Reply::Error(error) = client.call(&words) else {
        panic!("a cost of two lines")
    };
    assert!(error.starts_with(r"ERR cost: `1\r\n+OK"), "{error}");
    let answer = server.http().get("/v1/top?rule=api&limit=x");
    assert_eq!(answer.status, 422);
    let detail = answer.json()["detail"].to_string();
    assert!(
        detail.contains("limit: `x` is not a number from 0"),
        "{detail}"
    );
    let mut curl = std::process::Command::new("curl");
    curl.args([
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-d",
        r#"{"rule":"api","key":"k"}"#,
    ]);
    curl.args(["-H", "content-type: application/jsonx"]);
    let output = curl
        .arg(format!("http://{}/v1/check", server.http))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "415");
}

#[test]
fn malformed_requests_get_one_error_and_the_end() {
    let server = TestServer::start("");
    let mut bystander = server.resp();
    let megabyte = vec![b'x'; 1024 * 1024];
    let big_key = encode(&[b"CL.THROTTLE", &megabyte, b"1", b"1", b"1"]);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        (
            "a bulk of 2 GiB",
            b"*2\r\n$4\r\nECHO\r\n$2147483648\r\n".to_vec(),
        ),
        (
            "a bulk of 2 GiB less one",
            b"*2\r\n$4\r\nECHO\r\n$2147483647\r\n".to_vec(),
        ),
        ("nested arrays", b"*1\r\n".repeat(10_000)),
        ("nested huge arrays", b"*1048576\r\n".repeat(100)),
        ("a key of 1 MB", big_key),
        ("an endless line", vec![b'a'; 1024 * 1024]),
        ("an endless number", b"*00000000000000000000000000".to_vec()),
        ("a negative count", b"*-2147483648\r\n".to_vec()),
        ("a wrong end", b"*1\r\n$4\r\nPINGxx".to_vec()),
        ("RESP3 kinds", b"%1\r\n+a\r\n:1\r\n".to_vec()),
        (
            "TLS",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n".to_vec(),
        ),
        ("a header of HTTP", b"Host: localhost\r\n\r\n".to_vec()),
    ];
    for (what, bytes) in cases {
        let stream = support::connect(server.resp);
        // The server may have closed the connection before all bytes were sent.
        let _ = (&stream).write_all(&bytes);
        let answer = String::from_utf8(until_closed(&stream)).unwrap();
        let one_error = answer.starts_with("-ERR ") && answer.matches("\r\n").count() == 1;
        assert!(one_error, "{what}: {answer:?}");
        assert_eq!(
            bystander.line("PING"),
            Reply::Simple("PONG".into()),
            "{what}"
        );
    }
}

#[test]
fn keys_are_any_bytes() {
    let (server, _clock) = TestServer::manual("");
    let mut client = server.resp();
    let long = [b'k'; 4096];
    for key in [
        &b""[..],
        b"\r\n",
        b"\0",
        b"\xff\xfe",
        b"*1\r\n$4\r\nPING\r\n",
        &long,
    ] {
        for remaining in [1, 0] {
            let reply = client.call(&[b"CL.THROTTLE", key, b"1", b"1", b"60"]);
            assert_eq!(
                reply,
                Reply::integers(&[0, 2, remaining, -1, 60 * (2 - remaining)])
            );
        }
    }
}

#[test]
fn partial_requests_are_closed_in_seconds() {
    let server = TestServer::start(QUICK);
    let mut streams = Vec::new();
    for bytes in [
        &b"*"[..],
        b"*2\r\n$4\r\nEC",
        b"PIN",
        b"*1\r\n$4\r\nPING\r\n*1\r\n$",
    ] {
        let mut stream = support::connect(server.resp);
        stream.write_all(bytes).unwrap();
        streams.push(stream);
    }
    for bytes in [
        &b"POST /v1/che"[..],
        b"POST /v1/check HTTP/1.1\r\nContent-Length: 9\r\n\r\nab",
    ] {
        let mut stream = support::connect(server.http);
        stream.write_all(bytes).unwrap();
        streams.push(stream);
    }
    for stream in &streams {
        until_closed(stream);
    }
    is_alive(&server);
}

#[test]
fn trickling_does_not_prolong() {
    let server = TestServer::start(QUICK);
    let mut slow = support::connect(server.resp);
    slow.write_all(b"*1\r\n$16000\r\n").unwrap();
    slow.set_read_timeout(Some(std::time::Duration::from_millis(100)))
        .unwrap();
    let mut piece = [0; 16];
    // Sends one byte each time a read times out. The server closes the connection long before the
    // command is complete.
    let trickled = (0..600).take_while(|_| {
        let _ = slow.write_all(b"x");
        matches!(slow.read(&mut piece), Err(error) if error.kind() == ErrorKind::WouldBlock)
    });
    assert!(trickled.count() < 600);
    assert_eq!(shed(&server), 1);
}

#[test]
fn silent_connections_are_closed() {
    let server = TestServer::start(QUICK);
    let mut resp = server.resp();
    let mut http = server.http();
    resp.line("PING");
    http.get("/healthz");
    assert_eq!((resp.rest(), http.rest()), (vec![], vec![]));
}

#[test]
fn pipelines_that_are_never_read_stop_being_read() {
    let server = TestServer::start(&format!("{QUICK}threads = 1\n"));
    let greedy = support::connect(server.resp);
    greedy.set_nonblocking(true).unwrap();
    let requests = b"EARRRL.RULES\r\nCOMMAND\r\n".repeat(1000);
    let mut sent = 0;
    while shed(&server) == 0 {
        match (&greedy).write(&requests) {
            Ok(written) => sent += written,
            // Meanwhile the same thread serves other clients.
            Err(error) if error.kind() == ErrorKind::WouldBlock => is_alive(&server),
            Err(_) => break,
        }
        assert!(
            sent < 100_000_000,
            "all of it is read, and none of the answers is"
        );
    }
    is_alive(&server);
}

#[test]
fn memory_held_for_slow_clients_is_bounded_together() {
    let config = "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"1h\"\n";
    let server = TestServer::start(config);
    let heavy = || {
        let mut stream = support::connect(server.resp);
        let word = [b'x'; 16_000];
        let mut bytes = encode(&[&word, &word, &word, b"y"]);
        bytes.truncate(bytes.len() - 2);
        stream.write_all(&bytes).unwrap();
        stream
    };
    let streams: Vec<TcpStream> = (0..40).map(|_| heavy()).collect();
    let refused = |stream: &&TcpStream| {
        stream
            .set_read_timeout(Some(std::time::Duration::from_millis(200)))
            .unwrap();
        let mut answer = [0; 64];
        (&mut &**stream)
            .read(&mut answer)
            .is_ok_and(|read| answer[..read].starts_with(b"-ERR server overloaded"))
    };
    let refused = streams.iter().filter(refused).count();
    assert!((10..35).contains(&refused), "{refused}");
    is_alive(&server);
}

#[test]
fn connections_are_limited_and_told_so() {
    let server =
        TestServer::start("[server]\nmax_connections = 3\nmax_connections_per_address = 3\n");
    let mut served: Vec<Client> = (0..3).map(|_| server.resp()).collect();
    for client in &mut served {
        client.line("PING");
    }
    assert_eq!(
        server.resp().rest(),
        b"-ERR max number of clients reached\r\n"
    );
    assert_eq!(server.http().get("/v1/rules").status, 503);
    assert_eq!(server.server.service.metrics.refused.get(), 1);
    served.clear();
    while !server.server.connections.is_empty() {
        std::thread::yield_now();
    }
    is_alive(&server);
}

#[test]
fn every_depth_of_pipeline_is_answered() {
    let (server, _clock) = TestServer::manual("");
    let mut client = server.resp();
    for depth in 1..=1024 {
        let requests = encode(&[b"CL.THROTTLE", b"k", b"9", b"1", b"1", b"0"]).repeat(depth);
        client.send(&requests);
        for _ in 0..depth {
            assert_eq!(client.reply(), Reply::integers(&[0, 10, 10, -1, 0]));
        }
    }
}

#[test]
fn memory_does_not_grow_with_keys() {
    let (server, _clock) = TestServer::manual("[engine]\ncapacity = 1000\n");
    let mut client = server.resp();
    for batch in 0..100 {
        let request = |key: i32| {
            encode(&[
                b"CL.THROTTLE",
                format!("{batch}-{key}").as_bytes(),
                b"9",
                b"1",
                b"60",
            ])
        };
        client.send(&(0..1000).flat_map(request).collect::<Vec<u8>>());
        for _ in 0..1000 {
            assert!(matches!(client.reply(), Reply::Array(_)));
        }
    }
    assert!(server.server.service.engine().throttle.table().len() < 2000);
}

#[test]
fn stopping_answers_what_has_arrived() {
    let server = TestServer::start(RULE);
    let mut resp = server.resp();
    let mut http = server.http();
    resp.line("PING");
    http.get("/healthz");
    server.server.announce_stop();
    assert_eq!(http.get("/readyz").status, 503);
    resp.send(&b"*1\r\n$4\r\nPING\r\n".repeat(100));
    let body = r#"{"rule":"api","key":"k"}"#;
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    http.send(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    support::until("half a request is there", || {
        server.server.connections.held() > 0
    });
    server.server.connections.stop();
    assert_eq!(resp.rest(), b"+PONG\r\n".repeat(100));
    http.send(body.as_bytes());
    let last = http.response();
    assert_eq!(
        (last.status, last.header("connection")),
        (200, Some("close"))
    );
    assert_eq!(http.rest(), b"");
    server.join();
}

#[test]
fn a_bad_configuration_changes_nothing() {
    let (server, _clock) = TestServer::manual(RULE);
    let mut client = server.resp();
    client.line("EARRRL.CHECK api k COST 5");
    let garbage = earrrl_server::config::Config::parse("[[rule]]\nname = 5", "f");
    assert!(
        server
            .server
            .reload(garbage.map_err(|error| error.to_string()))
            .is_err()
    );
    let peek = server
        .http()
        .post("/v1/peek", r#"{"rule":"api","key":"k"}"#)
        .json();
    assert_eq!(peek["allowed"], false);
    let ready = server.http().get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(
        ready.json()["reload_error"]
            .as_str()
            .unwrap()
            .contains("f:2:8: name: expected a string, as \"5\", got 5")
    );
    assert!(
        server
            .http()
            .get("/metrics")
            .body
            .contains("\nearrrl_reload_failures_total 1\n")
    );

    let changed = "[[rule]]\nname = \"api\"\nlimit = \"gcra 1/s burst=9\"\n";
    server.server.reload(Ok(support::parse(changed))).unwrap();
    assert_eq!(
        server.http().get("/readyz").json()["reload_error"],
        serde_json::Value::Null
    );
    let peek = server
        .http()
        .post("/v1/peek", r#"{"rule":"api","key":"k"}"#)
        .json();
    assert!(peek["allowed"] == (peek["remaining"] != 0), "{peek}");
}

#[test]
fn inline_rules_are_few() {
    let server = TestServer::start("[server]\nallow_inline_rules = true\n");
    let mut client = server.http();
    let mut check = |burst: u32| {
        let body = format!(r#"{{"rule":"gcra 1/s burst={burst}","key":"k"}}"#);
        client.post("/v1/check", &body)
    };
    for burst in 1..=64 {
        assert_eq!(check(burst).status, 200, "{burst}");
    }
    let refused = check(65);
    assert_eq!(refused.status, 409);
    assert!(refused.json()["detail"].as_str().unwrap().contains("64"));
    assert_eq!(check(64).status, 200, "those before still work");
}

#[test]
fn a_refused_reload_applies_nothing() {
    let text = |burst: u32, more: &str| {
        format!("[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst={burst}\"\n{more}")
    };
    let server = TestServer::start(&text(1, ""));
    // The capacity is too large for the memory of any machine.
    let more = "[[rule]]\nname = \"b\"\nlimit = \"gcra 1/s burst=1\"\ncapacity = 10_000_000_000\n";
    let config = support::parse(&text(77, more));
    assert!(server.server.reload(Ok(config)).is_err());
    let answer = server.http().post("/v1/check", r#"{"rule":"a","key":"k"}"#);
    assert_eq!(answer.json()["remaining"], 0, "{answer:?}");
}

/// Descriptors are part of a reload.
#[test]
fn a_reload_refused_for_its_descriptors_applies_nothing() {
    let text = |burst: u32| {
        format!("[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst={burst}\"\ncapacity = 10\n")
    };
    let server = TestServer::start(&text(1));
    let mut config = support::parse(&text(77));
    config.envoy.files = vec![support::testdata("envoy/shop.yaml")];
    config.envoy.load().unwrap();
    config.envoy.algorithm = earrrl_server::config::envoy::EnvoyAlgorithm::Gcra;
    config.capacity = 10_000_000_000_000;
    let error = server.server.reload(Ok(config)).unwrap_err();
    assert!(error.contains("memory"), "{error}");
    let answer = server.http().post("/v1/check", r#"{"rule":"a","key":"k"}"#);
    assert_eq!(answer.json()["remaining"], 0, "{answer:?}");
}

/// A key contains only the network of an IPv6 address, so an override for an address applies to its
/// network.
#[test]
fn overrides_and_exemptions_mean_whom_a_key_means() {
    let server = TestServer::start(
        r#"
        [[rule]]
        name = "a"
        limit = "fixed-window 1/1h"
        exempt = { client = ["2001:db8:5::7", "::ffff:192.0.2.9"] }
        [[rule.override]]
        key = { client = "2001:db8::1" }
        limit = "fixed-window 9/1h"
        [[rule]]
        name = "b"
        key = "user"
        limit = "fixed-window 1/1h"
        match = { path = "/b" }
        exempt = { client = "2001:db8::1" }
        "#,
    );
    let mut client = server.http();
    let mut ask = |address: &str, path: &str| {
        let body = format!(r#"{{"attributes":{{"client":"{address}","path":"{path}"}}}}"#);
        client.post("/v1/check", &body).json()
    };
    for (address, left) in [
        ("2001:db8::1", 8),
        ("2001:db8::2", 7),
        ("[2001:db8::3]:80", 6),
    ] {
        assert_eq!(ask(address, "/")["remaining"], left, "{address}");
    }
    assert_eq!(
        ask("2001:db8:0:1::1", "/")["remaining"],
        0,
        "another network"
    );
    for exempt in ["2001:db8:5::7", "2001:db8:5::8", "192.0.2.9"] {
        assert_eq!(
            ask(exempt, "/")["rule"],
            serde_json::Value::Null,
            "{exempt}"
        );
    }
    // A check that names this key concerns the same client.
    let named = r#"{"rule":"a","key":"2001:db8::/64"}"#;
    assert_eq!(
        server.http().post("/v1/check", named).json()["remaining"],
        5
    );
    // Under a rule whose keys do not contain the address, an override applies to the exact address.
    assert_eq!(ask("2001:db8:7::1", "/b")["rule"], "a");
    assert_eq!(ask("2001:db8::5", "/b")["over"], serde_json::json!(["b"]));
    assert_eq!(ask("2001:db8::1", "/b")["rule"], "a");
}

#[test]
fn a_rule_that_comes_back_has_its_clients() {
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nlimit = \"gcra 1/h burst=9\"\n");
    let both = rule("a") + &rule("b");
    let (server, _clock) = TestServer::manual(&both);
    let ask = || {
        let answer = server.http().post("/v1/check", r#"{"rule":"b","key":"k"}"#);
        (answer.status, answer.json()["remaining"].clone())
    };
    assert_eq!(ask(), (200, 8.into()));
    for left in [7, 6, 5] {
        server
            .server
            .reload(Ok(support::parse(&rule("a"))))
            .unwrap();
        assert_eq!(ask().0, 404);
        server.server.reload(Ok(support::parse(&both))).unwrap();
        assert_eq!(ask(), (200, left.into()));
    }
}

#[test]
fn no_rules_any_more_must_be_meant() {
    let server = TestServer::start("[[rule]]\nname = \"a\"\nlimit = \"gcra 1/s burst=1\"\n");
    let error = server.server.reload(Ok(support::parse(""))).unwrap_err();
    assert!(error.contains("rules = \"none\""), "{error}");
    assert_eq!(server.server.service.rules().len(), 1);
    server
        .server
        .reload(Ok(support::parse("rules = \"none\"")))
        .unwrap();
    assert!(server.server.service.rules().is_empty());
}

#[test]
fn no_spelling_of_a_path_or_method_leads_past_a_rule() {
    let server = TestServer::start(
        r#"
        [[rule]]
        name = "login"
        limit = "fixed-window 1/1h"
        match = { path = "/login", method = "POST" }
        [[rule]]
        name = "api"
        limit = "fixed-window 100/1h"
        match = { path = "/api/*" }
        "#,
    );
    let mut client = server.http();
    let mut ask = |path: &str, method: &str| {
        let body = format!(
            r#"{{"attributes":{{"client":"192.0.2.7","path":"{path}","method":"{method}"}}}}"#
        );
        client.post("/v1/check", &body).json()["rule"].clone()
    };
    for path in [
        "/Login",
        "//login",
        "/login/",
        "/%6cogin",
        "/login;x",
        "/a/../login",
        "/login?a=b",
        "/x%2f..%2flogin",
        "/x\\\\..\\\\login",
        "/x/..;a/login",
        "/%5clogin",
    ] {
        assert_eq!(ask(path, "post"), "login", "{path}");
    }
    for path in ["/api", "/API/", "/api//x", "/x/%2e%2E/api/y"] {
        assert_eq!(ask(path, "GET"), "api", "{path}");
    }
    assert_eq!(server.server.service.metrics.unmatched.get(), 0);
    assert_eq!(ask("/apis", "GET"), serde_json::Value::Null);
    assert_eq!(ask("/login", "GET"), serde_json::Value::Null);
    assert_eq!(server.server.service.metrics.unmatched.get(), 2);
    assert!(
        server
            .http()
            .get("/metrics")
            .body
            .contains("\nearrrl_unmatched_total 2\n")
    );
}

#[test]
fn exact_paths_are_compared_as_they_are() {
    let server = TestServer::start(
        r#"
        [attributes]
        path_matching = "exact"
        [[rule]]
        name = "login"
        limit = "fixed-window 1/1h"
        match = { path = "/login" }
        "#,
    );
    let mut client = server.http();
    let mut ask = |path: &str| {
        let body = format!(r#"{{"attributes":{{"client":"192.0.2.7","path":"{path}"}}}}"#);
        client.post("/v1/check", &body).json()["rule"].clone()
    };
    for path in ["/Login", "/login/", "/x%2f..%2flogin", "/login;x"] {
        assert_eq!(ask(path), serde_json::Value::Null, "{path}");
    }
    assert_eq!(ask("//login"), "login");
}

#[test]
fn health_is_told_however_many_are_connected() {
    let server = TestServer::start("[server]\nmax_connections = 100\nadmin = \"127.0.0.1:0\"\n");
    let full: Vec<_> = (0..75).map(|_| connect(server.resp)).collect();
    support::until("all are in", || server.server.connections.len() >= 75);
    // A single address cannot use all places for connections.
    assert!(!until_closed(&connect(server.resp)).is_empty());
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.http().get(path).status, 200, "{path}");
    }
    let refused = server.http().post("/v1/check", r#"{"rule":"a","key":"k"}"#);
    assert_eq!(
        (refused.status, refused.header("connection")),
        (503, Some("close"))
    );
    let mut admin = support::http::Client::connect(server.admin.unwrap());
    assert_eq!(admin.get("/healthz").status, 200);
    assert!(admin.get("/metrics").body.contains("earrrl_connections "));
    assert_eq!(admin.post("/v1/check", "{}").status, 404);
    drop(full);
}

#[test]
fn memory_held_for_half_bodies_is_bounded_together() {
    let server = TestServer::start(
        "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"60s\"\nmax_body = 262144\n",
    );
    let half = |address| {
        let mut stream = connect(address);
        let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                    Content-Length: 262144\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // A refused client may find the connection closed while it sends.
        let _ = stream.write_all(&[b' '; 200_000]);
        stream
    };
    let streams: Vec<TcpStream> = (0..10).map(|_| half(server.http)).collect();
    support::until("most are shed", || shed(&server) >= 7);
    let mut answers = vec![Vec::new(); streams.len()];
    support::until("they are told so", || {
        for (stream, answer) in streams.iter().zip(&mut answers) {
            stream
                .set_read_timeout(Some(std::time::Duration::from_millis(10)))
                .unwrap();
            let mut bytes = [0; 512];
            let read = (&*stream).read(&mut bytes).unwrap_or(0);
            answer.extend_from_slice(&bytes[..read]);
        }
        answers
            .iter()
            .filter(|answer| answer.starts_with(b"HTTP/1.1 503"))
            .count()
            >= 7
    });
    assert_eq!(server.http().get("/healthz").status, 200);
}

#[test]
fn memory_is_free_again_before_a_shed_client_has_gone() {
    let server = TestServer::start(
        "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"1h\"\nmax_connections = 10000\n",
    );
    let half = format!("*4\r\n$16000\r\n{}\r\n", "x".repeat(16_000));
    // These clients neither read their answers nor close.
    let crowd: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = connect(server.resp);
            let _ = stream.write_all(half.as_bytes());
            stream
        })
        .collect();
    support::until("many are shed", || shed(&server) >= 200);
    assert!(server.server.connections.held() <= 1_048_576);
    drop(crowd);
}

const TOKENS: &str = "[server]\ncheck_token = \"check-token-0123456789\"\nadmin_token = \"admin-token-0123456789\"\n";

#[test]
fn tokens_are_not_tried_out_fast() {
    let server = TestServer::start(TOKENS);
    let mut client = server.resp();
    for _ in 0..1000 {
        client.send(&encode(&[b"AUTH", b"wrong-token-0123456789"]));
    }
    let answers = String::from_utf8(client.rest()).unwrap();
    assert_eq!(answers, "-WRONGPASS invalid token\r\n".repeat(3));
    let mut web = server.http();
    web.token = Some("wrong-token-0123456789".to_owned());
    assert_eq!(
        web.post("/v1/check", "{}").json()["detail"],
        "invalid token"
    );
    web.token = None;
    let missing = web.post("/v1/check", "{}").json();
    assert_eq!(missing["detail"], "expected Authorization: Bearer TOKEN");
    let metrics = server.http().get("/metrics").body;
    assert!(
        metrics.contains("\nearrrl_failed_logins_total 4\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("\nearrrl_http_responses_total{status=\"401\"} 2\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("\nearrrl_resp_errors_total{code=\"WRONGPASS\"} 3\n"),
        "{metrics}"
    );
}

#[test]
fn what_is_decided_is_counted() {
    let server = TestServer::start(RULE);
    let mut client = server.resp();
    for _ in 0..3 {
        client.line("CL.THROTTLE k 1 1 60");
    }
    client.line("CL.THROTTLE k 1 1 60 0");
    client.line("EARRRL.CHARGE api k");
    client.line("EARRRL.ALLOW api k");
    client.line("EARRRL.PEEK api k");
    let metrics = server.http().get("/metrics").body;
    for line in [
        "earrrl_decisions_total{rule=\"CL.THROTTLE\",outcome=\"allow\"} 2",
        "earrrl_decisions_total{rule=\"CL.THROTTLE\",outcome=\"deny\"} 1",
        "earrrl_decisions_total{rule=\"api\",outcome=\"allow\"} 2",
        "earrrl_resp_requests_total 7",
        "# TYPE earrrl_clients_displaced_total counter",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}\n{metrics}"
        );
    }
}

#[test]
fn a_transaction_is_bounded() {
    let server = TestServer::start("");
    let mut client = server.resp();
    client.line("MULTI");
    for _ in 0..512 {
        assert_eq!(client.line("PING"), Reply::Simple("QUEUED".into()));
    }
    assert!(matches!(client.line("PING"), Reply::Error(text) if text.contains("at most 512")));
    assert!(matches!(client.line("EXEC"), Reply::Error(text) if text.starts_with("EXECABORT")));
    assert_eq!(client.line("PING"), Reply::Simple("PONG".into()));
}

/// A page of another site may change nothing, whichever name leads its visitor's browser to this server.
#[test]
fn pages_of_other_sites_change_nothing() {
    let token = "check_token = \"0123456789abcdef\"\n";
    let remote = "admin = \"0.0.0.0:0\"\nallow_remote = true\nhosts = [\"limits.example\"]\n";
    for (settings, open) in [("", true), (remote, true), (token, false)] {
        let server = TestServer::start(&format!("[server]\n{settings}{RULE}"));
        let ask = |at: std::net::SocketAddr, line: &str, headers: &str| {
            let mut client = support::http::Client::connect(at);
            client
                .send(format!("{line} HTTP/1.1\r\n{headers}Content-Length: 0\r\n\r\n").as_bytes());
            client.response().status
        };
        let doors = [Some(server.http), server.admin].into_iter().flatten();
        for at in doors {
            let delete = "DELETE /v1/clients/api/k";
            let from = |origin: &str, host: &str| {
                ask(at, delete, &format!("Host: {host}\r\nOrigin: {origin}\r\n"))
            };
            let done = if open { 204 } else { 401 };
            assert_eq!(ask(at, delete, "Host: localhost:1\r\n"), done, "{settings}");
            assert_eq!(
                from("http://localhost:1", "localhost:1"),
                done,
                "{settings}"
            );
            for origin in ["http://evil.example", "http://localhost:2", "null", ""] {
                assert_eq!(from(origin, "localhost:1"), 403, "{settings} {origin}");
            }
            // A name that leads here is that of the page, so the origin is its own.
            let rebound = from("http://evil.example:1", "evil.example:1");
            assert_eq!(rebound, if open { 421 } else { 401 }, "{settings}");
        }
        if settings == remote {
            let get = |host: &str| ask(server.http, "GET /v1/rules", &format!("Host: {host}\r\n"));
            for host in [
                "limits.example",
                "LIMITS.example:8080",
                "10.0.0.1:8080",
                "earrrl:8080",
                "earrrl.svc.cluster.local",
            ] {
                assert_eq!(get(host), 200, "{host}");
            }
            assert_eq!(get("other.example"), 421);
            let delete = "DELETE /v1/clients/api/k";
            let named = "Host: 10.0.0.1\r\nOrigin: https://limits.example\r\n";
            assert_eq!(ask(server.http, delete, named), 204);
        }
        // A proxy passes its client's headers on, and gets a verdict all the same.
        let passed = "Host: site.example\r\nOrigin: http://other.example\r\n";
        assert_eq!(
            ask(server.http, "POST /v1/authz", passed),
            if open { 200 } else { 401 },
            "{settings}"
        );
    }
}

#[test]
fn a_name_that_leads_here_is_not_enough() {
    let server = TestServer::start(RULE);
    let ask = |head: &str, more: &str| {
        let mut client = server.http();
        client.send(format!("{head} HTTP/1.1\r\n{more}Content-Length: 0\r\n\r\n").as_bytes());
        client.response().status
    };
    assert_eq!(
        ask("DELETE /v1/clients/api/k", "Host: rebound.example\r\n"),
        421
    );
    assert_eq!(
        ask("DELETE /v1/clients/api/k", "Host: localhost:8080\r\n"),
        204
    );
    for open in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(
            ask(&format!("GET {open}"), "Host: statsd:9102\r\n"),
            200,
            "{open}"
        );
    }
    assert_eq!(ask("GET /v1/rules", ""), 400);
    assert_eq!(
        ask("GET /v1/rules", "Host: localhost\r\nHost: localhost\r\n"),
        400
    );
    assert_eq!(
        ask(
            "GET http://rebound.example/v1/rules",
            "Host: rebound.example\r\n"
        ),
        421
    );
    assert_eq!(
        ask("GET http://rebound.example/v1/rules", "Host: localhost\r\n"),
        400
    );
    assert_eq!(
        ask("GET http://localhost/v1/rules", "Host: localhost\r\n"),
        200
    );
    // If a token is required, the host name is not checked.
    let guarded = TestServer::start(TOKENS);
    let mut client = guarded.http();
    client.send(b"GET /healthz HTTP/1.1\r\nHost: earrrl.example\r\n\r\n");
    assert_eq!(client.response().status, 200);
}

#[test]
fn tokens_are_exchanged_by_a_reload() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |tokens: &str| std::fs::write(file.path(), tokens).unwrap();
    let config = || support::parse(&format!("[server]\ncheck_token_file = {:?}\n", file.path()));
    write("old-token-0123456789\n");
    let server = TestServer::with_clock(config(), std::sync::Arc::new(earrrl::SystemClock::new()));
    let status = |token: &str| {
        let mut client = server.http();
        client.token = Some(token.to_owned());
        client.get("/v1/rules").status
    };
    assert_eq!(
        (
            status("old-token-0123456789"),
            status("new-token-0123456789")
        ),
        (200, 401)
    );
    let mut open = server.resp();
    open.line("AUTH old-token-0123456789");
    write("old-token-0123456789\nnew-token-0123456789\n");
    server.server.reload(Ok(config())).unwrap();
    assert_eq!(
        (
            status("old-token-0123456789"),
            status("new-token-0123456789")
        ),
        (200, 200)
    );
    assert!(
        matches!(open.line("EARRRL.RULES"), Reply::Array(_)),
        "still good"
    );
    write("new-token-0123456789\n");
    server.server.reload(Ok(config())).unwrap();
    assert_eq!(
        (
            status("old-token-0123456789"),
            status("new-token-0123456789")
        ),
        (401, 200)
    );
    assert!(matches!(open.line("EARRRL.RULES"), Reply::Error(text) if text.starts_with("NOAUTH")));
}

/// Returns the value of a metric, which is given with its labels.
fn metric(server: &TestServer, name: &str) -> u64 {
    let text = server.http().get("/metrics").body;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap())
}

fn status(name: u16) -> String {
    format!("earrrl_http_responses_total{{status=\"{name}\"}}")
}

#[test]
fn whoever_is_shed_over_http_is_told() {
    let config = "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"1h\"\n";
    let server = TestServer::start(config);
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 250000\r\n\r\n";
    let mut body = head.as_bytes().to_vec();
    body.resize(200_000, b'x');
    let streams: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = connect(server.http);
            // The server may stop reading a body that it has rejected.
            let _ = stream.write_all(&body);
            stream
        })
        .collect();
    for stream in &streams {
        stream.set_nonblocking(true).unwrap();
    }
    let mut told = 0;
    // The server has memory for the bodies of two of these requests.
    support::until("the others are told", || {
        for mut stream in &streams {
            let mut answer = [0; 512];
            match stream.read(&mut answer) {
                Ok(read) if answer[..read].starts_with(b"HTTP/1.1 503 ") => told += 1,
                Ok(0) | Err(_) => {}
                Ok(read) => panic!("{:?}", String::from_utf8_lossy(&answer[..read])),
            }
        }
        told == 10
    });
    assert_eq!((shed(&server), metric(&server, &status(503))), (told, told));
    assert_eq!(metric(&server, &status(400)), 0);
}

#[test]
fn a_bare_line_feed_is_refused() {
    let server = TestServer::start("");
    for request in [
        "GET /v1/rules HTTP/1.1\nHost: localhost\n\n",
        "GET /v1/rules HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\n{\r\n",
    ] {
        let mut stream = connect(server.http);
        stream.write_all(request.as_bytes()).unwrap();
        let answer = String::from_utf8(until_closed(&stream)).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400 "),
            "{request:?}: {answer:?}"
        );
        assert!(answer.ends_with("expected CRLF\"}"), "{answer:?}");
    }
    assert_eq!(metric(&server, &status(400)), 3);
    // Bare line feeds are rejected only in the head of a request; a body may contain them.
    let mut client = server.http();
    let answer = client.post("/v1/check", "{\n\"attributes\":\n{}}");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(client.get("/healthz").status, 200);
}

#[test]
fn what_is_not_understood_is_counted_by_its_status() {
    let server = TestServer::start("");
    let long = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "y".repeat(20_000)
    );
    for (request, status) in [("no HTTP\r\n\r\n", "400"), (&*long, "431")] {
        let stream = connect(server.http);
        let _ = (&stream).write_all(request.as_bytes());
        let answer = String::from_utf8(until_closed(&stream)).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer:?}"
        );
    }
    support::until("both are counted", || {
        metric(&server, &status(400)) == 1 && metric(&server, &status(431)) == 1
    });
}

#[test]
fn guessing_at_tokens_over_http_is_slow() {
    let server = TestServer::start("[server]\ncheck_token = \"0123456789abcdef\"\n");
    let mut client = server.http();
    client.token = Some("guess".to_owned());
    let body = r#"{"rule":"api","key":"k"}"#;
    for _ in 0..2 {
        let answer = client.post("/v1/check", body);
        assert_eq!((answer.status, answer.header("connection")), (401, None));
    }
    let answer = client.post("/v1/check", body);
    assert_eq!(
        (answer.status, answer.header("connection")),
        (401, Some("close"))
    );
    assert_eq!(client.rest(), b"");
}

/// Idle HTTP clients take all places for connections, those for health checks included; health
/// checks must still be answered.
#[test]
fn idle_clients_of_http_leave_room_for_health() {
    let server = TestServer::start(
        "[server]\nmax_connections = 20\nmax_connections_per_address = 20\nidle_timeout = \"1h\"\n",
    );
    let idle: Vec<_> = (0..20).map(|_| connect(server.http)).collect();
    support::until("all places are taken", || {
        server.server.connections.len() == 20
    });
    let more: Vec<_> = (0..60).map(|_| connect(server.http)).collect();
    support::until("so are those for health", || {
        server.server.connections.len() >= 36
    });
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(server.http().get(path).status, 200, "{path}");
    }
    drop((idle, more));
}

/// A client that uses all memory for requests must not prevent small requests.
#[test]
fn health_is_told_however_much_is_held() {
    let server = TestServer::start(
        "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"1h\"\nmax_connections = 10000\n",
    );
    let mut crowd = Vec::new();
    for (length, most_left) in [(16_000, 17_000), (1000, 2000)] {
        let half = format!("*4\r\n$16000\r\n{}", "x".repeat(length));
        support::until("it is full", || {
            let mut stream = connect(server.resp);
            let _ = stream.write_all(half.as_bytes());
            crowd.push(stream);
            1_048_576 - server.server.connections.held().min(1_048_576) < most_left
        });
    }
    assert_eq!(server.http().get("/healthz").status, 200);
    assert_eq!(server.http().get("/metrics").status, 200);
    assert_eq!(
        server
            .http()
            .post("/v1/check", r#"{"rule":"no","key":"k"}"#)
            .status,
        404
    );
}

/// The clients send requests continuously and read no answers.
#[test]
fn memory_held_for_answers_that_nobody_reads_is_bounded_together() {
    let server = TestServer::start(
        "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"1h\"\nmax_connections = 10000\n",
    );
    let request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(400);
    let crowd: Vec<TcpStream> = (0..150)
        .map(|_| {
            let mut stream = connect(server.http);
            socket2::SockRef::from(&stream)
                .set_recv_buffer_size(4096)
                .unwrap();
            let _ = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    support::until("many are shed", || shed(&server) >= 50);
    support::until("it is free", || {
        server.server.connections.held() <= 1_048_576
    });
    drop(crowd);
}

/// Each request has a long answer.
#[test]
fn memory_held_for_lists_that_nobody_reads_is_bounded_together() {
    let mut config = String::from(
        "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"1h\"\nmax_connections = 10000\n",
    );
    for nth in 0..500 {
        config += &format!(
            "[[rule]]\nname = \"rule-{nth}\"\nlimit = \"gcra 1/s burst=5\"\ncapacity = 10\n[rule.match]\nmethod = \"M{nth}\"\n"
        );
    }
    let server = TestServer::start(&config);
    let crowd: Vec<TcpStream> = (0..150).map(|_| connect_narrow(server.resp)).collect();
    crowd
        .iter()
        .for_each(|stream| stream.set_nonblocking(true).unwrap());
    support::until("many are shed", || {
        for mut stream in &crowd {
            let _ = stream.write(b"EARRRL.RULES\r\n");
        }
        shed(&server) >= 50
    });
    support::until("it is within bounds", || {
        server.server.connections.held() <= 1_048_576
    });
    drop(crowd);
}

/// The bytes that an HTTP/2 connection may hold above the bound: one request, and the table of its
/// streams.
const BESIDE: usize = 80 * 1024;

#[test]
fn answers_that_nobody_reads_over_http2_are_held_within_bounds() {
    let server = TestServer::start(
        "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"1h\"\nmax_connections = 10000\n",
    );
    let crowd: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut stream = connect(server.http);
            // A window of 0 forbids the server to send any byte of a body.
            let mut bytes = http2::greeting(0);
            (0..128).for_each(|nth| bytes.extend(http2::get(2 * nth + 1, "/openapi.json")));
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    // The connections have room for 440 requests.
    support::until("many are refused", || shed(&server) >= 300);
    let most = 1_048_576 + 6 * BESIDE;
    support::until("it is within bounds", || {
        server.server.connections.held() <= most
    });
    assert_eq!(server.http().get("/healthz").status, 200);
    drop(crowd);
    support::until("it is free", || server.server.connections.held() == 0);
}

/// A client must read an answer within the request timeout, whatever else it sends meanwhile.
#[test]
fn answers_that_nobody_fetches_over_http2_are_given_up() {
    let server = TestServer::start("[server]\nrequest_timeout = \"1s\"\n");
    let mut stream = connect(server.http);
    let request = http2::get(1, "/openapi.json");
    stream
        .write_all(&[http2::greeting(0), request].concat())
        .unwrap();
    let mut seen = Vec::new();
    until_frame(
        &mut stream,
        &mut seen,
        (http2::RST_STREAM, 1),
        &http2::frame(6, 0, 0, &[0; 8]),
    );
    assert_eq!(shed(&server), 1);
    support::until("it is free", || server.server.connections.held() <= 512);
}

/// If one client behind a proxy cancels its requests, all in one packet, the calls of the proxy's
/// other clients must continue.
#[test]
fn requests_that_are_taken_back_do_not_close_a_shared_connection() {
    let server = TestServer::start("");
    for (address, path) in [
        (server.http, "/healthz"),
        (
            server.grpc,
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        ),
    ] {
        let mut stream = connect(address);
        let mut bytes = http2::greeting(65_535);
        for nth in 0..500 {
            bytes.extend(http2::call(2 * nth + 1, path));
            bytes.extend(http2::frame(
                http2::RST_STREAM,
                0,
                2 * nth + 1,
                &[0, 0, 0, 8],
            ));
        }
        bytes.extend(http2::unary(1001, path, b""));
        stream.write_all(&bytes).unwrap();
        let mut seen = Vec::new();
        until_frame(&mut stream, &mut seen, (http2::HEADERS, 1001), b"");
        assert!(
            !http2::kinds(&seen)
                .iter()
                .any(|(kind, _)| *kind == http2::GOAWAY)
        );
    }
}

#[test]
fn few_calls_of_a_connection_watch_its_health() {
    let server = TestServer::start("");
    let mut stream = connect(server.grpc);
    let watch = |stream| http2::unary(stream, "/grpc.health.v1.Health/Watch", b"");
    let watches: Vec<u8> = (0..9).flat_map(|nth| watch(2 * nth + 1)).collect();
    stream
        .write_all(&[http2::greeting(65_535), watches].concat())
        .unwrap();
    let mut seen = Vec::new();
    until_frame(&mut stream, &mut seen, (http2::HEADERS, 17), b"");
    for nth in 0..8 {
        until_frame(&mut stream, &mut seen, (http2::DATA, 2 * nth + 1), b"");
    }
    assert!(
        !http2::kinds(&seen).contains(&(http2::DATA, 17)),
        "the ninth is refused"
    );
    stream
        .write_all(&http2::frame(http2::RST_STREAM, 0, 1, &[0, 0, 0, 8]))
        .unwrap();
    let mut next = 17;
    support::until("one that is taken back makes room for another", || {
        next += 2;
        stream.write_all(&watch(next)).unwrap();
        until_frame(&mut stream, &mut seen, (http2::HEADERS, next), b"");
        let answered = http2::kinds(&seen);
        answered
            .iter()
            .any(|(kind, stream)| *kind == http2::DATA && *stream > 17)
    });
}

#[test]
fn malformed_chunks_are_a_bad_request() {
    let server = TestServer::start(RULE);
    let mut client = server.http();
    client.send(
        b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
          Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    );
    assert_eq!(client.response().status, 400);
    assert_eq!(metric(&server, "earrrl_malformed_requests_total"), 1);
}

/// A rule that allows a request is not charged if another rule denies the request.
#[test]
fn a_rule_that_was_not_charged_counts_no_decision() {
    let rule = |name: &str, limit: &str| {
        format!("[[rule]]\nname = {name:?}\nlimit = {limit:?}\nkey = \"client\"\n")
    };
    let config = rule("wide", "gcra 1/h burst=100") + &rule("narrow", "gcra 1/h burst=1");
    let server = TestServer::start(&config);
    for status in [200, 429, 429] {
        let check = r#"{"attributes":{"client":"192.0.2.7"}}"#;
        assert_eq!(server.http().post("/v1/check", check).status, status);
    }
    let count = |rule: &str, outcome: &str| {
        let name = format!("earrrl_decisions_total{{rule=\"{rule}\",outcome=\"{outcome}\"}}");
        metric(&server, &name)
    };
    assert_eq!((count("wide", "allow"), count("wide", "deny")), (1, 0));
    assert_eq!((count("narrow", "allow"), count("narrow", "deny")), (1, 2));
}

/// OpenMetrics collectors remove `_total` from the names of counters, and add suffixes to those of
/// histograms.
#[test]
fn no_two_metrics_share_a_name_in_openmetrics() {
    let server = TestServer::with_descriptors(RULE);
    server.resp().line("NOTHING");
    server.http().get("/nowhere");
    let text = server.http().get("/metrics").body;
    let mut names = std::collections::HashSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let base = name.strip_suffix("_total").unwrap_or(name);
        assert!(kind != "counter" || base != name, "{name} is a counter");
        let suffixes: &[&str] = match kind {
            "counter" => &["", "_total", "_created"],
            "histogram" => &["", "_bucket", "_sum", "_count", "_created"],
            _ => &[""],
        };
        for suffix in suffixes {
            assert!(
                names.insert(format!("{base}{suffix}")),
                "{base}{suffix} is there twice"
            );
        }
    }
}

/// Reads until the wanted frame arrives, and sends `meanwhile` whenever nothing arrives for 100 ms.
fn until_frame(stream: &mut TcpStream, seen: &mut Vec<u8>, wanted: (u8, u32), meanwhile: &[u8]) {
    stream
        .set_read_timeout(Some(std::time::Duration::from_millis(100)))
        .unwrap();
    support::until("the frame comes", || {
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(read) => seen.extend(&bytes[..read]),
            Err(_) => stream.write_all(meanwhile).unwrap(),
        }
        http2::kinds(seen).contains(&wanted)
    });
}

#[test]
fn half_a_preface_has_the_time_of_a_request() {
    let server = TestServer::start("[server]\nrequest_timeout = \"1s\"\nidle_timeout = \"1h\"\n");
    for address in [server.grpc, server.http] {
        let mut stream = connect(address);
        stream.write_all(&http2::PREFACE[..10]).unwrap();
        until_closed(&stream);
    }
}

#[test]
fn grpc_refuses_other_content_types() {
    let server = TestServer::start("");
    let mut curl = std::process::Command::new("curl");
    curl.args([
        "--http2-prior-knowledge",
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
    ]);
    curl.args(["-H", "content-type: application/json", "-d", "{}"]);
    let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let output = curl
        .arg(format!("http://{}/{path}", server.grpc))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "415");
}

/// A client may still send its body when the response arrives. Upon a reset, curl 7.88 would discard the response.
#[test]
fn a_response_before_the_end_of_a_body_resets_nothing() {
    let server = TestServer::start("");
    for address in [server.grpc, server.http] {
        let mut stream = connect(address);
        let request = http2::post(1, "/unknown");
        stream
            .write_all(&[http2::greeting(65_535), request].concat())
            .unwrap();
        let mut seen = Vec::new();
        until_frame(&mut stream, &mut seen, (http2::HEADERS, 1), &[]);
        let body = http2::frame(http2::DATA, http2::END_STREAM, 1, b"{}");
        let ping = http2::frame(http2::PING, 0, 0, &[0; 8]);
        stream.write_all(&[body, ping].concat()).unwrap();
        until_frame(&mut stream, &mut seen, (http2::PING, 0), &[]);
        assert!(!http2::kinds(&seen).contains(&(http2::RST_STREAM, 1)));
        support::until("it is free", || server.server.connections.held() <= 512);
    }
}

#[test]
fn a_request_and_a_half_close_are_answered() {
    let server = TestServer::start(RULE);
    let requests = [
        (
            server.http,
            &b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
            "HTTP/1.1 200 ",
        ),
        (server.resp, b"PING\r\n", "+PONG"),
    ];
    for (address, request, answer) in requests {
        let mut stream = connect(address);
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answered = String::from_utf8(until_closed(&stream)).unwrap();
        assert!(answered.starts_with(answer), "{answered:?}");
    }
}

#[test]
fn a_fresh_counter_is_zero() {
    let text = TestServer::start("").http().get("/metrics").body;
    assert!(!text.lines().any(|line| line.ends_with(" -0")), "{text}");
}

/// Sends gRPC messages that remain incomplete.
#[test]
fn memory_held_for_half_messages_is_bounded_together() {
    let server = TestServer::start(
        "[server]\nmax_held_memory = 1048576\nrequest_timeout = \"1h\"\nmax_connections = 10000\n",
    );
    for path in [
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        "/envoy.service.auth.v3.Authorization/Check",
        "/grpc.health.v1.Health/Check",
    ] {
        let mut message = vec![0, 0, 0, 0xff, 0xff];
        message.resize(16_000, 0);
        let before = answered_over_grpc(&server);
        // One connection may send less than all together may hold, so several are needed.
        let crowd: Vec<TcpStream> = (0..3)
            .map(|_| half_messages(&server, path, &message))
            .collect();
        support::until("many are refused", || {
            answered_over_grpc(&server) >= before + 30
        });
        let most = 1_048_576 + 3 * BESIDE;
        support::until("it is within bounds", || {
            server.server.connections.held() <= most
        });
        drop(crowd);
        support::until("it is free", || server.server.connections.held() == 0);
    }
}

/// Opens a connection with forty calls, each of which has sent only this part of its message.
fn half_messages(server: &TestServer, path: &str, message: &[u8]) -> TcpStream {
    let mut bytes = Vec::new();
    for nth in 0..40 {
        bytes.extend(http2::call(2 * nth + 1, path));
        bytes.extend(http2::frame(0, 0, 2 * nth + 1, message));
    }
    let mut stream = connect(server.grpc);
    stream.write_all(http2::PREFACE).unwrap();
    stream.write_all(&http2::frame(4, 0, 0, &[])).unwrap();
    // The server grants the number of bytes that may be sent in a frame of type 8 (WINDOW_UPDATE).
    let mut said = Vec::<u8>::new();
    let window = http2::frame(8, 0, 0, &[0; 4]);
    while !said.windows(9).any(|bytes| bytes == &window[..9]) {
        let mut some = [0; 512];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0);
        said.extend(&some[..read]);
    }
    stream.write_all(&http2::frame(4, 1, 0, &[])).unwrap();
    stream.write_all(&bytes).unwrap();
    stream
}

fn answered_over_grpc(server: &TestServer) -> u64 {
    let text = server.http().get("/metrics").body;
    let of = text
        .lines()
        .filter(|line| line.starts_with("earrrl_grpc_responses_total"));
    of.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}
