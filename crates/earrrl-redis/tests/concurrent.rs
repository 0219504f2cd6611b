//! Tests concurrency limits on Redis, whose places one node takes and another renews or frees.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use earrrl::{
    Actual, Charge, Cost, Decision, Engine, EngineError, HoldId, HoldTerms, ManualClock,
    MemoryEngine, Mode, Nanos, RuleId,
};
use earrrl_redis::{Consistency, Options, RedisEngine};
use earrrl_testing::Random;

use crate::reservations::{node, nodes, prepare};
use crate::support::Server;
use crate::support::cluster::Cluster;

const START: Nanos = Nanos::from_secs(1_800_000_000);
const STREAMS: &str = "concurrent 5 timeout=60s";

fn charge(rule: RuleId, cost: u64) -> Charge<'static> {
    Charge {
        rule,
        key: b"alice",
        cost: Cost::from_units(cost),
    }
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

async fn hold(engine: &RedisEngine, charges: &[Charge<'_>], now: Option<Nanos>) -> Option<HoldId> {
    engine
        .hold(charges, HoldTerms::default(), now)
        .await
        .unwrap()
        .id
}

async fn free(engine: &RedisEngine, rule: RuleId, now: Option<Nanos>) -> u64 {
    engine
        .decide(&[charge(rule, 1)], Mode::Peek, now)
        .await
        .unwrap()
        .remaining
}

async fn commit(engine: &RedisEngine, id: HoldId, now: Option<Nanos>) -> bool {
    let committed = engine
        .commit(id, Actual::All(Cost::from_units(731)), now)
        .await;
    committed.is_ok_and(|committed| !committed.repeated)
}

/// Compares random reservations, commits, renewals and waits with the engine in memory.
#[tokio::test]
async fn places_are_those_of_the_engine_in_memory() {
    let server = Server::start(&[]).await;
    let engines = nodes(&server).await;
    let mut random = Random::new(31);
    let mut now = START;
    for stretch in 0..4u64 {
        let name = format!("streams-{stretch}");
        let rules = engines
            .each_ref()
            .map(|engine| prepare(engine, &name, STREAMS));
        let memory = MemoryEngine::with_clock(100, ManualClock::new(START)).unwrap();
        let known = memory
            .prepare_with("streams", &STREAMS.parse().unwrap(), 100)
            .unwrap();
        let mut ids: VecDeque<(HoldId, HoldId)> = VecDeque::new();
        for step in 0..200 {
            now = now + Duration::from_millis(1 + random.below(9_000));
            memory.expire();
            let node = random.below(2) as usize;
            let engine = &engines[node];
            let at = Some(now);
            match random.below(5) {
                0..=2 => {
                    let cost = 1 + random.below(3);
                    let terms = HoldTerms::default();
                    let asked = [charge(rules[node], cost)];
                    let held = engine.hold(&asked, terms, at).await.unwrap();
                    let expected = memory.hold(&[charge(known, cost)], terms, at).unwrap();
                    let of = |d: &Decision| (d.allowed, d.remaining, d.retry_after, d.reset_after);
                    assert_eq!(of(&held.decision), of(&expected.decision), "{step}");
                    ids.extend(held.id.zip(expected.id));
                }
                3 if !ids.is_empty() => {
                    let (id, expected) =
                        ids.remove(random.below(ids.len() as u64) as usize).unwrap();
                    let actual = Actual::All(Cost::from_units(random.below(9)));
                    let found = engine.commit(id, actual, at).await;
                    let expected = memory.commit(expected, actual, at);
                    assert_eq!(found.is_ok(), expected.is_ok(), "{step}");
                }
                4 if !ids.is_empty() => {
                    let (id, expected) = ids[random.below(ids.len() as u64) as usize];
                    let found = engine.renew(id, secs(600), at).await;
                    let expected = memory.renew(expected, secs(600), at);
                    assert_eq!(found.is_ok(), expected.is_ok(), "{step}");
                }
                _ => {}
            }
            let peek = memory
                .decide(&[charge(known, 1)], Mode::Peek, at)
                .into_inner()
                .unwrap();
            assert_eq!(
                free(engine, rules[node], at).await,
                peek.remaining,
                "{step}"
            );
        }
    }
}

async fn a_place_is_combined_renewed_and_freed(engines: &[RedisEngine; 2]) {
    let at = |after: u64| Some(START + secs(after));
    let streams = engines
        .each_ref()
        .map(|engine| prepare(engine, "streams", "concurrent 2 timeout=60s"));
    let tokens = engines
        .each_ref()
        .map(|engine| prepare(engine, "tokens", "fixed-window 100/1d"));
    let both = |cost| {
        let key = b"bob".as_slice();
        [
            charge(streams[0], 1),
            Charge {
                rule: tokens[0],
                key,
                cost: Cost::from_units(cost),
            },
        ]
    };
    let first = hold(&engines[0], &both(60), at(0)).await.unwrap();
    assert_eq!(
        hold(&engines[0], &both(60), at(1)).await,
        None,
        "too many tokens"
    );
    assert_eq!(free(&engines[1], streams[1], at(1)).await, 1);
    let second = hold(&engines[0], &both(10), at(2)).await.unwrap();
    assert_eq!(hold(&engines[0], &both(1), at(3)).await, None, "no place");
    for after in [50, 100, 150] {
        engines[1]
            .renew(second, secs(600), at(after))
            .await
            .unwrap();
        assert_eq!(
            free(&engines[0], streams[0], at(after)).await,
            u64::from(after >= 60)
        );
    }
    let late = engines[1].renew(first, secs(60), at(61)).await;
    assert_eq!(late, Err(EngineError::UnknownReservation(first)));
    assert!(commit(&engines[1], second, at(200)).await);
    assert!(!commit(&engines[0], second, at(200)).await);
    assert_eq!(free(&engines[0], streams[0], at(200)).await, 2);
}

#[tokio::test]
async fn a_place_combines_with_tokens_on_one_server() {
    let server = Server::start(&[]).await;
    a_place_is_combined_renewed_and_freed(&nodes(&server).await).await;
}

/// The clients of the two rules are in different slots.
#[tokio::test]
async fn a_place_combines_with_tokens_on_a_cluster() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    let options = || Options::cluster(urls.iter().map(String::as_str));
    let engines = [node(options()).await, node(options()).await];
    a_place_is_combined_renewed_and_freed(&engines).await;
}

