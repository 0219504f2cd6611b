//! Tests the server with a real Redis that two servers share, that is killed and restarted under
//! load, or that never runs.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::support;
use crate::support::certificates::Authority;
use crate::support::ports::free_address;
use crate::support::redis::{Redis, Sentinel};
use crate::support::resp::{Reply, encode};
use crate::support::{TestServer, until};
use earrrl::{ManualClock, Nanos};
use earrrl_server::config::{Config, EngineConfig};
use earrrl_testing::Random;
use rustix::process::Signal;
use serde_json::Value;

const RULES: &str = "[[rule]]\nname = \"api\"\nlimit = \"gcra 1/1h burst=1000\"\n\
                     [[rule]]\nname = \"average\"\nlimit = \"recent-average 1000/s half-life=1h\"\n";

/// Returns a configuration whose deadline even a slow machine meets.
fn config(url: &str, more: &str) -> String {
    let engine = format!("[engine]\nredis = \"{url}\"\ncapacity = 1000\ndeadline = \"10s\"");
    format!("{engine}\n{more}\n{RULES}")
}

/// Starts a server with this Redis, and waits until Redis decides.
fn start(redis: &Redis, more: &str) -> TestServer {
    at_work(TestServer::start(&config(&redis.url(), more)))
}

fn at_work(server: TestServer) -> TestServer {
    until("Redis decides", || engine(&server)["mode"] == "redis");
    server
}

fn engine(server: &TestServer) -> Value {
    let ready = server.http().get("/readyz");
    assert_eq!(ready.status, 200);
    ready.json()["engine"].clone()
}

fn remaining(server: &TestServer, key: &str) -> u64 {
    let body = format!("{{\"rule\":\"api\",\"key\":\"{key}\"}}");
    server.http().post("/v1/check", &body).json()["remaining"]
        .as_u64()
        .unwrap()
}

/// Returns the value of a metric, which is given with its labels.
fn metric(server: &TestServer, name: &str) -> f64 {
    let text = server.http().get("/metrics").body;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in {text}"))
        .parse()
        .unwrap()
}

/// Returns the names of the metrics that a text contains, of a histogram only the histogram's.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|w| w.starts_with("earrrl_") || w.starts_with("process_"));
    names.map(|name| name.trim_end_matches("_bucket")).collect()
}

