//! Tests calls whose answers never arrive: each request counts once, whether Redis has executed it
//! or not.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Engine, Mode, RuleId};
use earrrl_redis::{EngineMode, Options, RedisEngine};

use crate::support::cluster::Cluster;
use crate::support::load::becomes;
use crate::support::proxy::Proxy;
use crate::support::{PATIENCE, Server, called, until};

/// Rules, and the number of requests of cost 1 that each admits from idle. They are so slow that a
/// test sees no refill.
pub(crate) const RULES: [(&str, u64); 6] = [
    ("recent-average 1/s half-life=1h strict", 5194),
    ("gcra 1/1h burst=300", 300),
    ("fixed-window 300/3650d", 300),
    ("sliding-log 300/3650d", 300),
    ("sliding-window 300/3650d", 300),
    ("sliding-counter 300/3650d", 300),
];

async fn connect(mut options: Options) -> Arc<RedisEngine> {
    options.deadline = Duration::from_millis(100);
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    Arc::new(engine)
}

fn prepare(engine: &RedisEngine) -> Vec<RuleId> {
    let rules = RULES.iter().enumerate();
    rules
        .map(|(i, (text, _))| {
            engine
                .prepare(&i.to_string(), &text.parse().unwrap())
                .unwrap()
        })
        .collect()
}

/// Simultaneous requests: one under each rule, and one under all of them.
async fn ask(engine: &Arc<RedisEngine>, rules: &[RuleId]) {
    let alone = rules.iter().map(|rule| vec![*rule]);
    let tasks = alone.chain([rules.to_vec()]).map(|rules| {
        let engine = engine.clone();
        tokio::spawn(async move {
            let charges = rules.iter().map(|&rule| Charge {
                rule,
                key: b"k",
                cost: Cost::ONE,
            });
            let charges: Vec<_> = charges.collect();
            assert!(
                engine
                    .decide(&charges, Mode::Check, None)
                    .await
                    .unwrap()
                    .allowed
            );
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

async fn used(engine: &RedisEngine, rule: RuleId, burst: u64) -> u64 {
    let charge = Charge {
        rule,
        key: b"k",
        cost: Cost::ONE,
    };
    burst
        - engine
            .decide(&[charge], Mode::Peek, None)
            .await
            .unwrap()
            .remaining
}

async fn all_have(engine: &RedisEngine, rules: &[RuleId], count: u64, when: &str) {
    becomes(engine, EngineMode::Shared).await;
    until("counts are handed over", || {
        let status = engine.status();
        status.owed == 0 && status.unsettled == 0
    })
    .await;
    for (rule, (text, burst)) in rules.iter().zip(RULES) {
        assert_eq!(used(engine, *rule, burst).await, count, "{text}: {when}");
    }
    assert_eq!(engine.status().counts.not_handed_over, 0);
}

/// Calls that are executed without an answer, or not executed at all, on a connection that is
/// silent or breaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_calls_count_once() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let engine = connect(Options::new(&proxy.url())).await;
    let rules = prepare(&engine);
    ask(&engine, &rules).await;
    let mut count = 2;
    for executed in [true, false] {
        for breaks in [true, false] {
            if executed {
                proxy.mute()
            } else {
                proxy.swallow()
            }
            let asked = tokio::spawn({
                let engine = engine.clone();
                let rules = rules.clone();
                async move { ask(&engine, &rules).await }
            });
            if breaks && executed {
                let calls = || called(&server, "evalsha");
                let before = calls();
                until("calls are executed", || calls() >= before + 2).await;
            }
            if breaks {
                proxy.cut();
            }
            asked.await.unwrap();
            count += 2;
            let when = format!("executed: {executed}, breaks: {breaks}");
            all_have(&engine, &rules, count, &when).await;
        }
    }
}

/// Cancelling a request under a sliding log removes the stored request, whatever was charged later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_log_has_stored_is_taken_back_at_its_time() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let engine = connect(Options::new(&proxy.url())).await;
    let other = connect(Options::new(&server.url())).await;
    for text in [
        "sliding-log 300/3650d",
        "sliding-window 300/10s sub-windows=1000",
    ] {
        let name = text.split(' ').next().unwrap();
        let rule = |engine: &RedisEngine| engine.prepare(name, &text.parse().unwrap()).unwrap();
        let here = rule(&engine);
        let there = rule(&other);
        let charge = |rule, cost| Charge {
            rule,
            key: b"k",
            cost: Cost::from_units(cost),
        };
        proxy.mute();
        engine
            .decide(&[charge(here, 2)], Mode::Check, None)
            .await
            .unwrap();
        assert_eq!(engine.status().unsettled, 1, "{text}");
        other
            .decide(&[charge(there, 1)], Mode::Check, None)
            .await
            .unwrap();
        proxy.cut();
        becomes(&engine, EngineMode::Shared).await;
        until("counts are handed over", || {
            let status = engine.status();
            status.owed == 0 && status.unsettled == 0
        })
        .await;
        assert_eq!(used(&other, there, 300).await, 3, "{text}");
    }
}

/// A stopped server that continues executes the calls in its sockets only if it continues soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_executed_afterwards_count_once() {
    for late in [false, true] {
        let server = Server::start_with_a_clock(&[]).await;
        server.put_behind(Duration::from_secs(5));
        let proxy = Proxy::start(server.port).await;
        let engine = connect(Options::new(&proxy.url())).await;
        let rules = prepare(&engine);
        ask(&engine, &rules).await;
        server.signal("STOP");
        ask(&engine, &rules).await;
        proxy.cut();
        if late {
            server.put_behind(Duration::ZERO);
        }
        server.signal("CONT");
        all_have(&engine, &rules, 4, &format!("late: {late}")).await;
    }
}

/// After a clock was set, Redis still decides every request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_is_followed_at_once() {
    let server = Server::start_with_a_clock(&[]).await;
    let engine = connect(Options::new(&server.url())).await;
    let rules = prepare(&engine);
    for behind in [0, 3600, 0, 7200] {
        server.put_behind(Duration::from_secs(behind));
        ask(&engine, &rules).await;
    }
    let counts = engine.status().counts;
    assert_eq!((counts.shared, counts.alone), (28, 0));
}

/// A request that the node denied during the outage, and that Redis had executed, is cancelled in
/// Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_denied_here_is_taken_back_there() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(server.port).await;
    let engine = connect(Options::new(&proxy.url())).await;
    let other = connect(Options::new(&server.url())).await;
    for text in [
        "gcra 1/1h burst=3",
        "fixed-window 3/3650d",
        "sliding-log 3/3650d",
    ] {
        let name = text.split(' ').next().unwrap();
        let rule = |engine: &RedisEngine| engine.prepare(name, &text.parse().unwrap()).unwrap();
        let here = rule(&engine);
        let there = rule(&other);
        let charge = |rule| Charge {
            rule,
            key: b"k",
            cost: Cost::ONE,
        };
        for _ in 0..4 {
            engine
                .decide(&[charge(here)], Mode::Check, None)
                .await
                .unwrap();
        }
        other.refund(&charge(there), None, None).await.unwrap();
        assert_eq!(used(&other, there, 3).await, 2);
        proxy.mute();
        let denied = engine
            .decide(&[charge(here)], Mode::Check, None)
            .await
            .unwrap();
        assert!(!denied.allowed, "{text}");
        assert_eq!(used(&other, there, 3).await, 3, "{text} was executed");
        proxy.cut();
        until(&format!("{text} is taken back"), || {
            let used = used(&other, there, 3);
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(used)) == 2
        })
        .await;
        becomes(&engine, EngineMode::Shared).await;
    }
}

