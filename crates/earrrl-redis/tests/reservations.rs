//! Tests reservations on Redis: made by one node and committed by another, exactly once.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use earrrl::{
    Actual, Charge, Cost, Engine, EngineError, HoldId, HoldTerms, Holding, ManualClock,
    MemoryEngine, Mode, Nanos, RuleId,
};
use earrrl_redis::{Consistency, Options, RedisEngine, WhenGone};

use crate::support::cluster::Cluster;
use crate::support::{PATIENCE, Server, called, command};

const START: Nanos = Nanos::from_secs(1_800_000_000);

/// Rules of every algorithm, with a quota of 100 units or more.
const RULES: [&str; 8] = [
    "recent-average 100/m half-life=20m",
    "exponential 100/1m",
    "token-bucket 100 refill=1/s",
    "gcra 1/s burst=100",
    "fixed-window 100/1m",
    "sliding-log 100/1m",
    "sliding-window 100/1m sub-windows=60",
    "sliding-counter 100/1m",
];

pub(crate) async fn node(options: Options) -> RedisEngine {
    let mut options = options;
    (options.deadline, options.when_gone) = (PATIENCE / 4, WhenGone::Deny);
    // The times of some tests are virtual, so no record may expire meanwhile.
    options.linger = Duration::from_secs(36_000);
    let engine = RedisEngine::connect(options, PATIENCE).await.unwrap();
    assert!(engine.ready(PATIENCE).await);
    engine
}

pub(crate) async fn nodes(server: &Server) -> [RedisEngine; 2] {
    [
        node(Options::new(&server.url())).await,
        node(Options::new(&server.url())).await,
    ]
}

pub(crate) fn prepare(engine: &RedisEngine, name: &str, rule: &str) -> RuleId {
    engine
        .prepare_with(name, &rule.parse().unwrap(), 100)
        .unwrap()
}

const fn units(units: u64) -> Cost {
    Cost::from_units(units)
}

fn charge(rule: RuleId, key: &[u8], cost: u64) -> Charge<'_> {
    Charge {
        rule,
        key,
        cost: units(cost),
    }
}

fn at(secs: u64) -> Option<Nanos> {
    Some(START + Duration::from_secs(secs))
}