#[test]
fn alerts_and_the_dashboard_use_metrics_that_exist() {
    let redis = Redis::start();
    let authority = Authority::new("ours");
    authority.issue("server", &["localhost"]);
    let server = start(&redis, &authority.table("listeners = [\"grpc\"]"));
    server.http().get("/v1/rules");
    let behind_a_balancer = "[server]\nproxy_protocol = [\"resp\"]\n[client_address]\n\
                             trusted_proxies = [\"127.0.0.1\"]\n[[rule]]\nname = \"a\"\n\
                             limit = \"gcra 1/s burst=9\"\n";
    let balanced = TestServer::start(behind_a_balancer);
    drop(std::net::TcpStream::connect(balanced.resp).unwrap());
    until("the connection without a head is counted", || {
        balanced
            .http()
            .get("/metrics")
            .body
            .contains("earrrl_proxy_heads_total{")
    });
    let metrics = [&server, &balanced]
        .map(|one| one.http().get("/metrics").body)
        .concat();
    let existing = metric_names(&metrics);
    for file in ["prometheus/alerts.yml", "grafana/earrrl.json"] {
        let path = format!("{}/../../contrib/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let used = metric_names(&text);
        assert!(used.len() > 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&existing).collect();
        assert!(
            unknown.is_empty(),
            "{file} uses {unknown:?}, which are not in {metrics}"
        );
        // Prometheus itself adds the label `instance`. Alerts use `$labels.NAME` in braces.
        let braces = text
            .split("{{")
            .skip(1)
            .filter_map(|rest| rest.split_once("}}"));
        let labels = braces.map(|(label, _)| label.trim().trim_start_matches("$labels."));
        for label in labels.filter(|label| *label != "instance") {
            assert!(
                metrics.contains(&format!("{label}=\"")),
                "{file}: no label {label}"
            );
        }
    }
}

#[test]
fn a_refused_reload_applies_nothing() {
    let redis = Redis::start();
    let server = start(&redis, "");
    // The capacity is too large for the memory of any machine, and comes after a changed limit.
    let more = "[[rule]]\nname = \"b\"\nlimit = \"gcra 1/s burst=1\"\ncapacity = 10_000_000_000\n";
    let text = config(&redis.url(), "").replace("burst=1000", "burst=5") + more;
    let error = server.server.reload(Ok(support::parse(&text))).unwrap_err();
    assert!(error.contains("memory"), "{error}");
    assert_eq!(remaining(&server, "alice"), 999);
}

#[test]
fn two_servers_share_their_limits() {
    let redis = Redis::start();
    let servers = [(), ()].map(|()| start(&redis, ""));
    assert_eq!(remaining(&servers[0], "alice"), 999);
    assert_eq!(remaining(&servers[1], "alice"), 998);
    assert_eq!(engine(&servers[0])["mode"], "redis");
    assert_eq!(engine(&servers[0])["trouble"], Value::Null);
    assert_eq!(
        metric(&servers[0], "earrrl_engine_mode{mode=\"redis\"}"),
        1.0
    );
    assert_eq!(
        metric(&servers[0], "earrrl_engine_decisions_total{by=\"redis\"}"),
        1.0
    );

    let mut resp = servers[1].resp();
    assert_eq!(
        resp.line("EARRRL.REFUND api alice 1"),
        Reply::Simple("OK".into())
    );
    assert_eq!(remaining(&servers[0], "alice"), 998);
    assert_eq!(
        servers[0]
            .http()
            .request("DELETE", "/v1/clients/api/alice", "", b"")
            .status,
        204
    );
    assert_eq!(remaining(&servers[1], "alice"), 999);

    assert_eq!(
        resp.line("CL.THROTTLE k 9 1 60"),
        Reply::integers(&[0, 10, 9, -1, 60])
    );
    let mut other = servers[0].resp();
    assert_eq!(
        other.line("CL.THROTTLE k 9 1 60"),
        Reply::integers(&[0, 10, 8, -1, 120])
    );
    for deleted in [1, 0] {
        assert_eq!(other.line("DEL k nothing"), Reply::Integer(deleted));
    }
    assert_eq!(
        resp.line("CL.THROTTLE k 9 1 60"),
        Reply::integers(&[0, 10, 9, -1, 60])
    );
}

#[test]
fn clients_can_be_kept_out_of_redis() {
    let redis = Redis::start();
    let server = start(&redis, "prefix = \"p\"\nhmac_key = \"0123456789abcdef\"");
    remaining(&server, "alice");
    let Reply::Array(keys) = redis.client().line("KEYS p2:{*}:api:*") else {
        panic!("no list")
    };
    let [Reply::Bulk(key)] = &keys[..] else {
        panic!("{keys:?}")
    };
    assert_eq!(
        key.iter().position(|byte| *byte == b'}'),
        Some("p2:{".len() + 32),
        "{key:?}"
    );
}

#[test]
fn a_pipeline_is_answered_in_order_whatever_stands_in_it() {
    let redis = Redis::start();
    let server = start(&redis, "");
    let mut client = server.resp();
    let mut pipeline = Vec::new();
    for nth in 0..1000 {
        pipeline.extend(encode(&[b"EARRRL.CHECK", b"api", b"alice"]));
        match nth % 100 {
            50 => pipeline.extend(encode(&[b"ECHO", nth.to_string().as_bytes()])),
            99 => pipeline.extend(encode(&[b"EARRRL.RESET", b"api", b"alice"])),
            _ => {}
        }
    }
    client.send(&pipeline);
    for nth in 0..1000 {
        let pairs = client.reply().pairs();
        let left = (999 - nth % 100).to_string();
        assert_eq!(
            pairs[4],
            ("remaining".to_owned(), Reply::bulk(&left)),
            "{nth}"
        );
        match nth % 100 {
            50 => assert_eq!(client.reply(), Reply::bulk(&nth.to_string())),
            99 => assert_eq!(client.reply(), Reply::Simple("OK".into())),
            _ => {}
        }
    }
}

/// Sends random calls to a server in memory and one with Redis, at the same instants; the answers
/// must be equal.
#[test]
fn throttle_answers_as_it_does_in_memory() {
    let redis = Redis::start();
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let mut shared = support::parse(&config(&redis.url(), ""));
    let EngineConfig::Redis(engine) = &mut shared.engine else {
        panic!("another engine")
    };
    engine.own_clock = true;
    engine.options.linger = Duration::from_secs(3600);
    let servers = [
        TestServer::with_clock(support::parse(RULES), clock.clone()),
        at_work(TestServer::with_clock(shared, clock.clone())),
    ];
    let mut clients = servers.each_ref().map(TestServer::resp);
    let mut random = Random::new(7);
    let mut limited = 0;
    let mut sent = 0;
    for _ in 0..100 {
        clock.advance(Duration::from_micros(random.below(1_000_000)));
        let call = |_| {
            let key = random.below(5);
            let burst = random.below(6);
            let count = 1 + random.below(7);
            let period = 1 + random.below(9);
            let quantity = random.below(5);
            format!("CL.THROTTLE k{key} {burst} {count} {period} {quantity}\r\n")
        };
        let pipeline: Vec<String> = (0..50).map(call).collect();
        clients
            .iter_mut()
            .for_each(|client| client.send(pipeline.concat().as_bytes()));
        for call in &pipeline {
            let [expected, got] = clients.each_mut().map(support::resp::Client::reply);
            assert_eq!(got, expected, "{call}");
            let Reply::Array(integers) = got else {
                panic!("{call}: {got:?}")
            };
            limited += u32::from(integers[0] == Reply::Integer(1));
            sent += 1;
        }
    }
    assert!((sent / 5..sent).contains(&limited), "{limited} of {sent}");
    let absurd = clients[1].line("CL.THROTTLE k 1000000 1 5000");
    assert!(matches!(absurd, Reply::Error(text) if text.contains("hundred years")));
}

#[test]
fn a_batch_is_decided_in_order() {
    let redis = Redis::start();
    let server = start(&redis, "");
    let checks = vec!["{\"rule\":\"api\",\"key\":\"alice\"}"; 500].join(",");
    let answer = server
        .http()
        .post("/v1/check/batch", &format!("{{\"checks\":[{checks}]}}"));
    let answer = answer.json();
    let left = answer["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["remaining"].as_u64());
    assert!(left.eq((500..1000).rev().map(Some)));
}

#[test]
fn killed_and_restarted_under_load_no_request_fails() {
    let mut redis = Redis::start();
    let server = start(&redis, "");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.http();
            while !stop.load(Relaxed) {
                let check = client.post("/v1/check", "{\"rule\":\"average\",\"key\":\"bob\"}");
                assert_eq!(check.status, 200, "{}", check.body);
            }
        });
        scope.spawn(|| {
            let mut client = server.resp();
            let pipeline = encode(&[b"EARRRL.CHECK", b"average", b"carol"]).repeat(20);
            while !stop.load(Relaxed) {
                client.send(&pipeline);
                for _ in 0..20 {
                    assert_eq!(client.reply().pairs()[0].1, Reply::Integer(1));
                }
            }
        });
        for _ in 0..3 {
            let before = metric(&server, "earrrl_engine_decisions_total{by=\"local\"}");
            redis.kill();
            until("the policy decides", || engine(&server)["mode"] == "local");
            assert!(engine(&server)["trouble"].is_string());
            assert_eq!(metric(&server, "earrrl_engine_mode{mode=\"local\"}"), 1.0);
            until("decisions are made here", || {
                metric(&server, "earrrl_engine_decisions_total{by=\"local\"}") > before
            });
            redis.restart();
            until("Redis decides again", || engine(&server)["mode"] == "redis");
            until("it has what was counted meanwhile", || {
                engine(&server)["owed_clients"] == 0
            });
        }
        stop.store(true, Relaxed);
    });
    assert!(metric(&server, "earrrl_redis_events_total{event=\"handed_over\"}") > 0.0);
}

