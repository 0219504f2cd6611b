//! Overrides that are set while the server runs: over HTTP and RESP, under load, over a kill, and by two servers on one
//! Redis.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use earrrl::Nanos;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::http::{Client, Response};
use crate::support::process::Process;
use crate::support::redis::Redis;
use crate::support::resp::Reply;
use crate::support::{TestServer, parse, until};

const RULES: &str = "[[rule]]\nname = \"api\"\nlimit = \"fixed-window 2/1h\"\nkey = \"user\"\n\
    [[rule]]\nname = \"two\"\nlimit = \"gcra 1/s burst=2\"\nkey = [\"client\", \"'x'\", \"user\"]\n\
    exempt = { user = \"root\" }\n\
    [[rule]]\nname = \"all\"\nlimit = \"gcra 1/s burst=2\"\nkey = \"'all'\"\n\
    [[rule]]\nname = \"jobs\"\nlimit = \"concurrent 2 timeout=60s\"\nkey = \"user\"\n";
const TOKENS: &str = "[server]\n\
    [[server.token]]\nname = \"billing\"\ntoken = \"billing-token-0123456789\"\nscopes = [\"overrides\"]\nrules = [\"api\"]\n\
    [[server.token]]\nname = \"root\"\ntoken = \"root-token-0123456789\"\nscopes = [\"admin\"]\n";
const JSON: &str = "Content-Type: application/json\r\n";

fn put(client: &mut Client, path: &str, body: &str) -> Response {
    let path = format!("/v1/overrides/{path}");
    client.request("PUT", &path, JSON, body.as_bytes())
}

fn limit(text: &str) -> String {
    json!({ "limit": text }).to_string()
}

/// Returns the quota of the limit under which a client is judged.
fn quota(client: &mut Client, rule: &str, key: &str) -> u32 {
    let body = json!({ "rule": rule, "key": key }).to_string();
    let answer = client.post("/v1/peek", &body);
    let policy = answer.header("ratelimit-policy").unwrap();
    let quota = policy.split(";q=").nth(1).unwrap().split(';').next();
    quota.unwrap().parse().unwrap()
}

#[test]
fn an_override_is_in_force_at_the_next_decision_and_ends_when_it_is_deleted() {
    let server = TestServer::start(RULES);
    let mut http = server.http();
    let set = put(&mut http, "api/alice", &limit("fixed-window 50/1h"));
    let answer = set.json();
    assert_eq!((set.status, &answer["active"]), (200, &json!(true)));
    assert_eq!(quota(&mut http, "api", "alice"), 50);
    assert_eq!(quota(&mut http, "api", "bob"), 2);
    put(&mut http, "api/alice", &limit("fixed-window 60/1h"));
    assert_eq!(quota(&mut http, "api", "alice"), 60);
    let shown = http.get("/v1/overrides/api/alice").json();
    assert_eq!(
        (&shown["limit"], &shown["key"]),
        (&json!("fixed-window 60/1h"), &json!(["alice"]))
    );
    let deleted = http.request("DELETE", "/v1/overrides/api/alice", "", b"");
    assert_eq!(deleted.status, 204);
    assert_eq!(quota(&mut http, "api", "alice"), 2);
    assert_eq!(http.get("/v1/overrides/api/alice").status, 404);
    let again = http.request("DELETE", "/v1/overrides/api/alice", "", b"");
    assert_eq!(again.status, 404);
}