async fn hold(engine: &RedisEngine, charges: &[Charge<'_>], now: Option<Nanos>) -> Holding {
    engine
        .hold(charges, HoldTerms::default(), now)
        .await
        .unwrap()
}

async fn remaining(engine: &RedisEngine, rule: RuleId, key: &[u8], now: Option<Nanos>) -> u64 {
    engine
        .decide(&[charge(rule, key, 1)], Mode::Peek, now)
        .await
        .unwrap()
        .remaining
}

/// Compares every step with the engine in memory, under every algorithm.
#[tokio::test]
async fn reservations_are_those_of_the_engine_in_memory() {
    let server = Server::start(&[]).await;
    let engines = nodes(&server).await;
    for (number, text) in RULES.iter().enumerate() {
        let memory = MemoryEngine::with_clock(100, ManualClock::new(START)).unwrap();
        let known = memory
            .prepare_with("rule", &text.parse().unwrap(), 100)
            .unwrap();
        let rules = [0, 1].map(|node| prepare(&engines[node], &format!("rule-{number}"), text));
        let begins = 12_000 * number as u64;
        let times = |secs: u64| (at(begins + secs), at(secs));
        let mut ids = Vec::new();
        for (secs, cost) in [(0, 40), (1, 30), (2, 20)] {
            let (now, in_memory) = times(secs);
            let held = hold(&engines[0], &[charge(rules[0], b"alice", cost)], now).await;
            let expected = memory
                .hold(
                    &[charge(known, b"alice", cost)],
                    HoldTerms::default(),
                    in_memory,
                )
                .unwrap();
            assert_eq!(
                held.decision.remaining, expected.decision.remaining,
                "{text}"
            );
            assert_eq!(
                (held.id.is_some(), held.granted()),
                (true, expected.granted()),
                "{text}"
            );
            ids.push((held.id.unwrap(), expected.id.unwrap()));
        }
        // Below the estimate, at it, and above it; the oldest one last.
        for (secs, nth, actual) in [(3, 2, 5), (4, 1, 30), (20, 0, 45)] {
            let (now, in_memory) = times(secs);
            let (id, known) = ids[nth];
            let committed = engines[1]
                .commit(id, Actual::All(units(actual)), now)
                .await
                .unwrap();
            let expected = memory
                .commit(known, Actual::All(units(actual)), in_memory)
                .unwrap();
            let of = |left: u64| left as f64;
            let left = committed.decision.remaining;
            let wanted = expected.decision.remaining;
            // An exponential average is corrected approximately.
            let most = if number == 1 { 40.0 } else { 0.0 };
            assert!(
                (of(left) - of(wanted)).abs() <= most,
                "{text}, {nth}: {left}, {wanted}"
            );
            assert_eq!(
                (committed.rules(), committed.repeated),
                (&[rules[1]][..], false)
            );
        }
    }
}

/// Several charges to one client of one rule are granted as one, as in memory.
#[tokio::test]
async fn repeated_charges_are_granted_as_one() {
    let server = Server::start(&[]).await;
    let [engine, _] = nodes(&server).await;
    let memory = MemoryEngine::with_clock(100, ManualClock::new(START)).unwrap();
    let text = "fixed-window 10/1h";
    let here = prepare(&engine, "rule", text);
    let there = memory
        .prepare_with("rule", &text.parse().unwrap(), 100)
        .unwrap();
    for at_most in [false, true] {
        let terms = HoldTerms::default();
        let terms = if at_most { terms.at_most() } else { terms };
        let charges =
            |rule| [(b"a", 3), (b"b", 1), (b"a", 4)].map(|(key, cost)| charge(rule, key, cost));
        let held = engine.hold(&charges(here), terms, at(0)).await.unwrap();
        let expected = memory.hold(&charges(there), terms, at(0)).unwrap();
        assert_eq!(held.granted(), expected.granted());
        assert_eq!(held.granted()[2], Cost::ZERO);
    }
}

/// A commit that is repeated after Redis has forgotten the reservation changes nothing.
#[tokio::test]
async fn a_late_repetition_of_a_commit_changes_nothing() {
    let server = Server::start(&[]).await;
    let engines = nodes(&server).await;
    let rules = [0, 1].map(|node| prepare(&engines[node], "rule", "fixed-window 100/1h"));
    for actual in [10, 70] {
        let id = hold(&engines[0], &[charge(rules[0], b"k", 40)], at(0))
            .await
            .id
            .unwrap();
        engines[0]
            .commit(id, Actual::All(units(actual)), at(1))
            .await
            .unwrap();
        let left = remaining(&engines[1], rules[1], b"k", at(1)).await;
        let key = format!("earrrl2:hold:{{0}}:{id}");
        assert_eq!(server.command::<i64>(&["DEL", &key]).unwrap(), 1);
        for engine in &engines {
            let again = engine.commit(id, Actual::All(units(actual)), at(61)).await;
            assert_eq!(again.unwrap_err(), EngineError::UnknownReservation(id));
        }
        assert_eq!(remaining(&engines[1], rules[1], b"k", at(61)).await, left);
    }
}

/// A commit after a reset or an eviction gives back nothing of later, real use.
#[tokio::test]
async fn a_commit_gives_nothing_back_to_a_later_record() {
    let server = Server::start(&[]).await;
    let [engine, _] = nodes(&server).await;
    for (number, text) in [
        "recent-average 100/1h half-life=1h leaky",
        "gcra 1/1h burst=100",
        "fixed-window 100/1h",
        "sliding-log 100/1h",
        "sliding-window 100/1h",
        "sliding-counter 100/1h",
    ]
    .into_iter()
    .enumerate()
    {
        for is_alone in [false, true] {
            // An engine's time never goes back.
            let begins = 1000 * (2 * number as u64 + u64::from(is_alone));
            let at = |secs| at(begins + secs);
            let name = format!("rule-{number}-{is_alone}");
            let rule = prepare(&engine, &name, text);
            let other = prepare(&engine, &format!("{name}-other"), "fixed-window 100/1h");
            let charges = [charge(rule, b"k", 60), charge(other, b"k", 1)];
            let charges = if is_alone {
                &charges[..1]
            } else {
                &charges[..]
            };
            let id = hold(&engine, charges, at(0)).await.id.unwrap();
            engine.reset(rule, b"k").await.unwrap();
            engine
                .decide(&[charge(rule, b"k", 50)], Mode::Check, at(2))
                .await
                .unwrap();
            let left = remaining(&engine, rule, b"k", at(2)).await;
            engine
                .commit(id, Actual::All(Cost::ZERO), at(2))
                .await
                .unwrap();
            assert_eq!(
                remaining(&engine, rule, b"k", at(2)).await,
                left,
                "{text}, alone: {is_alone}"
            );
        }
    }
}

#[tokio::test]
async fn a_commit_is_applied_once_by_whichever_node() {
    let server = Server::start(&[]).await;
    let engines = nodes(&server).await;
    let rules = engines
        .each_ref()
        .map(|engine| prepare(engine, "tokens", "fixed-window 100/1d"));
    let held = hold(&engines[0], &[charge(rules[0], b"alice", 60)], None).await;
    let id = held.id.unwrap();
    assert_eq!(remaining(&engines[1], rules[1], b"alice", None).await, 40);
    assert_eq!(
        engines[1].reserved_rules(id, None).await,
        Ok(vec![rules[1]])
    );
    for (node, actual, repeated) in [(1, 25, false), (0, 25, true), (1, 0, true), (0, 99, true)] {
        let committed = engines[node]
            .commit(id, Actual::All(units(actual)), None)
            .await
            .unwrap();
        assert_eq!(
            (committed.decision.remaining, committed.repeated),
            (75, repeated)
        );
    }
    for bits in [0, id.bits() ^ 1 << 64, id.bits() ^ 1 << 127, u128::MAX] {
        let other = HoldId::from_bits(bits);
        let error = engines[0]
            .commit(other, Actual::All(Cost::ZERO), None)
            .await;
        assert_eq!(error, Err(EngineError::UnknownReservation(other)));
    }
}

/// A reservation and its commit are a script each. A node reads only what another one has reserved.
#[tokio::test]
async fn a_commit_is_one_call_of_a_script() {
    let server = Server::start(&[]).await;
    let engines = nodes(&server).await;
    for (number, text) in RULES.iter().enumerate() {
        let rules = engines
            .each_ref()
            .map(|e| prepare(e, &format!("rule-{number}"), text));
        let scripts = || called(&server, "eval") + called(&server, "evalsha");
        let mut reads = [0, 0];
        for to in [0, 1] {
            let before = scripts();
            let id = hold(&engines[0], &[charge(rules[0], b"alice", 20)], at(0))
                .await
                .id
                .unwrap();
            assert_eq!(scripts() - before, 1, "{text}");
            let before = scripts();
            let gets = called(&server, "get");
            engines[to]
                .commit(id, Actual::All(units(7)), at(0))
                .await
                .unwrap();
            assert_eq!(scripts() - before, 1, "{text}");
            reads[to] = called(&server, "get") - gets;
        }
        assert_eq!(reads[1] - reads[0], 1, "{text}");
    }
}

/// A client reserves, waits until its bucket is full, spends it, and releases the reservation.
#[tokio::test]
async fn a_full_bucket_gives_nothing_back() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rule = prepare(&engine, "tokens", "token-bucket 100 refill=1/s");
    let terms = HoldTerms::default().ttl(Duration::from_secs(3600));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let held = engine
            .hold(&[charge(rule, b"alice", 50)], terms, at(0))
            .await
            .unwrap();
        ids.push(held.id.unwrap());
    }
    // The first release makes the bucket full 40 seconds earlier, which the second one knows.
    let release = async |id, secs| {
        engine
            .commit(id, Actual::All(Cost::ZERO), at(secs))
            .await
            .unwrap()
            .decision
            .remaining
    };
    assert_eq!(release(ids[0], 10).await, 50);
    let all = engine
        .decide(&[charge(rule, b"alice", 100)], Mode::Check, at(60))
        .await
        .unwrap();
    assert!(all.allowed);
    assert_eq!(release(ids[1], 60).await, 0);
}