#[test]
fn a_redis_that_goes_while_nobody_asks_is_noticed() {
    let mut redis = Redis::start();
    let server = start(&redis, "");
    redis.kill();
    until("it is noticed", || engine(&server)["mode"] == "local");
    assert_eq!(
        metric(&server, "earrrl_engine_decisions_total{by=\"local\"}"),
        0.0
    );
}

/// While Redis is stuck, more connections wait than there is memory for. Some get an error and are
/// closed, and the others are answered when Redis continues.
#[test]
fn waiting_takes_bounded_memory() {
    let redis = Redis::start();
    let text = config(&redis.url(), "");
    let text = format!("[server]\nmax_held_memory = 1048576\n{text}");
    let server = at_work(TestServer::start(&text));
    let mut clients: Vec<_> = (0..600).map(|_| server.resp()).collect();
    redis.signal(Signal::STOP);
    for client in &mut clients {
        client.send(&encode(&[b"EARRRL.CHECK", b"api", b"alice"]));
        client.stream().set_nonblocking(true).unwrap();
    }
    until("one is told to go", || {
        clients.iter().any(|c| c.stream().peek(&mut [0]).is_ok())
    });
    redis.signal(Signal::CONT);
    let mut told_to_go = 0;
    for client in &mut clients {
        client.stream().set_nonblocking(false).unwrap();
        match client.reply() {
            Reply::Error(text) => {
                assert_eq!(text, "ERR server overloaded");
                told_to_go += 1;
            }
            answer => assert_eq!(answer.pairs()[0].1, Reply::Integer(1)),
        }
    }
    assert!((1..300).contains(&told_to_go), "{told_to_go}");
}

