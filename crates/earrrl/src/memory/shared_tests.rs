use core::time::Duration;
use std::string::ToString;
use std::sync::Arc;
use std::thread;

use super::*;
use crate::clock::ManualClock;
use crate::survey::TopClient;

type Manual = MemoryEngine<Arc<ManualClock>>;

/// Two limits of each algorithm, with quotas that no test uses up.
const LIMITS: [[&str; 2]; 8] = [
    [
        "recent-average 100/s half-life=10s",
        "recent-average 200/s half-life=10s",
    ],
    [
        "recent-average 100/s half-life=10s strict",
        "recent-average 50/s half-life=1m strict",
    ],
    ["gcra 1/s burst=1000", "gcra 7/m burst=3000"],
    ["exponential 1000/15m", "exponential 3000/1h"],
    ["fixed-window 1000/15m", "fixed-window 3000/15m"],
    ["sliding-log 1000/15m", "sliding-log 3000/15m"],
    [
        "sliding-window 1000/15m sub-windows=5",
        "sliding-window 3000/1h sub-windows=7",
    ],
    ["sliding-counter 1000/15m", "sliding-counter 3000/1h"],
];

fn engine() -> Manual {
    engine_at(&Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000))))
}

fn engine_at(clock: &Arc<ManualClock>) -> Manual {
    MemoryEngine::with_clock(1, Arc::clone(clock)).unwrap()
}

/// Prepares rules that share a store for `capacity` clients.
fn share(engine: &Manual, limits: &[&str], capacity: usize) -> Vec<RuleId> {
    let rules: Vec<(String, Rule)> = limits
        .iter()
        .map(|limit| ((*limit).to_string(), limit.parse().unwrap()))
        .collect();
    let wanted = rules.iter().enumerate().map(|(nth, (_, rule))| {
        let name = ["first", "second", "third"][nth];
        Preparation {
            name,
            rule,
            capacity,
            store: Some("overrides"),
        }
    });
    engine.prepare_all(&wanted.collect::<Vec<_>>()).unwrap()
}

fn ask(engine: &Manual, rule: RuleId, key: &str, mode: Mode) -> Decision {
    let charge = Charge {
        rule,
        key: key.as_bytes(),
        cost: Cost::ONE,
    };
    engine.decide(&[charge], mode, None).into_inner().unwrap()
}

/// A client that comes under another limit of the store has the state that a change of its rule gives.
#[test]
fn a_state_is_carried_over_to_the_limit_of_the_request() {
    for limits in LIMITS {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
        let shared = engine_at(&clock);
        let changed = engine_at(&clock);
        let ids = share(&shared, &limits, 100);
        let [before, after] = limits.map(|limit| limit.parse::<Rule>().unwrap());
        let own = changed.prepare("own", &before).unwrap();
        let both = |id: RuleId, mode| {
            let decided = [
                ask(&shared, id, "alice", mode),
                ask(&changed, own, "alice", mode),
            ];
            assert_eq!(decided[0], decided[1], "{limits:?}");
            clock.advance(Duration::from_millis(300));
        };
        (0..40).for_each(|_| both(ids[0], Mode::Check));
        changed.prepare("own", &after).unwrap();
        both(ids[1], Mode::Peek);
        (0..40).for_each(|_| both(ids[1], Mode::Check));
        changed.prepare("own", &before).unwrap();
        (0..40).for_each(|_| both(ids[0], Mode::Check));
    }
}

/// A shared store for few clients has more shards than clients. Which clients meet in one shard depends on the
/// engine's hash key, which is random, so many engines are tried.
#[test]
fn a_shared_store_keeps_as_many_clients_as_its_capacity() {
    for capacity in [2, 3, 5, 8, 12, 20] {
        for _ in 0..200 {
            let engine = engine();
            share(&engine, &["fixed-window 1000/1d"], 100);
            let id = share(&engine, &["fixed-window 1000/1d"], capacity)[0];
            let left = |client: usize| ask(&engine, id, &client.to_string(), Mode::Check).remaining;
            let first: Vec<_> = (0..capacity).map(left).collect();
            assert_eq!(first, vec![999; capacity]);
            let second: Vec<_> = (0..capacity).map(left).collect();
            assert_eq!(second, vec![998; capacity]);
        }
    }
}