/// A commit after a change of the window or of a bucket's refill gives nothing back: the records, or the price of a
/// unit, are others.
#[tokio::test]
async fn a_commit_after_a_change_gives_nothing_back() {
    let server = Server::start(&[]).await;
    for (old, new, estimate, spent, expected) in [
        ("fixed-window 10/1m", "fixed-window 10/1h", 10, 10, 0),
        ("sliding-counter 10/1m", "sliding-counter 10/1h", 10, 10, 0),
        ("sliding-window 10/1m", "sliding-window 10/1h", 10, 10, 0),
        ("sliding-log 10/1m", "sliding-log 10/1h", 10, 10, 0),
        (
            "token-bucket 100 refill=100/s",
            "token-bucket 100 refill=1/h",
            100,
            100,
            0,
        ),
        ("fixed-window 10/1d", "fixed-window 10/2d", 7, 3, 7),
        ("sliding-counter 10/1d", "sliding-counter 10/2d", 7, 3, 7),
        ("sliding-window 10/1d", "sliding-window 10/2d", 7, 3, 7),
        ("sliding-log 10/1d", "sliding-log 10/2d", 7, 3, 7),
        (
            "token-bucket 100 refill=1/h",
            "token-bucket 100 refill=2/h",
            60,
            40,
            0,
        ),
    ] {
        let [holder, other] = nodes(&server).await;
        let rule = prepare(&holder, "tokens", old);
        let terms = HoldTerms::default().ttl(Duration::from_secs(3600));
        let charges = [charge(rule, b"k", estimate)];
        let id = holder
            .place_hold(&charges, terms, at(0))
            .await
            .unwrap()
            .id
            .unwrap();
        for node in [&holder, &other] {
            assert_eq!(prepare(node, "tokens", new), rule);
        }
        let charges = [charge(rule, b"k", spent)];
        other
            .decide(&charges, Mode::Charge, at(1500))
            .await
            .unwrap();
        holder
            .commit_hold(id, Actual::All(Cost::ZERO), at(1500))
            .await
            .unwrap();
        let left = remaining(&other, rule, b"k", at(1500)).await;
        assert!(
            (expected..=expected + 1).contains(&left),
            "{old}, {new}: {left}"
        );
        holder.reset(rule, b"k").await.unwrap();
    }
}