#[test]
fn a_redis_that_is_not_there_at_the_start_is_waited_for() {
    for (policy, status) in [("local", 200), ("allow", 200), ("deny", 429)] {
        let url = format!("redis://{}", free_address());
        let server = TestServer::start(&config(&url, &format!("policy = \"{policy}\"")));
        let state = engine(&server);
        assert_eq!(state["mode"], policy);
        assert!(
            state["trouble"].as_str().unwrap().contains("refused"),
            "{state}"
        );
        let limited = i64::from(policy == "deny");
        let Reply::Array(throttled) = server.resp().line("CL.THROTTLE k 9 1 1") else {
            panic!()
        };
        assert_eq!(
            throttled[..2],
            [Reply::Integer(limited), Reply::Integer(10)],
            "{policy}"
        );
        let check = server
            .http()
            .post("/v1/check", "{\"rule\":\"api\",\"key\":\"k\"}");
        assert_eq!(check.status, status, "{policy}: {}", check.body);
        // Counts in Redis cannot be reset during an outage, which the answer states.
        let reset = server
            .http()
            .request("DELETE", "/v1/clients/api/k", "", b"");
        assert_eq!(reset.status, 503, "{}", reset.body);
        assert_eq!(
            metric(&server, &format!("earrrl_engine_mode{{mode=\"{policy}\"}}")),
            1.0
        );
    }
}

