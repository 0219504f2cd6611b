//! Tests every way in which Redis can fail. No decision may be lost or fail.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Engine, RuleId};
use earrrl_redis::{EngineMode, Options, RedisEngine, WhenGone};

use crate::support;
use crate::support::load::{Load, becomes};
use crate::support::proxy::Proxy;
use crate::support::{PATIENCE, Server, command, until};

/// A rule that never denies, so that every request is counted, and the client's count is its number
/// of requests.
const WIDE: &str = "fixed-window 9000000/3650d";

/// A deadline that a busy machine meets, so that only the test's own faults cause failures.
const DEADLINE: Duration = Duration::from_millis(100);

async fn engine(mut options: Options) -> (Arc<RedisEngine>, RuleId) {
    options.deadline = DEADLINE;
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    let rule = engine.prepare("wide", &WIDE.parse().unwrap()).unwrap();
    (Arc::new(engine), rule)
}

/// Returns a client's count in Redis.
async fn counted(engine: &RedisEngine, rule: RuleId, client: &str) -> u64 {
    let charge = Charge {
        rule,
        key: client.as_bytes(),
        cost: Cost::ONE,
    };
    9_000_000
        - engine
            .decide(&[charge], earrrl::Mode::Peek, None)
            .await
            .unwrap()
            .remaining
}