#[tokio::test]
async fn reservations_expire_and_are_prolonged() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rule = prepare(&engine, "tokens", "fixed-window 100/1d");
    let id = hold(&engine, &[charge(rule, b"alice", 60)], at(0))
        .await
        .id
        .unwrap();
    engine
        .renew(id, Duration::from_secs(100), at(299))
        .await
        .unwrap();
    assert_eq!(engine.reserved_rules(id, at(398)).await, Ok(vec![rule]));
    let unknown = EngineError::UnknownReservation(id);
    assert_eq!(
        engine.commit(id, Actual::All(Cost::ZERO), at(399)).await,
        Err(unknown.clone())
    );
    assert_eq!(
        engine.renew(id, Duration::from_secs(9), at(399)).await,
        Err(unknown)
    );
    assert_eq!(remaining(&engine, rule, b"alice", at(399)).await, 40);
    engine.set_max_reservations(1);
    hold(&engine, &[charge(rule, b"alice", 1)], at(400)).await;
    let full = engine
        .hold(&[charge(rule, b"alice", 1)], HoldTerms::default(), at(400))
        .await;
    assert_eq!(full, Err(EngineError::Reservations { most: 1 }));
    assert_eq!(remaining(&engine, rule, b"alice", at(400)).await, 39);
}