/// A client's charges are kept when its override gets another quota of the same window.
#[test]
fn a_changed_override_keeps_the_state_of_its_client() {
    let (server, _clock) = TestServer::manual(RULES);
    let mut http = server.http();
    put(&mut http, "api/alice", &limit("fixed-window 50/1h"));
    http.post("/v1/charge", r#"{"rule":"api","key":"alice","cost":30}"#);
    put(&mut http, "api/alice", &limit("fixed-window 60/1h"));
    let left = http.post("/v1/peek", r#"{"rule":"api","key":"alice"}"#);
    assert_eq!(left.json()["remaining"], 30);
}

#[test]
fn keys_of_several_parts_and_escaped_ones_are_found_by_decisions_on_attributes() {
    let server = TestServer::start(RULES);
    let mut http = server.http();
    let set = put(&mut http, "two/192.0.2.7/a%2Fb", &limit("gcra 1/s burst=7"));
    assert_eq!(set.status, 200, "{}", set.body);
    let attributes = json!({ "client": "192.0.2.7", "user": "a/b" });
    let body = json!({ "attributes": attributes }).to_string();
    let answer = http.post("/v1/check", &body);
    let policies = answer.header("ratelimit-policy").unwrap();
    assert!(policies.contains("\"two\";q=7;"), "{policies}");
    assert_eq!(quota(&mut http, "two", "9:192.0.2.7,1:x,3:a/b,"), 7);
    assert_eq!(quota(&mut http, "two", "9:192.0.2.7,1:x,3:a/c,"), 2);
}

#[test]
fn each_mistake_gets_one_clear_error() {
    let (server, _clock) = TestServer::manual(RULES);
    let mut http = server.http();
    let good = limit("gcra 1/s burst=7");
    let until = |at: u64| json!({ "limit": "gcra 1/s burst=7", "expires": at }).to_string();
    let long = "k".repeat(1025);
    for (path, body, status, why) in [
        ("nope/alice", &*good, 404, "rule: no rule is named `nope`"),
        (
            "two/192.0.2.7",
            &good,
            422,
            "key: 1 parts; expected 2: client, user",
        ),
        ("api/a/b", &good, 422, "key: 2 parts; expected 1: user"),
        (
            "api/guest-*",
            &good,
            422,
            "key: user: `guest-*` is not the value of one client",
        ),
        (
            "two/10.0.0.0%2F8/a",
            &good,
            422,
            "key: client: `10.0.0.0/8` is not the value of one client",
        ),
        (
            "two/10.0.0.1/",
            &good,
            422,
            "key: user: `` is not the value of one client",
        ),
        (
            "all/all",
            &good,
            422,
            "key: the rule has one limit for all clients",
        ),
        (
            "two/10.0.0.1/root",
            &good,
            422,
            "key: these are exempt from the rule",
        ),
        ("api/%FF", &good, 422, "key: expected UTF-8"),
        ("api/alice", &limit("gcra 1/s burts=7"), 422, "limit: "),
        (
            "api/alice",
            &limit("concurrent 7 timeout=60s"),
            422,
            "limit: expected concurrent for the rule",
        ),
        (
            "api/alice",
            &limit(&"g".repeat(257)),
            422,
            "limit: 257 bytes; at most 256",
        ),
        (
            "api/alice",
            &until(1_799_999_999),
            422,
            "expires: 1799999999 is not after now, 1800000000",
        ),
        (
            "api/alice",
            r#"{"expires":1900000000}"#,
            400,
            "missing field `limit`",
        ),
        (
            "api/alice",
            r#"{"limit":"gcra 1/s burst=7","ttl":9}"#,
            400,
            "unknown field `ttl`",
        ),
        (
            &format!("api/{long}"),
            &good,
            422,
            "key: 1025 bytes; at most 1024",
        ),
    ] {
        let answer = put(&mut http, path, body);
        let detail = answer.json()["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert_eq!(answer.status, status, "{path}: {detail}");
        assert!(detail.contains(why), "{path}: {detail}");
    }
    let listed = http.get("/v1/overrides").json();
    assert_eq!(listed, json!({ "overrides": [], "next": null }));
}

#[test]
fn overrides_are_listed_with_a_cursor_their_author_and_their_time() {
    let (server, _clock) = TestServer::manual(&format!("{TOKENS}{RULES}"));
    let mut root = server.http();
    root.token = Some("root-token-0123456789".to_owned());
    let mut billing = server.http();
    billing.token = Some("billing-token-0123456789".to_owned());
    for user in ["a", "b/c", "d"] {
        let path = format!("api/{}", user.replace('/', "%2F"));
        assert_eq!(
            put(&mut billing, &path, &limit("fixed-window 9/1h")).status,
            200
        );
    }
    put(&mut root, "two/10.0.0.1/a", &limit("gcra 1/s burst=7"));
    let first = billing.get("/v1/overrides?limit=2").json();
    assert_eq!(first["next"], "api/b%2Fc");
    let one = &first["overrides"][0];
    let facts = json!({
        "rule": "api", "key": ["a"], "limit": "fixed-window 9/1h", "expires": null,
        "by": "billing", "at": 1_800_000_000, "active": true,
    });
    assert_eq!(*one, facts);
    let rest = billing
        .get("/v1/overrides?limit=2&after=api%2Fb%252Fc")
        .json();
    assert_eq!(
        (&rest["overrides"][0]["key"], &rest["next"]),
        (&json!(["d"]), &Value::Null)
    );
    let all = root.get("/v1/overrides").json();
    assert_eq!(all["overrides"].as_array().unwrap().len(), 4);
    let refused = put(&mut billing, "two/10.0.0.1/a", &limit("gcra 1/s burst=9"));
    assert_eq!(refused.status, 403);
    let metrics = root.get("/metrics").body;
    assert!(metrics.contains("earrrl_overrides 4"), "{metrics}");
    let counted = "earrrl_override_changes_total{change=\"set\"} 4";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn a_token_needs_the_scope() {
    let reader = "[[server.token]]\nname = \"reader\"\ntoken = \"reader-token-0123456789\"\nscopes = [\"top\", \"peek\"]\n";
    let server = TestServer::start(&format!("{TOKENS}{reader}{RULES}"));
    let mut http = server.http();
    http.token = Some("reader-token-0123456789".to_owned());
    for (method, path) in [
        ("PUT", "/v1/overrides/api/a"),
        ("GET", "/v1/overrides/api/a"),
        ("DELETE", "/v1/overrides/api/a"),
        ("GET", "/v1/overrides"),
    ] {
        let answer = http.request(method, path, JSON, limit("gcra 1/s burst=1").as_bytes());
        assert_eq!(answer.status, 403, "{method} {path}");
        assert_eq!(
            answer.json()["detail"],
            "the token \"reader\" lacks the scope \"overrides\""
        );
    }
    let mut resp = server.resp();
    resp.line("AUTH reader-token-0123456789");
    let refused = resp.line("EARRRL.OVERRIDE GET api a");
    assert_eq!(
        refused,
        Reply::Error("NOPERM the token \"reader\" lacks the scope \"overrides\"".into())
    );
}

#[test]
fn resp_sets_shows_lists_and_removes_them() {
    let server = TestServer::start(RULES);
    let mut resp = server.resp();
    let set: &[&[u8]] = &[
        b"EARRRL.OVERRIDE",
        b"SET",
        b"api",
        b"fixed-window 3/1h",
        b"KEY",
        b"alice",
    ];
    // A pipeline: the decision after the command is under the new limit.
    for _ in 0..3 {
        resp.send(&crate::support::resp::encode(&[
            b"EARRRL.CHECK",
            b"api",
            b"bob",
        ]));
    }
    resp.send(&crate::support::resp::encode(set));
    for _ in 0..3 {
        resp.send(&crate::support::resp::encode(&[
            b"EARRRL.ALLOW",
            b"api",
            b"alice",
        ]));
    }
    for _ in 0..3 {
        resp.reply();
    }
    assert_eq!(resp.reply(), Reply::Simple("OK".into()));
    for _ in 0..3 {
        let Reply::Array(verdict) = resp.reply() else {
            panic!("no array");
        };
        assert_eq!(verdict[0], Reply::Integer(1));
    }
    let far: &[&[u8]] = &[
        b"EARRRL.OVERRIDE",
        b"SET",
        b"api",
        b"fixed-window 4/1h",
        b"EXPIRES",
        b"99999999999",
        b"KEY",
        b"bob",
    ];
    assert_eq!(resp.call(far), Reply::Simple("OK".into()));
    let shown = resp.line("EARRRL.OVERRIDE GET api bob").pairs();
    assert_eq!(
        shown[2],
        ("limit".to_owned(), Reply::bulk("fixed-window 4/1h"))
    );
    assert_eq!(shown[3], ("expires".to_owned(), Reply::bulk("99999999999")));
    let Reply::Array(all) = resp.line("EARRRL.OVERRIDE LIST api") else {
        panic!("no array");
    };
    assert_eq!(all.len(), 2);
    let Reply::Array(rest) = resp.line("EARRRL.OVERRIDE LIST api AFTER alice") else {
        panic!("no array");
    };
    assert_eq!(rest.len(), 1);
    assert_eq!(
        resp.line("EARRRL.OVERRIDE DEL api alice"),
        Reply::Integer(1)
    );
    assert_eq!(
        resp.line("EARRRL.OVERRIDE DEL api alice"),
        Reply::Integer(0)
    );
    let wrong = resp.line("EARRRL.OVERRIDE MOVE api alice");
    let expected = "ERR EARRRL.OVERRIDE: expected SET, GET, DEL or LIST";
    assert_eq!(wrong, Reply::Error(expected.into()));
}

#[test]
fn an_override_ends_at_its_time() {
    let (server, clock) = TestServer::manual(RULES);
    let mut http = server.http();
    let body = json!({ "limit": "fixed-window 50/1h", "expires": 1_800_000_010.9 }).to_string();
    assert_eq!(put(&mut http, "api/alice", &body).status, 200);
    clock.set(Nanos::from_secs(1_800_000_009));
    assert_eq!(quota(&mut http, "api", "alice"), 50);
    clock.set(Nanos::from_secs(1_800_000_010));
    until("the override has ended", || {
        quota(&mut http, "api", "alice") == 2
    });
    let metrics = http.get("/metrics").body;
    assert!(
        metrics.contains("earrrl_override_changes_total{change=\"expired\"} 1"),
        "{metrics}"
    );
}

#[test]
fn a_reload_keeps_overrides_and_a_rule_that_is_back_has_its_own_again() {
    let server = TestServer::start(RULES);
    let mut http = server.http();
    put(&mut http, "api/alice", &limit("fixed-window 50/1h"));
    server.server.reload(Ok(parse(RULES))).unwrap();
    assert_eq!(quota(&mut http, "api", "alice"), 50);
    server
        .server
        .reload(Ok(parse(&RULES.replace("\"api\"", "\"other\""))))
        .unwrap();
    assert_eq!(http.get("/v1/overrides/api/alice").json()["active"], false);
    server.server.reload(Ok(parse(RULES))).unwrap();
    assert_eq!(quota(&mut http, "api", "alice"), 50);
}

/// An override that is set at run time comes before those of the file, which are in force again once it is gone.
#[test]
fn the_overrides_of_the_file_stay_behind_those_of_run_time() {
    let of_file = "[[rule]]\nname = \"api\"\nlimit = \"fixed-window 2/1h\"\nkey = \"user\"\n\
        [[rule.override]]\nkey = { user = \"alice\" }\nlimit = \"fixed-window 5/1h\"\n";
    let server = TestServer::start(of_file);
    let mut http = server.http();
    assert_eq!(quota(&mut http, "api", "alice"), 5);
    put(&mut http, "api/alice", &limit("fixed-window 50/1h"));
    assert_eq!(quota(&mut http, "api", "alice"), 50);
    http.request("DELETE", "/v1/overrides/api/alice", "", b"");
    assert_eq!(quota(&mut http, "api", "alice"), 5);
}

/// Returns the text of a configuration with state files in a folder, which do not keep the states of `jobs`.
fn on_files(folder: &Path) -> String {
    let state = folder.join("state");
    let (rules, _) = RULES.split_once("[[rule]]\nname = \"jobs\"").unwrap();
    format!("[engine]\nstate = {state:?}\ncapacity = 1000\n{rules}")
}

/// Decides requests without a pause until `stopped` is true. Returns their number.
fn decide_until(address: SocketAddr, stopped: &AtomicBool) -> u64 {
    let mut resp = crate::support::resp::Client::connect(address);
    let mut decisions = 0;
    while !stopped.load(Relaxed) {
        for _ in 0..100 {
            resp.send(b"*3\r\n$12\r\nEARRRL.ALLOW\r\n$3\r\napi\r\n$3\r\nbob\r\n");
        }
        for _ in 0..100 {
            resp.reply();
        }
        decisions += 100;
    }
    decisions
}

/// While threads decide without a pause, each of a thousand overrides is in force at the first decision after its
/// answer, and after the server was killed.
#[test]
fn a_thousand_overrides_are_each_in_force_at_the_next_decision_and_after_a_kill() {
    let quota_of = |nth: u32| 10 + nth % 7;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    std::fs::write(&file, on_files(folder.path())).unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let mut process = Process::start(&arguments);
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = [(); 2].map(|()| scope.spawn(|| decide_until(process.resp, &stopped)));
        let mut http = Client::connect(process.http);
        let begun = Instant::now();
        let mut times = Vec::new();
        for nth in 0..1000 {
            let body = limit(&format!("fixed-window {}/1h", quota_of(nth)));
            let sent = Instant::now();
            let set = put(&mut http, &format!("api/u{nth}"), &body);
            assert_eq!(set.status, 200, "{}", set.body);
            let answered = Instant::now();
            assert_eq!(quota(&mut http, "api", &format!("u{nth}")), quota_of(nth));
            times.push([answered - sent, answered.elapsed()]);
        }
        let took = begun.elapsed().as_secs_f64();
        stopped.store(true, Relaxed);
        let decisions: u64 = load.into_iter().map(|thread| thread.join().unwrap()).sum();
        let [written, decided] = [0, 1].map(|which| {
            let mut times: Vec<_> = times.iter().map(|pair| pair[which]).collect();
            times.sort_unstable();
            [500, 990, 999].map(|nth| times[nth])
        });
        println!(
            "{:.0} decisions a second; half, 990 and all of 1000: written in {written:?}, decided by in {decided:?}",
            decisions as f64 / took
        );
    });
    process.signal(Signal::KILL);
    process.child.wait().unwrap();
    let process = Process::start(&arguments);
    let mut http = Client::connect(process.http);
    for nth in 0..1000 {
        assert_eq!(
            quota(&mut http, "api", &format!("u{nth}")),
            quota_of(nth),
            "{nth}"
        );
    }
}

/// One more than the most is refused; a change of one that is there, and one in the place of another, are not.
#[test]
fn more_overrides_than_the_most_are_refused() {
    const MOST: usize = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let config = on_files(folder.path());
    std::fs::create_dir(folder.path().join("state")).unwrap();
    let set = |nth: usize| {
        json!({ "rule": "api", "key": [format!("u{nth}")], "limit": "fixed-window 9/1h", "expires": null,
            "by": null, "at": 1_800_000_000 })
    };
    let sets: Vec<Value> = (0..MOST).map(set).collect();
    let file = folder.path().join("state/overrides.json");
    std::fs::write(file, Value::from(sets).to_string()).unwrap();
    let server = TestServer::start(&config);
    let mut http = server.http();
    assert_eq!(quota(&mut http, "api", &format!("u{}", MOST - 1)), 9);
    let refused = put(&mut http, "api/late", &limit("fixed-window 9/1h"));
    assert_eq!(refused.status, 422, "{}", refused.body);
    let why =
        "overrides: 10000 are set, and no more may be; delete some, or write them into the file";
    assert!(refused.body.contains(why), "{}", refused.body);
    assert_eq!(quota(&mut http, "api", "late"), 2);
    assert_eq!(
        put(&mut http, "api/u7", &limit("fixed-window 8/1h")).status,
        200
    );
    assert_eq!(
        http.request("DELETE", "/v1/overrides/api/u7", "", b"")
            .status,
        204
    );
    assert_eq!(
        put(&mut http, "api/late", &limit("fixed-window 9/1h")).status,
        200
    );
    assert_eq!(quota(&mut http, "api", "late"), 9);
}

/// Each limit that overrides have had keeps its file until the server stops.
#[test]
fn more_different_limits_than_the_most_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(&on_files(folder.path()));
    let mut http = server.http();
    let mut set = |quota: usize| {
        put(
            &mut http,
            "api/ann",
            &limit(&format!("gcra {quota}/s burst=9")),
        )
    };
    for quota in 1..=256 {
        let answer = set(quota);
        assert_eq!(answer.status, 200, "{quota}: {}", answer.body);
    }
    let refused = set(257);
    assert_eq!(refused.status, 422, "{}", refused.body);
    let why = "limit: overrides have had 256 different limits since the server started, and no more may be";
    assert!(refused.body.contains(why), "{}", refused.body);
    assert_eq!(set(256).status, 200);
}

#[test]
fn no_answered_override_is_lost_when_the_server_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    std::fs::write(&file, on_files(folder.path())).unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let mut answered = 0;
    for round in 0..4 {
        let mut process = Process::start(&arguments);
        let mut http = Client::connect(process.http);
        for nth in 0..answered {
            let limit = 10 + nth % 7;
            assert_eq!(
                quota(&mut http, "api", &format!("u{nth}")),
                limit,
                "{round}: {nth}"
            );
        }
        for _ in 0..25 {
            let body = limit(&format!("fixed-window {}/1h", 10 + answered % 7));
            let set = put(&mut http, &format!("api/u{answered}"), &body);
            assert_eq!(set.status, 200, "{}", set.body);
            answered += 1;
        }
        process.signal(Signal::KILL);
        process.child.wait().unwrap();
    }
}