/// Counts the holders between their reservation and the start of their commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_instant_sees_more_holders_than_the_bound_on_two_nodes() {
    let server = Server::start(&[]).await;
    let engines = Arc::new(nodes(&server).await);
    let rules = engines
        .each_ref()
        .map(|engine| prepare(engine, "streams", STREAMS));
    let live = Arc::new(AtomicU64::new(0));
    let workers = (0..20u64).map(|worker| {
        let engines = engines.clone();
        let live = live.clone();
        tokio::spawn(async move {
            let mut granted = 0;
            for round in 0..30 {
                let from = (worker + round) as usize % 2;
                let to = worker as usize % 2;
                let cost = 1 + round % 2;
                let Some(id) = hold(&engines[from], &[charge(rules[from], cost)], None).await
                else {
                    continue;
                };
                let before = live.fetch_add(cost, SeqCst);
                assert!(before + cost <= 5, "{before} and {cost}");
                granted += 1;
                if round % 3 == 0 {
                    engines[to].renew(id, secs(60), None).await.unwrap();
                }
                live.fetch_sub(cost, SeqCst);
                assert!(commit(&engines[to], id, None).await);
            }
            granted
        })
    });
    let mut granted = 0;
    for worker in workers.collect::<Vec<_>>() {
        granted += worker.await.unwrap();
    }
    assert!(granted > 30, "{granted}");
    assert_eq!(free(&engines[0], rules[0], None).await, 5);
}

/// A long holder stays in front while thousands come and go behind it.
#[tokio::test]
async fn a_record_does_not_grow_behind_a_long_holder() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rule = prepare(&engine, "streams", STREAMS);
    let at = |micros: u64| Some(START + Duration::from_micros(micros));
    hold(&engine, &[charge(rule, 1)], at(0)).await.unwrap();
    for round in 0..300 {
        let older = hold(&engine, &[charge(rule, 1)], at(10 * round + 1))
            .await
            .unwrap();
        let newer = hold(&engine, &[charge(rule, 1)], at(10 * round + 2))
            .await
            .unwrap();
        assert!(commit(&engine, older, at(10 * round + 3)).await);
        assert!(commit(&engine, newer, at(10 * round + 4)).await);
    }
    assert_eq!(free(&engine, rule, at(9_999)).await, 4);
    let keys: Vec<String> = server.command(&["KEYS", "*alice*:n????????"]).unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let length: usize = server.command(&["STRLEN", &keys[0]]).unwrap();
    assert!(length < 1000, "{length} bytes");
}

#[tokio::test]
async fn checks_and_near_rules_are_refused() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rule = prepare(&engine, "streams", STREAMS);
    let tokens = prepare(&engine, "tokens", "fixed-window 100/1d");
    for charges in [
        &[charge(rule, 1)][..],
        &[charge(tokens, 1), charge(rule, 1)],
    ] {
        for mode in [Mode::Check, Mode::Charge] {
            let error = engine
                .decide(charges, mode, None)
                .await
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with("rule streams: `concurrent 5 timeout=60s` counts"),
                "{error}"
            );
        }
    }
    assert!(engine.refund(&charge(rule, 1), None, None).await.is_err());
    assert_eq!(
        (
            free(&engine, rule, None).await,
            free(&engine, tokens, None).await
        ),
        (5, 100)
    );
    let near = engine.prepare_as("near", &STREAMS.parse().unwrap(), 100, Consistency::Near);
    assert!(
        near.unwrap_err()
            .to_string()
            .contains("concurrent is always exact")
    );
}