/// The bounds of a shared store are those of the rule that needs the most.
#[test]
fn a_rule_without_a_bound_in_bytes_is_not_bound_by_another() {
    let engine = engine();
    let log: Rule = "sliding-log 2/1h".parse().unwrap();
    let bounded = log.clone().with_max_bytes(1000).unwrap();
    let wanted = [("first", &log), ("second", &bounded)].map(|(name, rule)| Preparation {
        name,
        rule,
        capacity: 1000,
        store: Some("overrides"),
    });
    let id = engine.prepare_all(&wanted).unwrap()[0];
    let admitted = |client: usize| ask(&engine, id, &client.to_string(), Mode::Check).allowed;
    let round = || (0..500).filter(|client| admitted(*client)).count();
    assert_eq!([round(), round(), round()], [500, 500, 0]);
}

/// A limit that is prepared later with smaller states leaves room for the larger ones.
#[test]
fn a_store_has_room_for_the_states_of_all_its_limits() {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let engine = MemoryEngine::with_clock(300, Arc::clone(&clock)).unwrap();
    let prepare = |name, text: &str| {
        let rule = text.parse().unwrap();
        engine.prepare_in("log", name, &rule).unwrap()
    };
    prepare("log", "gcra 2/h burst=2");
    let large = prepare("large", "sliding-log 1000/1h");
    prepare("small", "gcra 3/h burst=3");
    for nth in 1..=1000 {
        clock.advance(Duration::from_millis(1));
        for client in 0..300 {
            let decision = ask(&engine, large, &client.to_string(), Mode::Check);
            assert_eq!(decision.remaining, 1000 - nth, "{client}");
        }
    }
}

/// A small cost makes a log of many entries, of which a client under a small quota may have thousands.
#[test]
fn clients_are_kept_whatever_their_requests_cost() {
    for store in [None, Some("overrides")] {
        for capacity in [2, 20] {
            let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
            let engine = engine_at(&clock);
            let rule: Rule = "sliding-log 3/1h".parse().unwrap();
            let wanted = Preparation {
                name: "log",
                rule: &rule,
                capacity,
                store,
            };
            let id = engine.prepare_all(&[wanted]).unwrap()[0];
            let cost = "0.01".parse().unwrap();
            let mut admitted = 0;
            for _ in 0..400 {
                clock.advance(Duration::from_millis(1));
                for client in 0..capacity {
                    let key = client.to_string();
                    let charge = Charge {
                        rule: id,
                        key: key.as_bytes(),
                        cost,
                    };
                    let decision = engine.decide(&[charge], Mode::Check, None).into_inner();
                    admitted += usize::from(decision.unwrap().allowed);
                }
            }
            assert_eq!(admitted, 300 * capacity, "{store:?} {capacity}");
        }
    }
}

/// The memory of larger states is freed once they no longer count.
#[test]
fn tidying_frees_the_clients_that_are_as_good_as_new() {
    for store in [None, Some("overrides")] {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
        let engine = engine_at(&clock);
        let rule: Rule = "sliding-log 3/1h".parse().unwrap();
        let wanted = Preparation {
            name: "log",
            rule: &rule,
            capacity: 100,
            store,
        };
        let id = engine.prepare_all(&[wanted]).unwrap()[0];
        let visit = |client: u32| {
            assert!(ask(&engine, id, &client.to_string(), Mode::Check).allowed);
        };
        (0..50).for_each(visit);
        clock.advance(Duration::from_secs(1800));
        (50..80).for_each(visit);
        clock.advance(Duration::from_secs(1800));
        engine.tidy();
        assert_eq!(engine.usage(id).unwrap().0, 30, "{store:?}");
    }
}