/// Two servers on one directory of state files have the same overrides.
#[test]
fn servers_on_one_directory_share_overrides() {
    let folder = tempfile::tempdir().unwrap();
    let engine = format!("[engine]\nstate = {:?}\n", folder.path().join("state"));
    let rule = "[[rule]]\nname = \"api\"\nlimit = \"fixed-window 2/1h\"\nkey = \"user\"\n";
    shared_by_two_servers(&format!("{engine}{rule}"));
}

#[test]
fn servers_on_one_redis_share_overrides() {
    let redis = Redis::start();
    let config = format!(
        "[engine]\nredis = {:?}\ndeadline = \"10s\"\n{RULES}",
        redis.url()
    );
    shared_by_two_servers(&config);
    // A server that starts later has them from its first decision.
    let one = TestServer::start(&config);
    assert_eq!(
        put(&mut one.http(), "api/late", &limit("fixed-window 70/1h")).status,
        200
    );
    let later = TestServer::start(&config);
    assert_eq!(quota(&mut later.http(), "api", "late"), 70);
}

fn shared_by_two_servers(config: &str) {
    let servers = [TestServer::start(config), TestServer::start(config)];
    let [mut one, mut other] = servers.each_ref().map(TestServer::http);
    assert_eq!(
        put(&mut one, "api/alice", &limit("fixed-window 50/1h")).status,
        200
    );
    assert_eq!(quota(&mut one, "api", "alice"), 50);
    until("the other server has it", || {
        quota(&mut other, "api", "alice") == 50
    });
    one.post("/v1/charge", r#"{"rule":"api","key":"alice","cost":20}"#);
    let left = other.post("/v1/peek", r#"{"rule":"api","key":"alice"}"#);
    assert_eq!(left.json()["remaining"], 30);
    assert_eq!(
        put(&mut other, "api/bob", &limit("fixed-window 60/1h")).status,
        200
    );
    until("both have both", || quota(&mut one, "api", "bob") == 60);
    assert_eq!(quota(&mut one, "api", "alice"), 50);
    assert_eq!(
        other
            .request("DELETE", "/v1/overrides/api/alice", "", b"")
            .status,
        204
    );
    until("it is gone", || quota(&mut one, "api", "alice") == 2);
}

/// Where names of clients must not be stored in Redis, an override cannot be.
#[test]
fn an_override_is_refused_where_redis_may_have_no_names() {
    let redis = Redis::start();
    let hashed = "hmac_key = \"a secret of all servers that is long enough\"";
    let config = format!("[engine]\nredis = {:?}\n{hashed}\n{RULES}", redis.url());
    let server = TestServer::start(&config);
    let mut http = server.http();
    let refused = put(&mut http, "api/alice", &limit("fixed-window 50/1h"));
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("hmac_key"), "{}", refused.body);
    assert_eq!(quota(&mut http, "api", "alice"), 2);
}