async fn several_rules_are_all_or_nothing(engine: &RedisEngine, other: &RedisEngine) {
    let of = |engine: &RedisEngine| {
        (
            prepare(engine, "tokens", "token-bucket 100 refill=1/d"),
            prepare(engine, "requests", "sliding-log 3/1d"),
        )
    };
    let (tokens, requests) = of(engine);
    let others = of(other);
    // On a Cluster, the clients' records are in different slots.
    let both = [charge(tokens, b"alice", 60), charge(requests, b"bob", 1)];
    let id = hold(engine, &both, None).await.id.unwrap();
    let denied = hold(engine, &both, None).await;
    assert_eq!((denied.id, denied.decision.rule), (None, 0));
    let left = async || {
        (
            remaining(engine, tokens, b"alice", None).await,
            remaining(engine, requests, b"bob", None).await,
        )
    };
    assert_eq!(left().await, (40, 2));
    let wrong = [(others.0, units(10)), (RuleId(9), units(1))];
    assert!(
        other
            .commit(id, Actual::ByRule(&wrong), None)
            .await
            .is_err()
    );
    for repeated in [false, true] {
        let committed = other
            .commit(id, Actual::ByRule(&wrong[..1]), None)
            .await
            .unwrap();
        assert_eq!(
            (committed.rules(), committed.repeated),
            (&[others.0, others.1][..], repeated)
        );
        assert_eq!(left().await, (90, 2));
    }
    let terms = HoldTerms::default().at_most();
    let most = engine
        .hold(&[charge(tokens, b"alice", 700)], terms, None)
        .await
        .unwrap();
    assert_eq!(most.granted(), [units(90)]);
}

#[tokio::test]
async fn several_rules_on_one_server() {
    let server = Server::start(&[]).await;
    let [engine, other] = nodes(&server).await;
    several_rules_are_all_or_nothing(&engine, &other).await;
}

#[tokio::test]
async fn several_rules_on_a_cluster() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    let options = || Options::cluster(urls.iter().map(String::as_str));
    several_rules_are_all_or_nothing(&node(options()).await, &node(options()).await).await;
}

/// Two commits of different costs meet on a Cluster. One of them wins in every slot.
#[tokio::test]
async fn of_two_commits_at_once_one_wins_in_every_slot() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    let options = || Options::cluster(urls.iter().map(String::as_str));
    let engine = node(options()).await;
    let other = node(options()).await;
    let rule = prepare(&engine, "tokens", "fixed-window 100/30d");
    assert_eq!(prepare(&other, "tokens", "fixed-window 100/30d"), rule);
    for round in 0..100 {
        let keys: Vec<String> = (0..6).map(|nth| format!("client-{round}-{nth}")).collect();
        let charges: Vec<_> = keys
            .iter()
            .map(|key| charge(rule, key.as_bytes(), 5))
            .collect();
        let id = hold(&engine, &charges, None).await.id.unwrap();
        let (one, three) = tokio::join!(
            engine.commit(id, Actual::All(units(1)), None),
            other.commit(id, Actual::All(units(3)), None)
        );
        let repeated = [one, three].map(|committed| committed.unwrap().repeated);
        let left = if repeated[0] { 97 } else { 99 };
        assert_ne!(repeated[0], repeated[1], "{round}");
        for key in &keys {
            assert_eq!(
                remaining(&engine, rule, key.as_bytes(), None).await,
                left,
                "{key}"
            );
        }
    }
}