/// The states of a larger quota stay until their clients are met.
#[test]
fn a_smaller_quota_keeps_the_clients_that_are_over_it() {
    for (before, after) in [
        ("sliding-log 1000/1h", "sliding-log 5/1h"),
        ("sliding-log 1000/1h", "sliding-log 5/1h strict"),
        (
            "sliding-window 1000/1h sub-windows=60",
            "sliding-window 5/1h sub-windows=60 lenient",
        ),
    ] {
        for store in [None, Some("overrides")] {
            let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
            let engine = engine_at(&clock);
            let prepare = |text: &str| {
                let rule: Rule = text.parse().unwrap();
                let wanted = Preparation {
                    name: "log",
                    rule: &rule,
                    capacity: 100,
                    store,
                };
                engine.prepare_all(&[wanted]).unwrap()[0]
            };
            let id = prepare(before);
            let round = |id| {
                clock.advance(Duration::from_millis(500));
                let admits = |nth: &usize| ask(&engine, id, &nth.to_string(), Mode::Check).allowed;
                (0..100).filter(admits).count()
            };
            assert_eq!((0..100).map(|_| round(id)).sum::<usize>(), 10_000);
            assert_eq!(round(prepare(after)), 0, "{before} {after} {store:?}");
        }
    }
}

/// Ten clients with full logs take a third of the megabyte that the rule may take. All of them are kept, in
/// whichever shards their hashes place them.
#[test]
fn clients_are_kept_while_all_of_them_fit_the_bound_in_bytes() {
    let rule: Rule = "sliding-log 1000/1h".parse().unwrap();
    let rule = rule.with_max_bytes(1_000_000).unwrap();
    let smaller: Rule = "sliding-log 10/1h".parse().unwrap();
    let smaller = smaller.with_max_bytes(1_000_000).unwrap();
    let stores = [None, Some("overrides")];
    for (store, before) in stores
        .into_iter()
        .flat_map(|store| [(store, &rule), (store, &smaller)])
    {
        for _ in 0..20 {
            let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
            let engine = engine_at(&clock);
            let prepare = |rule| {
                let wanted = Preparation {
                    name: "log",
                    rule,
                    capacity: 1000,
                    store,
                };
                engine.prepare_all(&[wanted]).unwrap()[0]
            };
            prepare(before);
            let id = prepare(&rule);
            let admitted =
                |client: usize| ask(&engine, id, &client.to_string(), Mode::Check).allowed;
            let round = || {
                clock.advance(Duration::from_millis(1));
                (0..10).filter(|client| admitted(*client)).count()
            };
            assert_eq!((0..1000).map(|_| round()).sum::<usize>(), 10_000);
            assert_eq!(round(), 0);
        }
    }
}