#[test]
fn rules_are_reloaded_and_keep_their_histories() {
    let redis = Redis::start();
    let old = config(&redis.url(), "");
    let server = start(&redis, "");
    for _ in 0..500 {
        remaining(&server, "alice");
    }
    let reload = |text: &str| server.server.reload(Ok(Config::parse(text, "f").unwrap()));
    let larger = old.replace("burst=1000", "burst=2000");
    reload(&larger).unwrap();
    // A pool keeps what it lacks when its size is increased.
    assert_eq!(remaining(&server, "alice"), 1499);

    let moved = old.replace(&redis.url(), "redis://10.0.0.1");
    let prefix = old.replace("capacity", "prefix = \"p\"\ncapacity");
    for changed in [&moved, &prefix, RULES] {
        let error = reload(changed).unwrap_err();
        assert!(
            error.starts_with("[engine] has changed") && error.contains("restart"),
            "{error}"
        );
        assert_eq!(server.http().get("/readyz").json()["reload_error"], error);
        let rules = server.http().get("/v1/rules").json();
        assert_eq!(rules["rules"][0]["limit"], "gcra 1/1h burst=2000");
    }
    assert_eq!(remaining(&server, "alice"), 1498);
    let user = redis.url().replace("//", "//default:secret@");
    reload(&larger.replace(&redis.url(), &user)).unwrap();
    assert_eq!(remaining(&server, "alice"), 1497);
}

/// The state of a `CL.THROTTLE` key that Redis last returned is continued locally during an outage.
#[test]
fn throttle_is_no_amnesty_in_an_outage() {
    let mut redis = Redis::start();
    let server = start(&redis, "");
    let mut resp = server.resp();
    for left in [2, 1, 0] {
        let used = 3600 * (3 - left);
        assert_eq!(
            resp.line("CL.THROTTLE k 2 1 3600"),
            Reply::integers(&[0, 3, left, -1, used])
        );
    }
    resp.line("CL.THROTTLE other 2 1 3600");
    redis.kill();
    let first = |reply: Reply| match reply {
        Reply::Array(five) => five[0].clone(),
        other => panic!("{other:?}"),
    };
    for _ in 0..5 {
        assert_eq!(
            first(resp.line("CL.THROTTLE k 2 1 3600")),
            Reply::Integer(1)
        );
    }
    let other = (0..5).map(|_| first(resp.line("CL.THROTTLE other 2 1 3600")));
    assert_eq!(
        other
            .filter(|limited| *limited == Reply::Integer(0))
            .count(),
        2
    );
}

/// When the master dies, the Sentinels name another one. Decisions continue, first locally and then
/// there, and no charge is lost.
#[test]
fn a_master_dies_and_the_sentinel_names_another() {
    let mut master = Redis::start();
    let replica = master.replica();
    let sentinel = Sentinel::start(&master);
    let url = format!("redis://{}", sentinel.address);
    let server = at_work(TestServer::start(&config(&url, "sentinel = \"main\"")));
    assert_eq!(remaining(&server, "alice"), 999);
    until("the replica has it", || {
        let keys = replica.client().line("KEYS earrrl2:{alice}:api:b*");
        matches!(keys, Reply::Array(keys) if keys.len() == 1)
    });
    master.kill();
    let mut left = 999;
    let mut decided = || {
        left -= 1;
        assert_eq!(
            remaining(&server, "alice"),
            left,
            "no request fails, and each counts"
        );
    };
    until("the policy decides", || {
        decided();
        engine(&server)["mode"] == "local"
    });
    until("the other master decides", || {
        decided();
        engine(&server)["mode"] == "redis"
    });
    assert_eq!(sentinel.master("port"), replica.address.port().to_string());
    until("it has what was counted meanwhile", || {
        engine(&server)["owed_clients"] == 0
    });
    let before = metric(&server, "earrrl_engine_decisions_total{by=\"redis\"}");
    assert_eq!(remaining(&server, "alice"), left - 1);
    assert_eq!(
        metric(&server, "earrrl_engine_decisions_total{by=\"redis\"}"),
        before + 1.0
    );
    let other = remaining(&TestServer::start(&config(&replica.url(), "")), "alice");
    assert!(other <= left, "another server knows of it: {other}");
}