/// The second of two reservations gets what the first one leaves, although both have seen the whole quota.
#[tokio::test]
async fn two_reservations_of_at_most_their_estimates_share_what_is_left() {
    let server = Server::start(&[]).await;
    let [engine, other] = nodes(&server).await;
    let rule = prepare(&engine, "tokens", "fixed-window 1000/30d");
    assert_eq!(prepare(&other, "tokens", "fixed-window 1000/30d"), rule);
    let terms = HoldTerms::default().at_most();
    for round in 0..50 {
        let key = format!("client-{round}");
        let charges = [charge(rule, key.as_bytes(), 600)];
        let asked = (
            engine.hold(&charges, terms, None),
            other.hold(&charges, terms, None),
        );
        let (one, two) = tokio::join!(asked.0, asked.1);
        let mut granted = [one, two].map(|holding| holding.unwrap().granted()[0]);
        granted.sort();
        assert_eq!(granted, [units(400), units(600)], "{round}");
    }
}

#[tokio::test]
async fn ids_show_that_they_are_of_reservations() {
    let server = Server::start(&[]).await;
    let [engine, _] = nodes(&server).await;
    let rule = prepare(&engine, "tokens", "fixed-window 1000/30d");
    for _ in 0..20 {
        let id = hold(&engine, &[charge(rule, b"alice", 1)], None)
            .await
            .id
            .unwrap();
        assert!(RedisEngine::has_issued(id), "{id}");
        for bit in [0, 9, 10, 63, 64, 95, 96, 127] {
            let other = HoldId::from_bits(id.bits() ^ 1 << bit);
            assert!(!RedisEngine::has_issued(other), "{other}");
        }
    }
}

/// The actual costs are at most the estimates, so the sum never exceeds the limit. On a Cluster, the clients
/// of the two rules are in different slots.
async fn a_hundred_streams_stay_within_the_limit(engines: [RedisEngine; 2]) {
    let engines = Arc::new(engines);
    let of = |engine: &RedisEngine| {
        let tokens = prepare(engine, "tokens", "token-bucket 1000 refill=1/1h");
        (
            tokens,
            prepare(engine, "requests", "fixed-window 1000000/30d"),
        )
    };
    let rules = engines.each_ref().map(of);
    let streams = (0..100).map(|stream: u64| {
        let engines = engines.clone();
        tokio::spawn(async move {
            let mut spent = 0;
            let mut made = 0;
            for round in 0..3 {
                let from = (stream + round) as usize % 2;
                let to = stream as usize % 2;
                let estimate = 5 + (stream * 7 + round) % 10;
                let (tokens, requests) = rules[from];
                let charges = [
                    charge(tokens, b"alice", estimate),
                    charge(requests, b"bob", 1),
                ];
                let Some(id) = hold(&engines[from], &charges, None).await.id else {
                    continue;
                };
                let actual = estimate * (stream % 11) / 10;
                let actual = actual.min(estimate);
                let costs = [(rules[to].0, units(actual))];
                let committed = engines[to].commit(id, Actual::ByRule(&costs), None).await;
                assert!(!committed.unwrap().repeated);
                (spent, made) = (spent + actual, made + 1);
            }
            (spent, made)
        })
    });
    let mut spent = 0;
    let mut made = 0;
    for stream in streams.collect::<Vec<_>>() {
        let (more, others) = stream.await.unwrap();
        (spent, made) = (spent + more, made + others);
    }
    assert!((500..=1000).contains(&spent), "{spent}");
    let left = remaining(&engines[0], rules[0].0, b"alice", None).await;
    // The refill during the test is lost or counted, at most a unit.
    assert!(
        (999 - spent..=1001 - spent).contains(&left),
        "{left}, spent {spent}"
    );
    assert_eq!(
        remaining(&engines[1], rules[1].1, b"bob", None).await,
        1_000_000 - made
    );
}