/// A request that began before a reload may be decided under the earlier limit after the reload.
#[test]
fn no_request_is_lost_between_two_limits() {
    const THREADS: u64 = 4;
    let engine = engine();
    let ids = share(
        &engine,
        &["fixed-window 1000/1d", "fixed-window 1000/1d strict"],
        10,
    );
    let admitted = |nth: u64| {
        let id = ids[nth as usize % ids.len()];
        (0..1000)
            .filter(|_| ask(&engine, id, "alice", Mode::Check).allowed)
            .count()
    };
    let total: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|nth| scope.spawn(move || admitted(nth)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(total, 1000);
}

#[test]
fn a_client_starts_afresh_under_another_algorithm() {
    let engine = engine();
    let ids = share(&engine, &["gcra 1/h burst=5", "sliding-log 5/1h"], 10);
    (0..5).for_each(|_| assert!(ask(&engine, ids[0], "alice", Mode::Check).allowed));
    assert!(!ask(&engine, ids[0], "alice", Mode::Check).allowed);
    assert_eq!(ask(&engine, ids[1], "alice", Mode::Check).remaining, 4);
}

/// Such a request locks each shard of the store once.
#[test]
fn one_request_may_charge_several_clients_of_a_store() {
    let engine = engine();
    let ids = share(
        &engine,
        &["gcra 1/h burst=5", "sliding-log 5/1h", "fixed-window 5/1h"],
        10,
    );
    let keys: Vec<String> = (0..30).map(|nth| nth.to_string()).collect();
    let charges = keys.iter().enumerate().map(|(nth, key)| Charge {
        rule: ids[nth % ids.len()],
        key: key.as_bytes(),
        cost: Cost::ONE,
    });
    let charges: Vec<_> = charges.collect();
    for nth in 0..6 {
        let decision = engine
            .decide(&charges, Mode::Check, None)
            .into_inner()
            .unwrap();
        assert_eq!(decision.allowed, nth < 5);
    }
}

#[test]
fn the_store_is_bounded_by_the_greatest_capacity_of_its_rules() {
    let engine = engine();
    let ids = share(&engine, &["gcra 1/h burst=5", "sliding-log 5/1h"], 10_000);
    let stored = || engine.usage(ids[0]).unwrap().0;
    for nth in 0..30_000 {
        ask(&engine, ids[nth % 2], &nth.to_string(), Mode::Check);
    }
    assert!((10_000..16_000).contains(&stored()), "{}", stored());
    share(&engine, &["gcra 1/h burst=5", "sliding-log 5/1h"], 100);
    assert!(stored() < 2_000, "{}", stored());
}

/// Each client is compared with its own limit when one has to go.
#[test]
fn clients_over_their_own_limits_outlive_a_flood() {
    const OFFENDERS: usize = 100;
    let engine = engine();
    let limits = [
        "gcra 1/h burst=2",
        "exponential 9/1h",
        "fixed-window 1000000/1h",
    ];
    let ids = share(&engine, &limits, 1_000);
    let is_free = |nth: &usize| ask(&engine, ids[nth % 2], &nth.to_string(), Mode::Check).allowed;
    for nth in 0..OFFENDERS {
        while is_free(&nth) {}
    }
    for nth in OFFENDERS..20_000 {
        ask(&engine, ids[2], &nth.to_string(), Mode::Check);
    }
    assert_eq!((0..OFFENDERS).filter(is_free).count(), 0);
}

/// A survey reports each client once, under its own limit, and changes no state.
#[test]
fn a_survey_of_a_shared_store_changes_no_state() {
    for limits in LIMITS {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
        let [surveyed, other] = [engine_at(&clock), engine_at(&clock)];
        let [ids, _] = [&surveyed, &other].map(|engine| share(engine, &limits, 100));
        for engine in [&surveyed, &other] {
            for _ in 0..40 {
                ask(engine, ids[0], "alice", Mode::Check);
            }
            ask(engine, ids[1], "bob", Mode::Check);
        }
        for asked in &ids {
            let survey = surveyed.survey(*asked, 10).unwrap();
            assert_eq!(survey.rates.clients(), 2, "{limits:?}");
            for (id, key) in [(ids[0], "alice"), (ids[1], "bob")] {
                let fingerprint = surveyed.hash(key.as_bytes()).fingerprint();
                let listed: Vec<_> = survey
                    .top
                    .iter()
                    .filter(|one| one.fingerprint == fingerprint)
                    .collect();
                let peeked = ask(&other, id, key, Mode::Peek);
                let figures = |one: &TopClient| (one.limit, one.remaining, one.rate);
                let expected = (peeked.limit, peeked.remaining, peeked.rate);
                assert_eq!(
                    listed.iter().map(|one| figures(one)).collect::<Vec<_>>(),
                    [expected],
                    "{limits:?}"
                );
            }
        }
        for (id, key) in [(ids[0], "alice"), (ids[1], "bob")] {
            let [one, two] = [&surveyed, &other].map(|engine| ask(engine, id, key, Mode::Check));
            assert_eq!(one, two, "{limits:?}");
        }
    }
}

#[test]
fn the_largest_rule_bounds_a_shared_store() {
    let engine = engine();
    let limit: Rule = "gcra 1/h burst=5".parse().unwrap();
    let wanted = [("first", 10_000), ("second", 100)].map(|(name, capacity)| Preparation {
        name,
        rule: &limit,
        capacity,
        store: Some("overrides"),
    });
    let ids = engine.prepare_all(&wanted).unwrap();
    for nth in 0..8_000 {
        ask(&engine, ids[0], &nth.to_string(), Mode::Check);
    }
    assert_eq!(engine.usage(ids[0]).unwrap().0, 8_000);
}