/// Asserts that all requests are in Redis, and at most `twice` of them a second time: those whose
/// connection broke, so that their fate is unknown.
async fn nothing_is_lost(engine: &RedisEngine, rule: RuleId, load: Load, twice: u64) {
    let sent = load.stop().await;
    assert!(engine.ready(PATIENCE).await);
    until("counts are handed over", || {
        let status = engine.status();
        status.owed == 0 && status.unsettled == 0
    })
    .await;
    let mut all = 0;
    let mut found = 0;
    for (client, sent) in sent {
        let counted = counted(engine, rule, &client).await;
        assert!(
            counted >= sent,
            "{client} sent {sent}, {counted} are counted"
        );
        (all, found) = (all + sent, found + counted);
    }
    assert!(found - all <= twice, "{found} of {all} are counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let (engine, rule) = engine(Options::new(&server.url())).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    server.kill();
    becomes(&engine, EngineMode::Alone).await;
    load.goes_on(500).await;
    server.restart().await;
    becomes(&engine, EngineMode::Shared).await;
    load.goes_on(500).await;
    nothing_is_lost(&engine, rule, load, 64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_for_a_while() {
    let server = Server::start(&[]).await;
    let (engine, rule) = engine(Options::new(&server.url())).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    server.signal("STOP");
    becomes(&engine, EngineMode::Alone).await;
    load.goes_on(500).await;
    server.signal("CONT");
    becomes(&engine, EngineMode::Shared).await;
    load.goes_on(500).await;
    nothing_is_lost(&engine, rule, load, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_swallowed() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let (engine, rule) = engine(Options::new(&proxy.url())).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    proxy.swallow();
    becomes(&engine, EngineMode::Alone).await;
    load.goes_on(500).await;
    becomes(&engine, EngineMode::Shared).await;
    load.goes_on(500).await;
    // Redis may have executed requests whose answers were dropped.
    nothing_is_lost(&engine, rule, load, 64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed() {
    let server = Server::start(&[]).await;
    let (engine, rule) = engine(Options::new(&server.url())).await;
    let load = Load::start(&engine, rule);
    for _ in 0..20 {
        load.goes_on(50).await;
        server.command::<String>(&["SCRIPT", "FLUSH"]).unwrap();
    }
    nothing_is_lost(&engine, rule, load, 0).await;
    assert_eq!(engine.status().counts.unusable, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_type_under_our_key() {
    let server = Server::start(&[]).await;
    let (engine, rule) = engine(Options::new(&server.url())).await;
    let charge = Charge {
        rule,
        key: b"client-0-0",
        cost: Cost::ONE,
    };
    let first = engine.decide(&[charge], earrrl::Mode::Check, None).await;
    assert!(first.unwrap().allowed);
    let key = &support::key_of(&server, "client-0-0", "wide")[..];
    server.command::<i64>(&["DEL", key]).unwrap();
    server.command::<i64>(&["LPUSH", key, "not ours"]).unwrap();
    let load = Load::start(&engine, rule);
    load.goes_on(1000).await;
    assert_eq!(
        engine.status().mode,
        EngineMode::Shared,
        "one record is no outage"
    );
    assert!(engine.status().counts.unusable > 0);
    load.stop().await;
    assert_eq!(
        server.command::<String>(&["TYPE", key]).unwrap(),
        "list",
        "and is left alone"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_makes_no_sense() {
    let server = Server::start(&[]).await;
    let (engine, rule) = engine(Options::new(&server.url())).await;
    let charge = |client| Charge {
        rule,
        key: client,
        cost: Cost::ONE,
    };
    for (client, garbage) in [
        ("a", ""),
        ("b", "x"),
        ("c", "twelve bytes"),
        ("d", &"y".repeat(5000)),
    ] {
        let ask = || engine.decide(&[charge(client.as_bytes())], earrrl::Mode::Check, None);
        ask().await.unwrap();
        let key = support::key_of(&server, client, "wide");
        server.command::<String>(&["SET", &key, garbage]).unwrap();
        assert!(ask().await.unwrap().allowed);
        assert_eq!(counted(&engine, rule, client).await, 1, "{garbage}");
    }
    assert_eq!(engine.status().counts.alone, 0);
}

/// The time in a decision is that under which the charge is stored, here and in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_of_an_outage_is_found_by_its_time() {
    let mut server = Server::start(&[]).await;
    let (engine, _) = engine(Options::new(&server.url())).await;
    let rule = engine
        .prepare("log", &"sliding-log 9000/1d".parse().unwrap())
        .unwrap();
    server.kill();
    for nth in 0..20 {
        let client = format!("client-{nth}");
        let charge = |cost| Charge {
            rule,
            key: client.as_bytes(),
            cost: Cost::from_units(cost),
        };
        let decided = engine.decide(&[charge(2)], earrrl::Mode::Check, None).await;
        engine
            .refund(&charge(1), Some(decided.unwrap().at), None)
            .await
            .unwrap();
        let peek = engine
            .decide(&[charge(1)], earrrl::Mode::Peek, None)
            .await
            .unwrap();
        assert_eq!(peek.remaining, 8999, "{nth}");
    }
}

/// A record with counts that are no numbers must not keep Redis in a loop or lift the limit. It is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_that_are_no_numbers() {
    let server = Server::start(&[]).await;
    let (engine, _) = engine(Options::new(&server.url())).await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    // The places of the counts in each record.
    for (limit, places) in [
        ("sliding-counter 10/1d", &["12", "20"][..]),
        ("fixed-window 10/3650d", &["12"]),
        ("sliding-log 10/1h", &["12", "28"]),
        ("sliding-window 10/1h sub-windows=5", &["12", "28"]),
    ] {
        let name = limit.split(' ').next().unwrap();
        let rule = engine.prepare(name, &limit.parse().unwrap()).unwrap();
        for count in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e9] {
            for place in places {
                let key = format!("{name}-{place}-{count}");
                let charge = Charge {
                    rule,
                    key: key.as_bytes(),
                    cost: Cost::ONE,
                };
                let ask = || engine.decide(&[charge], earrrl::Mode::Check, None);
                ask().await.unwrap();
                let keys = server
                    .command::<Vec<String>>(&["KEYS", &format!("*{key}*")])
                    .unwrap();
                let mut set = redis::cmd("SETRANGE");
                set.arg(&keys[0]).arg(place).arg(&count.to_le_bytes()[..]);
                set.query::<i64>(&mut connection).unwrap();
                let mut allowed = 0;
                for _ in 0..12 {
                    allowed += u32::from(ask().await.unwrap().allowed);
                }
                assert_eq!(allowed, 10, "{limit}: {count} at {place}");
            }
        }
    }
    assert_eq!(engine.status().counts.alone, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let (engine, rule) = engine(Options::new(&server.url())).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    server
        .command::<String>(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    becomes(&engine, EngineMode::Alone).await;
    load.goes_on(500).await;
    assert!(engine.status().last_failure.unwrap().contains("OOM"));
    server
        .command::<String>(&["CONFIG", "SET", "maxmemory", "0"])
        .unwrap();
    becomes(&engine, EngineMode::Shared).await;
    nothing_is_lost(&engine, rule, load, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_only_reads() {
    let server = Server::start(&[]).await;
    let other = Server::start(&[]).await;
    let (engine, rule) = engine(Options::new(&server.url())).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    server
        .command::<String>(&["REPLICAOF", "127.0.0.1", &other.port.to_string()])
        .unwrap();
    becomes(&engine, EngineMode::Alone).await;
    load.goes_on(500).await;
    server
        .command::<String>(&["REPLICAOF", "NO", "ONE"])
        .unwrap();
    becomes(&engine, EngineMode::Shared).await;
    // Redis lost its data when it became the replica of the other server.
    load.stop().await;
    until("counts are handed over", || {
        engine.status().counts.handed_over > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_password_changed() {
    let server = Server::start(&[]).await;
    let user = |password: &str| {
        let password = format!(">{password}");
        let words = [
            "ACL",
            "SETUSER",
            "earrrl",
            "on",
            "resetpass",
            &password,
            "~earrrl2:*",
            "+@all",
        ];
        server.command::<String>(&words).unwrap();
    };
    let url = |password: &str| format!("redis://earrrl:{password}@127.0.0.1:{}", server.port);
    user("old");
    let (engine, rule) = engine(Options::new(&url("old"))).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    user("new");
    server
        .command::<i64>(&["CLIENT", "KILL", "USER", "earrrl"])
        .unwrap();
    becomes(&engine, EngineMode::Alone).await;
    load.goes_on(500).await;
    until("the refusal is told", || {
        engine
            .status()
            .last_failure
            .is_some_and(|why| why.contains("WRONGPASS") || why.contains("uthentication"))
    })
    .await;
    engine.set_urls(vec![url("new")]);
    becomes(&engine, EngineMode::Shared).await;
    nothing_is_lost(&engine, rule, load, 64).await;
}

/// A Redis user that may write but not call scripts cannot decide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_forbidden() {
    let server = Server::start(&[]).await;
    let user = |right: &str| {
        let words = [
            "ACL",
            "SETUSER",
            "earrrl",
            "on",
            ">secret",
            "~earrrl2:*",
            "+@all",
            right,
        ];
        server.command::<String>(&words).unwrap();
    };
    user("+@all");
    let url = format!("redis://earrrl:secret@127.0.0.1:{}", server.port);
    let (engine, rule) = engine(Options::new(&url)).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    user("-@scripting");
    becomes(&engine, EngineMode::Alone).await;
    let closed = engine.status().counts.closed;
    load.goes_on(1000).await;
    let status = engine.status();
    assert!(
        status
            .last_failure
            .is_some_and(|why| why.contains("permissions"))
    );
    assert_eq!(
        (status.mode, status.counts.closed),
        (EngineMode::Alone, closed)
    );
    user("+@scripting");
    becomes(&engine, EngineMode::Shared).await;
    nothing_is_lost(&engine, rule, load, 0).await;
    assert_eq!(engine.status().counts.not_handed_over, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_there_at_all() {
    let options = Options::new("redis://127.0.0.1:1");
    let engine = Arc::new(RedisEngine::new(options).unwrap());
    let rule = engine.prepare("wide", &WIDE.parse().unwrap()).unwrap();
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    assert_eq!(engine.status().mode, EngineMode::Connecting);
    load.stop().await;
}

#[tokio::test]
async fn the_policy_says_what_is_decided_alone() {
    for (when_gone, allowed) in [(WhenGone::Allow, true), (WhenGone::Deny, false)] {
        let mut options = Options::new("redis://127.0.0.1:1");
        options.when_gone = when_gone;
        let engine = RedisEngine::new(options).unwrap();
        let rule = engine
            .prepare("narrow", &"fixed-window 1/1m".parse().unwrap())
            .unwrap();
        for _ in 0..3 {
            let charge = Charge {
                rule,
                key: b"client",
                cost: Cost::ONE,
            };
            let decision = engine
                .decide(&[charge], earrrl::Mode::Check, None)
                .await
                .unwrap();
            assert_eq!(decision.allowed, allowed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_of_the_cluster_killed() {
    let mut cluster = support::cluster::Cluster::start().await;
    let urls = cluster.urls();
    let (engine, rule) = engine(Options::cluster(urls.iter().map(String::as_str))).await;
    let load = Load::start(&engine, rule);
    load.goes_on(1000).await;
    let slot = 100;
    let dead = cluster.master_of(slot);
    cluster.nodes[dead].kill();
    becomes(&engine, EngineMode::Partly).await;
    load.goes_on(500).await;
    cluster.fails_over(slot, dead).await;
    becomes(&engine, EngineMode::Shared).await;
    load.goes_on(500).await;
    let alive = cluster
        .urls()
        .into_iter()
        .find(|url| command::<String>(url, &["PING"]).is_ok());
    assert!(alive.is_some());
    load.stop().await;
    until("counts are handed over", || {
        engine.status().counts.handed_over > 0
    })
    .await;
}

/// The mode in `/readyz` must be the one in which decisions are made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn farther_away_than_the_deadline() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let (engine, rule) = engine(Options::new(&proxy.url())).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    proxy.set_latency(2 * DEADLINE);
    becomes(&engine, EngineMode::Alone).await;
    let late = engine.status().counts.late;
    let shared = engine.status().counts.shared;
    until("it was tried some more", || {
        engine.status().counts.connected >= 3
    })
    .await;
    let status = engine.status();
    assert_eq!(
        (status.mode, status.counts.shared),
        (EngineMode::Alone, shared),
        "{status:?}"
    );
    assert!(
        status.counts.late <= late + 8,
        "and costs no decision a deadline: {status:?}"
    );
    proxy.set_latency(Duration::ZERO);
    becomes(&engine, EngineMode::Shared).await;
    load.goes_on(500).await;
    nothing_is_lost(&engine, rule, load, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_lost_now_and_then() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let (engine, rule) = engine(Options::new(&proxy.url())).await;
    let load = Load::start(&engine, rule);
    load.goes_on(500).await;
    proxy.lose_one_in(50);
    load.goes_on(5000).await;
    until("something was late", || engine.status().counts.late > 0).await;
    proxy.lose_one_in(0);
    becomes(&engine, EngineMode::Shared).await;
    nothing_is_lost(&engine, rule, load, 0).await;
}

/// An outage is noticed even if there are no requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_cluster_killed_without_traffic() {
    let mut cluster = support::cluster::Cluster::start().await;
    let urls = cluster.urls();
    let (engine, _) = engine(Options::cluster(urls.iter().map(String::as_str))).await;
    cluster.nodes.iter_mut().for_each(Server::kill);
    becomes(&engine, EngineMode::Alone).await;
}

/// A shard that is stopped for a long time delays no other shard, and its requests count once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_shard_stopped_for_long() {
    let cluster = support::cluster::Cluster::start().await;
    cluster.without_failover();
    let urls = cluster.urls();
    let (engine, rule) = engine(Options::cluster(urls.iter().map(String::as_str))).await;
    let load = Load::start(&engine, rule);
    load.goes_on(1000).await;
    let masters: Vec<usize> = [100, 8000, 16_000]
        .map(|slot| cluster.master_of(slot))
        .into();
    for master in &masters {
        cluster.nodes[*master].signal("STOP");
    }
    becomes(&engine, EngineMode::Alone).await;
    load.goes_on(1000).await;
    for master in &masters[1..] {
        cluster.nodes[*master].signal("CONT");
    }
    becomes(&engine, EngineMode::Partly).await;
    until("the others have their counts", || {
        let status = engine.status();
        status.mode == EngineMode::Partly && status.counts.handed_over >= 100 && status.owed <= 200
    })
    .await;
    let connected = engine.status().counts.connected;
    until("it was long", || {
        engine.status().counts.connected > connected
    })
    .await;
    cluster.nodes[masters[0]].signal("CONT");
    becomes(&engine, EngineMode::Shared).await;
    nothing_is_lost(&engine, rule, load, 0).await;
}