/// A hundred streams cost more than their estimates. Nothing passes until the refill has paid the excess.
async fn debt_is_paid_first(engines: &[RedisEngine; 2]) {
    let rules = engines
        .each_ref()
        .map(|e| prepare(e, "debt", "token-bucket 1000 refill=1/s"));
    let ask = async |node: usize, cost, secs| {
        let held = hold(
            &engines[node],
            &[charge(rules[node], b"carol", cost)],
            at(secs),
        )
        .await;
        (held.id, held.decision.retry_after.duration())
    };
    let mut ids = Vec::new();
    for stream in 0..120 {
        ids.extend(ask(stream % 2, 10, 0).await.0);
    }
    assert_eq!(ids.len(), 100);
    for (nth, id) in ids.into_iter().enumerate() {
        engines[nth % 2]
            .commit(id, Actual::All(units(25)), at(0))
            .await
            .unwrap();
    }
    assert_eq!(ask(0, 1, 0).await, (None, Some(Duration::from_secs(1501))));
    assert_eq!(ask(1, 1, 1500).await.0, None);
    assert!(ask(0, 1, 1501).await.0.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_streams_on_two_nodes() {
    let server = Server::start(&[]).await;
    debt_is_paid_first(&nodes(&server).await).await;
    a_hundred_streams_stay_within_the_limit(nodes(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_streams_on_a_cluster() {
    let cluster = Cluster::start().await;
    let urls = cluster.urls();
    let options = || Options::cluster(urls.iter().map(String::as_str));
    let engines = [node(options()).await, node(options()).await];
    debt_is_paid_first(&engines).await;
    a_hundred_streams_stay_within_the_limit(engines).await;
}

#[tokio::test]
async fn a_redis_that_forgets_makes_reservations_unknown() {
    let mut server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rule = prepare(&engine, "tokens", "token-bucket 100 refill=1/d");
    let id = hold(&engine, &[charge(rule, b"alice", 60)], None)
        .await
        .id
        .unwrap();
    server.kill();
    let gone = engine.commit(id, Actual::All(units(10)), None).await;
    assert!(matches!(gone, Err(EngineError::Unavailable(_))), "{gone:?}");
    let gone = engine
        .hold(&[charge(rule, b"alice", 1)], HoldTerms::default(), None)
        .await;
    assert!(matches!(gone, Err(EngineError::Unavailable(_))), "{gone:?}");
    server.restart().await;
    crate::support::until("Redis decides", || {
        engine.status().mode == earrrl_redis::EngineMode::Shared
    })
    .await;
    let forgotten = engine.commit(id, Actual::All(units(10)), None).await;
    assert_eq!(forgotten, Err(EngineError::UnknownReservation(id)));
}

#[tokio::test]
async fn near_rules_have_no_reservations() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rule = "token-bucket 100 refill=1/s".parse().unwrap();
    let rule = engine
        .prepare_as("tokens", &rule, 100, Consistency::Near)
        .unwrap();
    let error = engine
        .hold(&[charge(rule, b"alice", 1)], HoldTerms::default(), None)
        .await;
    assert!(error.unwrap_err().to_string().contains("near"));
}

/// Prints the bytes of a live reservation.
#[tokio::test]
async fn a_reservation_occupies_few_bytes() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rule = prepare(&engine, "tokens", "fixed-window 100000/1d");
    let id = hold(&engine, &[charge(rule, b"192.0.2.7", 60)], None)
        .await
        .id
        .unwrap();
    let key = format!("earrrl2:hold:{{0}}:{id}");
    let bytes: u64 = command(&server.url(), &["MEMORY", "USAGE", &key]).unwrap();
    println!("{bytes} bytes for a live reservation");
    assert!((100..400).contains(&bytes), "{bytes}");
}

/// A caller whose answer was lost sends the request again under its id, to any node.
#[tokio::test]
async fn a_repeated_reservation_is_charged_once() {
    let server = Server::start(&[]).await;
    let [first, second] = nodes(&server).await;
    let of = |engine: &RedisEngine| {
        let tokens = prepare(engine, "tokens", "token-bucket 100 refill=1/d");
        (tokens, prepare(engine, "log", "sliding-log 100/1d"))
    };
    let (tokens, log) = of(&first);
    of(&second);
    let terms = HoldTerms::default().id(HoldId::from_bits(u128::MAX / 3));
    for charges in [
        &[charge(tokens, b"alice", 60)][..],
        &[charge(tokens, b"bob", 60), charge(log, b"bob", 60)],
    ] {
        let key = charges[0].key;
        let terms = terms.id(HoldId::from_bits(
            u128::MAX / 3 + charges.len() as u128 * 5000,
        ));
        let made = first.hold(charges, terms, None).await.unwrap();
        for node in [&first, &second] {
            let again = node.hold(charges, terms, None).await.unwrap();
            assert_eq!((again.id, again.granted()), (made.id, made.granted()));
            assert!(again.decision.allowed);
        }
        assert_eq!(remaining(&first, tokens, key, None).await, 40);
        let other = [charge(tokens, key, 10)];
        assert_eq!(
            second.hold(&other, terms, None).await,
            Err(EngineError::OtherReservation(made.id.unwrap()))
        );
        let id = made.id.unwrap();
        second
            .commit(id, Actual::All(units(25)), None)
            .await
            .unwrap();
        assert_eq!(second.hold(charges, terms, None).await.unwrap().id, made.id);
        assert_eq!(remaining(&first, tokens, key, None).await, 75);
    }
}

/// The nodes do not know of each other's calls, so the script must see that the reservation is there.
#[tokio::test]
async fn a_reservation_is_repeated_by_many_calls_at_once() {
    let server = Server::start(&[]).await;
    let nodes = nodes(&server).await;
    let rules = nodes
        .each_ref()
        .map(|node| prepare(node, "tokens", "fixed-window 100/1d"));
    for nth in 0..50 {
        let terms = HoldTerms::default().id(HoldId::from_bits(nth * 7919 + 3));
        let charges = [charge(rules[0], b"alice", 2)];
        let calls = nodes
            .each_ref()
            .map(|node| node.hold(&charges, terms, None));
        let answers = futures_util::future::join_all(calls).await;
        // A call that meets another one may be refused, and is then repeated.
        let made: Vec<_> = answers.into_iter().flatten().collect();
        assert!(!made.is_empty() && made.iter().all(|holding| holding.id == made[0].id));
        let again = nodes[1].hold(&charges, terms, None).await.unwrap();
        assert_eq!(again.id, made[0].id);
    }
    assert_eq!(remaining(&nodes[0], rules[0], b"alice", None).await, 0);
}

#[tokio::test]
async fn a_client_has_a_share_of_the_reservations() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    engine.set_max_reservations(1600);
    let rule = prepare(&engine, "tokens", "fixed-window 100000/1d");
    for _ in 0..100 {
        assert!(
            hold(&engine, &[charge(rule, b"alice", 1)], None)
                .await
                .id
                .is_some()
        );
    }
    let denied = hold(&engine, &[charge(rule, b"alice", 1)], None).await;
    assert_eq!((denied.id, denied.decision.allowed), (None, false));
    assert!(
        hold(&engine, &[charge(rule, b"bob", 1)], None)
            .await
            .id
            .is_some()
    );
    assert_eq!(remaining(&engine, rule, b"alice", None).await, 99_900);
}

/// A refund fills the bucket earlier, so that more refill is lost while a reservation is live.
#[tokio::test]
async fn a_refund_during_a_reservation_of_a_bucket_is_not_given_back_twice() {
    let server = Server::start(&[]).await;
    let engine = node(Options::new(&server.url())).await;
    let rule = prepare(&engine, "tokens", "token-bucket 100 refill=1/s");
    let of = |cost| [charge(rule, b"k", cost)];
    engine.decide(&of(50), Mode::Charge, at(0)).await.unwrap();
    let id = hold(&engine, &of(40), at(0)).await.id.unwrap();
    engine.refund(&of(50)[0], at(0), at(0)).await.unwrap();
    let all = engine.decide(&of(100), Mode::Check, at(45)).await.unwrap();
    assert!(all.allowed);
    engine
        .commit(id, Actual::All(Cost::ZERO), at(45))
        .await
        .unwrap();
    assert_eq!(remaining(&engine, rule, b"k", at(45)).await, 0);
}
