//! An outage does not reset clients: a node that decides alone continues from the last state that
//! Redis reported.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Engine, ManualClock, Mode, Nanos, RuleId};
use earrrl_redis::{Options, RedisEngine};

use crate::support::load::becomes;
use crate::support::proxy::Proxy;
use crate::support::{PATIENCE, Server, until};

/// Rules under which a client that has used its whole quota stays denied for longer than the test
/// takes.
pub(crate) const RULES: [&str; 9] = [
    "recent-average 0.001/s half-life=1h",
    "recent-average 0.001/s half-life=1h leaky",
    "exponential 5/1h strict",
    "exponential 5/1h",
    "gcra 1/1h burst=5",
    "fixed-window 5/3650d",
    "sliding-log 5/3650d",
    "sliding-window 5/3650d",
    "sliding-counter 5/3650d",
];

async fn node(url: &str) -> RedisEngine {
    // The node's clock is an hour off. Redis's clock counts, and during the outage the state that
    // Redis last reported.
    let hour = Duration::from_secs(3600);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        - hour;
    let clock = ManualClock::new(Nanos::new(now.as_nanos() as u64));
    let mut options = Options::new(url);
    options.deadline = Duration::from_secs(1);
    let node = RedisEngine::with_clock(options, Arc::new(clock)).unwrap();
    assert!(node.ready(PATIENCE).await, "{:?}", node.status());
    node
}

async fn allowed(engine: &RedisEngine, rule: RuleId, times: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..times {
        let charge = Charge {
            rule,
            key: b"k",
            cost: Cost::ONE,
        };
        allowed += usize::from(
            engine
                .decide(&[charge], Mode::Check, None)
                .await
                .unwrap()
                .allowed,
        );
    }
    allowed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_out_stays_out_on_every_node() {
    let mut server = Server::start(&[]).await;
    let nodes = [node(&server.url()).await, node(&server.url()).await];
    let prepare = |node: &RedisEngine| {
        RULES.map(|text| {
            let name: String = text
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
                .collect();
            node.prepare(&name, &text.parse().unwrap()).unwrap()
        })
    };
    let rules = [prepare(&nodes[0]), prepare(&nodes[1])];
    for place in 0..RULES.len() {
        let one = rules[0][place];
        let other = rules[1][place];
        assert!(
            (4..=8).contains(&allowed(&nodes[0], one, 40).await),
            "{}",
            RULES[place]
        );
        assert_eq!(allowed(&nodes[1], other, 1).await, 0, "{}", RULES[place]);
    }
    server.kill();
    for (node, rules) in nodes.iter().zip(rules) {
        for (rule, text) in rules.into_iter().zip(RULES) {
            assert_eq!(allowed(node, rule, 20).await, 0, "{text}");
        }
        becomes(node, earrrl_redis::EngineMode::Alone).await;
    }
}

/// A node continues the queue that Redis had when it was lost, by its own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_denied_requests_go_on() {
    let mut server = Server::start(&[]).await;
    let node = node(&server.url()).await;
    let rule = "recent-average 0.01/s half-life=1h strict";
    let rule = node.prepare("queue", &rule.parse().unwrap()).unwrap();
    let told = async || {
        let charge = Charge {
            rule,
            key: b"k",
            cost: Cost::ONE,
        };
        let decision = node.decide(&[charge], Mode::Check, None).await.unwrap();
        assert!(!decision.allowed);
        decision.retry_after.duration().unwrap().as_secs_f64()
    };
    allowed(&node, rule, 70).await;
    let before = told().await;
    server.kill();
    let after = told().await;
    assert!((after - before - 300.0).abs() < 5.0, "{before}, {after}");
}

/// When Redis becomes unreachable, a node grants a client at most the remaining quota that Redis
/// had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_left_can_be_used_once_a_node() {
    let mut server = Server::start(&[]).await;
    let nodes = [node(&server.url()).await, node(&server.url()).await];
    let text = "gcra 1/1h burst=10";
    let rules = [0, 1].map(|place: usize| {
        nodes[place]
            .prepare("pool", &text.parse().unwrap())
            .unwrap()
    });
    assert_eq!(allowed(&nodes[0], rules[0], 4).await, 4);
    assert_eq!(allowed(&nodes[1], rules[1], 3).await, 3);
    server.kill();
    assert_eq!(allowed(&nodes[1], rules[1], 20).await, 3);
    // The other node does not know of the last three requests. Together they admit at most the
    // remaining quota times the number of nodes.
    assert_eq!(allowed(&nodes[0], rules[0], 20).await, 6);
}