/// Clients in two shards, one of which does not answer: the charge in the other shard is kept,
/// once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_answers_keeps_what_it_has_stored() {
    let cluster = Cluster::start().await;
    cluster.without_failover();
    let urls = cluster.urls();
    let engine = connect(Options::cluster(urls.iter().map(String::as_str))).await;
    let rules = prepare(&engine);
    let master = |key: &str| cluster.master_of(cluster.slot_of(key));
    let far = (0..)
        .map(|number| format!("far-{number}"))
        .find(|far| master(far) != master("k"));
    let far = far.unwrap();
    let other = &cluster.nodes[master(&far)];
    let ask = async || {
        for &rule in &rules {
            let charges = [b"k", far.as_bytes()].map(|key| Charge {
                rule,
                key,
                cost: Cost::ONE,
            });
            assert!(
                engine
                    .decide(&charges, Mode::Check, None)
                    .await
                    .unwrap()
                    .allowed
            );
        }
    };
    ask().await;
    other.signal("STOP");
    ask().await;
    other.signal("CONT");
    all_have(&engine, &rules, 2, "of two shards").await;
}

/// While a slot moves, a shard rejects a call whose keys it has only in part: a client's first, whose
/// record is missing beside the node's receipts. Such a call is made without a receipt, and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_moving_slot_have_no_receipt() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    let mut options = Options::cluster(urls.iter().map(String::as_str));
    options.deadline = PATIENCE;
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await, "{:?}", engine.status());
    let rule = engine
        .prepare("rule", &"fixed-window 300/3650d".parse().unwrap())
        .unwrap();
    let slot = cluster.slot_of("k");
    let names = (0..).map(|number| format!("new-{number}"));
    let new = names
        .into_iter()
        .find(|name| cluster.slot_of(name) == slot)
        .unwrap();
    let ask = async |key: &str| {
        let charge = Charge {
            rule,
            key: key.as_bytes(),
            cost: Cost::ONE,
        };
        assert!(
            engine
                .decide(&[charge], Mode::Check, None)
                .await
                .unwrap()
                .allowed
        );
    };
    ask("k").await;
    assert_eq!(engine.status().counts.without_receipt, 0);
    let from = cluster.master_of(slot);
    let to = [0, 8000, 16_000].map(|slot| cluster.master_of(slot));
    let to = to.into_iter().find(|to| *to != from).unwrap();
    cluster.begin_to_move_slot(slot, from, to);
    ask(&new).await;
    assert_eq!(engine.status().counts.without_receipt, 1);
}