/// The way in which Redis fails.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Stopped,
    Swallowed,
    Lossy,
    Cut,
}

/// A banned client gets no more requests admitted while Redis fails than before. Under a pool, each
/// node admits at most the balance at the time of the failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bans_hold_whatever_breaks() {
    for fault in [
        Fault::Killed,
        Fault::Stopped,
        Fault::Swallowed,
        Fault::Lossy,
        Fault::Cut,
    ] {
        let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
        let proxy = Proxy::start(server.port).await;
        let mut nodes = Vec::new();
        for _ in 0..2 {
            let mut options = Options::new(&proxy.url());
            // A lost packet is sent again after 200 ms. Otherwise a busy machine must not make an answer late.
            let is_lossy = matches!(fault, Fault::Lossy);
            options.deadline = Duration::from_millis(if is_lossy { 100 } else { 1000 });
            let node = RedisEngine::connect(options, PATIENCE).await.unwrap();
            let ban = "recent-average 0.001/s half-life=1h".parse().unwrap();
            let ban = node.prepare("ban", &ban).unwrap();
            let pool = node
                .prepare("pool", &"gcra 1/1h burst=40".parse().unwrap())
                .unwrap();
            nodes.push((node, ban, pool));
        }
        let (one, ban, pool) = &nodes[0];
        assert!(
            (4..=8).contains(&allowed(one, *ban, 100).await),
            "{fault:?}"
        );
        assert_eq!(allowed(one, *pool, 30).await, 30, "{fault:?}");
        // On a busy machine a call may have been sent late; it counts twice until it is settled.
        let settled = || one.status().owed == 0 && one.status().unsettled == 0;
        until("all calls are settled", settled).await;
        for (node, ban, pool) in &nodes {
            // A node that has not seen the client yet admits it while an answer of Redis is late.
            loop {
                assert!(node.ready(PATIENCE).await, "{:?}", node.status());
                let alone = node.status().counts.alone;
                let passed = allowed(node, *ban, 100).await;
                if node.status().counts.alone == alone {
                    assert_eq!(passed, 0, "{fault:?}: banned on both nodes");
                    break;
                }
            }
            let peek = Charge {
                rule: *pool,
                key: b"k",
                cost: Cost::ONE,
            };
            assert_eq!(
                node.decide(&[peek], Mode::Peek, None)
                    .await
                    .unwrap()
                    .remaining,
                10
            );
        }
        match fault {
            Fault::Killed => server.kill(),
            Fault::Stopped => server.signal("STOP"),
            Fault::Swallowed => proxy.swallow(),
            Fault::Lossy => proxy.lose_one_in(10),
            Fault::Cut => {}
        }
        let mut banned = 0;
        let mut spent = 0;
        for turn in 0..20 {
            if matches!(fault, Fault::Cut) {
                server
                    .command::<i64>(&["CLIENT", "KILL", "TYPE", "normal"])
                    .ok();
            }
            for (node, ban, pool) in &nodes {
                banned += allowed(node, *ban, 5).await;
                spent += allowed(node, *pool, 1 + turn % 3).await;
            }
        }
        assert_eq!(banned, 0, "{fault:?}: of 200 requests");
        assert!(spent <= 20, "{fault:?}: {spent} of twice 10 that were left");
        match fault {
            Fault::Killed => server.restart().await,
            Fault::Stopped => server.signal("CONT"),
            Fault::Lossy => proxy.lose_one_in(0),
            Fault::Swallowed | Fault::Cut => {}
        }
        for (node, ban, pool) in &nodes {
            assert!(node.ready(PATIENCE).await, "{fault:?}");
            until("counts are handed over", || node.status().owed == 0).await;
            assert_eq!(
                allowed(node, *ban, 20).await,
                0,
                "{fault:?}: and afterwards"
            );
            assert!(allowed(node, *pool, 20).await <= 10, "{fault:?}");
        }
    }
}
