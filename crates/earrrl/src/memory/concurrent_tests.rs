use std::collections::HashMap;
use std::string::ToString;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Barrier, Mutex};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Limit;
use crate::clock::ManualClock;
use crate::engine::Engine;
use crate::internal::Preparation;
use crate::{Action, Rule};

const START: Nanos = Nanos::from_secs(1_800_000_000);
const STREAMS: &str = "concurrent 3 timeout=60s";

type ManualEngine = MemoryEngine<ManualClock>;

fn engine() -> ManualEngine {
    MemoryEngine::with_clock(1000, ManualClock::new(START)).unwrap()
}

fn prepare<C: Clock>(engine: &MemoryEngine<C>, name: &str, rule: &str, capacity: usize) -> RuleId {
    engine
        .prepare_with(name, &rule.parse::<Rule>().unwrap(), capacity)
        .unwrap()
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn charge(rule: RuleId, cost: u64) -> Charge<'static> {
    Charge {
        rule,
        key: b"alice",
        cost: Cost::from_units(cost),
    }
}

fn hold<C: Clock>(engine: &MemoryEngine<C>, charges: &[Charge<'_>]) -> Option<HoldId> {
    engine.hold(charges, HoldTerms::default(), None).unwrap().id
}

fn free(engine: &ManualEngine, rule: RuleId) -> u64 {
    let peek = [charge(rule, 1)];
    engine
        .decide(&peek, Mode::Peek, None)
        .into_inner()
        .unwrap()
        .remaining
}

fn wait(engine: &ManualEngine, time: Duration) {
    engine.clock.at(engine.clock.now() + time);
}

fn unknown<T: core::fmt::Debug>(answer: Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::UnknownReservation(_)))
}

#[test]
fn a_commit_of_any_cost_frees_the_places_once() {
    for actual in [0, 1, 2, 731] {
        let engine = engine();
        let rule = prepare(&engine, "streams", STREAMS, 10);
        let id = hold(&engine, &[charge(rule, 2)]).unwrap();
        assert_eq!(hold(&engine, &[charge(rule, 2)]), None);
        hold(&engine, &[charge(rule, 1)]).unwrap();
        assert_eq!(free(&engine, rule), 0);
        let actual = Actual::All(Cost::from_units(actual));
        let committed = engine.commit(id, actual, None).unwrap();
        assert_eq!(
            (committed.repeated, committed.decision.remaining),
            (false, 2)
        );
        assert!(engine.commit(id, actual, None).unwrap().repeated);
        assert_eq!(free(&engine, rule), 2);
    }
}

#[test]
fn a_holder_that_disappears_is_freed_after_the_timeout_unless_it_renews() {
    let engine = engine();
    let rule = prepare(&engine, "streams", STREAMS, 10);
    // The time to live of five minutes is cut to the timeout.
    let [lost, renewed] = [(); 2].map(|()| hold(&engine, &[charge(rule, 1)]).unwrap());
    wait(&engine, secs(59));
    engine.expire();
    assert_eq!(free(&engine, rule), 1);
    engine.renew(renewed, secs(3600), None).unwrap();
    wait(&engine, secs(1));
    assert_eq!(free(&engine, rule), 2);
    engine.expire();
    assert_eq!((free(&engine, rule), engine.reservations().live), (2, 1));
    assert!(unknown(engine.renew(lost, secs(60), None)));
    assert!(unknown(engine.commit(lost, Actual::All(Cost::ZERO), None)));
    assert_eq!(free(&engine, rule), 2);
    wait(&engine, secs(58));
    engine.renew(renewed, secs(5), None).unwrap();
    wait(&engine, secs(4));
    engine
        .commit(renewed, Actual::All(Cost::ONE), None)
        .unwrap();
    assert!(unknown(engine.renew(renewed, secs(5), None)));
    assert_eq!((free(&engine, rule), engine.reservations().live), (3, 0));
}

/// The places of an expired reservation are free at once, also before the timeout.
#[test]
fn an_expired_reservation_is_released_before_the_timeout() {
    let engine = engine();
    let rule = prepare(&engine, "streams", STREAMS, 10);
    let terms = HoldTerms::default().ttl(secs(5));
    engine
        .hold(&[charge(rule, 3)], terms, None)
        .unwrap()
        .id
        .unwrap();
    wait(&engine, secs(5));
    assert_eq!(free(&engine, rule), 0);
    engine.expire();
    assert_eq!(free(&engine, rule), 3);
}

#[test]
fn one_reservation_combines_a_place_with_other_rules() {
    let engine = engine();
    let streams = prepare(&engine, "streams", "concurrent 2 timeout=60s", 10);
    let tokens = prepare(&engine, "tokens", "fixed-window 100/1d", 10);
    let both = |tokens_wanted| [charge(streams, 1), charge(tokens, tokens_wanted)];
    let first = hold(&engine, &both(60)).unwrap();
    assert_eq!(hold(&engine, &both(60)), None, "too many tokens");
    assert_eq!((free(&engine, streams), free(&engine, tokens)), (1, 40));
    hold(&engine, &both(10)).unwrap();
    let denied = engine.hold(&both(1), HoldTerms::default(), None).unwrap();
    assert_eq!((denied.id, denied.decision.rule), (None, 0), "no place");
    assert_eq!((free(&engine, streams), free(&engine, tokens)), (0, 30));
    engine
        .commit(
            first,
            Actual::ByRule(&[(tokens, Cost::from_units(25))]),
            None,
        )
        .unwrap();
    assert_eq!((free(&engine, streams), free(&engine, tokens)), (1, 65));
}

#[test]
fn checks_and_charges_are_refused_and_change_nothing() {
    let engine = engine();
    let rule = prepare(&engine, "streams", STREAMS, 10);
    let tokens = prepare(&engine, "tokens", "fixed-window 100/1d", 10);
    hold(&engine, &[charge(rule, 1)]).unwrap();
    for charges in [
        &[charge(rule, 1)][..],
        &[charge(tokens, 1), charge(rule, 1)],
    ] {
        for mode in [Mode::Check, Mode::Charge] {
            let error = engine
                .decide(charges, mode, None)
                .into_inner()
                .unwrap_err()
                .to_string();
            let expected = "rule streams: `concurrent 3 timeout=60s` counts live reservations: \
                            reserve, instead of checking";
            assert_eq!(error, expected);
        }
    }
    assert!(
        engine
            .check_hashed(rule, engine.hash(b"alice"), Cost::ONE)
            .is_err()
    );
    assert!(!engine.admit_at_once(&charge(rule, 1)));
    assert!(
        engine
            .refund(&charge(rule, 1), None, None)
            .into_inner()
            .is_err()
    );
    assert_eq!((free(&engine, rule), free(&engine, tokens)), (2, 100));
}

#[test]
fn a_changed_rule_keeps_its_holders() {
    let engine = engine();
    let rule = prepare(&engine, "streams", STREAMS, 10);
    let ids = [(); 3].map(|()| hold(&engine, &[charge(rule, 1)]).unwrap());
    for (text, capacity, expected) in [
        ("concurrent 2 timeout=60s", 10, 0),
        ("concurrent 5 timeout=30s", 10, 2),
        ("concurrent 4 timeout=10m", 20_000, 1),
    ] {
        assert_eq!(prepare(&engine, "streams", text, capacity), rule);
        assert_eq!(free(&engine, rule), expected, "{text}");
    }
    engine.commit(ids[0], Actual::All(Cost::ONE), None).unwrap();
    wait(&engine, secs(1));
    engine.renew(ids[1], secs(600), None).unwrap();
    assert_eq!(free(&engine, rule), 2);
    // The holders went with the states; nothing of them is left to give back.
    prepare(&engine, "streams", "fixed-window 10/1d", 20_000);
    prepare(&engine, "streams", STREAMS, 20_000);
    hold(&engine, &[charge(rule, 1)]).unwrap();
    assert!(unknown(engine.renew(ids[1], secs(60), None)));
    engine
        .commit(ids[1], Actual::All(Cost::from_units(9)), None)
        .unwrap();
    engine
        .commit(ids[2], Actual::All(Cost::ZERO), None)
        .unwrap();
    assert_eq!(free(&engine, rule), 2);
}

#[test]
fn a_reset_frees_the_places_and_ends_renewals() {
    let engine = engine();
    let rule = prepare(&engine, "streams", STREAMS, 10);
    let id = hold(&engine, &[charge(rule, 3)]).unwrap();
    engine.reset(rule, b"alice").into_inner().unwrap();
    wait(&engine, secs(1));
    hold(&engine, &[charge(rule, 2)]).unwrap();
    assert!(unknown(engine.renew(id, secs(60), None)));
    engine.commit(id, Actual::All(Cost::ONE), None).unwrap();
    assert_eq!(free(&engine, rule), 1);
}

/// A dry run counts up to its limit; what passes above that takes no place.
#[test]
fn an_observing_rule_lets_more_pass_and_frees_only_what_it_counted() {
    let engine = engine();
    let rule: Rule = "concurrent 1 timeout=60s".parse().unwrap();
    let rule = rule.with_action(Action::Observe).unwrap();
    let rule = engine.prepare_with("streams", &rule, 10).unwrap();
    let [first, above] = [(); 2].map(|()| hold(&engine, &[charge(rule, 1)]).unwrap());
    engine.renew(above, secs(60), None).unwrap();
    engine.commit(above, Actual::All(Cost::ONE), None).unwrap();
    assert_eq!(free(&engine, rule), 0);
    engine.commit(first, Actual::All(Cost::ONE), None).unwrap();
    assert_eq!(free(&engine, rule), 1);
}

/// Clients with live holders stay although the map is much too small for them, and go first once
/// their holders have gone.
#[test]
fn a_client_with_live_holders_is_never_evicted() {
    let engine = engine();
    let own = prepare(&engine, "streams", "concurrent 1 timeout=60s", 1);
    let limit: Rule = "concurrent 1 timeout=60s".parse().unwrap();
    let store = Some("shared");
    let shared = Preparation {
        name: "shared",
        rule: &limit,
        capacity: 1,
        store,
    };
    let shared = engine.prepare_all(&[shared]).unwrap()[0];
    for rule in [own, shared] {
        let key = |nth: u32| nth.to_le_bytes();
        let try_hold = |nth| {
            let charge = Charge {
                rule,
                key: &key(nth),
                cost: Cost::ONE,
            };
            hold(&engine, &[charge])
        };
        let ids: Vec<_> = (0..3000).map(|nth| try_hold(nth).unwrap()).collect();
        assert_eq!((0..3000).find_map(try_hold), None);
        assert_eq!(engine.usage(rule), Some((3000, 0)));
        for id in ids {
            engine.commit(id, Actual::All(Cost::ONE), None).unwrap();
        }
        assert_eq!(engine.usage(rule), Some((0, 0)));
    }
}

#[test]
fn a_client_whose_holders_have_timed_out_is_evicted() {
    let engine = engine();
    let rule = prepare(&engine, "streams", "concurrent 1 timeout=60s", 64);
    let hold_all = |from: u32| {
        for nth in from..from + 2000 {
            let charge = Charge {
                rule,
                key: &nth.to_le_bytes(),
                cost: Cost::ONE,
            };
            hold(&engine, &[charge]).unwrap();
        }
    };
    hold_all(0);
    engine.holds.expire(START + secs(3600));
    wait(&engine, secs(60));
    hold_all(10_000);
    let (clients, displaced) = engine.usage(rule).unwrap();
    assert!(clients < 2500, "{clients}");
    assert_eq!(displaced, 0);
}

/// Counts the holders of a client that believe to be live, between their reservation and the start
/// of their commit.
#[test]
fn no_instant_sees_more_holders_than_the_bound() {
    const BOUND: u64 = 4;
    let rounds = if std::env::var_os("EARRRL_LONG").is_some() {
        100_000
    } else {
        3_000
    };
    let engine = MemoryEngine::new(4).unwrap();
    let rule = prepare(
        &engine,
        "streams",
        &std::format!("concurrent {BOUND} timeout=60s"),
        4,
    );
    let tokens = prepare(&engine, "tokens", "gcra 1000000000/s burst=1000000000", 4);
    let (live, granted): ([AtomicU64; 16], _) = (Default::default(), AtomicU64::new(0));
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for worker in 0..8u64 {
            let engine = &engine;
            let live = &live;
            let granted = &granted;
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for round in 0..rounds {
                    let client = (worker + round) as usize % live.len();
                    let key = &[client as u8][..];
                    let cost = Cost::from_units(1 + round % 2);
                    let place = Charge { rule, key, cost };
                    let both = [
                        place,
                        Charge {
                            rule: tokens,
                            key,
                            cost: Cost::ONE,
                        },
                    ];
                    let charges = if round % 3 == 0 {
                        &both[..]
                    } else {
                        &both[..1]
                    };
                    let Some(id) = hold(engine, charges) else {
                        continue;
                    };
                    let taken = 1 + round % 2;
                    let before = live[client].fetch_add(taken, SeqCst);
                    assert!(before + taken <= BOUND, "{before} and {taken}");
                    granted.fetch_add(1, SeqCst);
                    if round % 5 == 0 {
                        engine.renew(id, secs(60), None).unwrap();
                    }
                    thread::yield_now();
                    live[client].fetch_sub(taken, SeqCst);
                    engine
                        .commit(id, Actual::All(Cost::from_units(round)), None)
                        .unwrap();
                }
            });
        }
    });
    assert!(granted.into_inner() > rounds);
    assert_eq!(
        (engine.usage(rule), engine.reservations().live),
        (Some((0, 0)), 0)
    );
}

/// Some holders disappear, others renew, and the clock moves on under all threads. A holder counts from
/// the answer to its reservation until the start of its commit, or else until its timeout.
#[test]
fn no_instant_sees_more_holders_than_the_bound_while_they_time_out() {
    const BOUND: usize = 4;
    let rounds = if std::env::var_os("EARRRL_LONG").is_some() {
        100_000
    } else {
        3_000
    };
    let engine = engine();
    let timeout = secs(60);
    let rule = prepare(
        &engine,
        "streams",
        &std::format!("concurrent {BOUND} timeout=60s"),
        10,
    );
    let live = Mutex::new(HashMap::new());
    let start = Barrier::new(8);
    let granted = AtomicU64::new(0);
    let work = |worker: usize| {
        start.wait();
        for round in 0..rounds {
            if round % 4 == 0 {
                wait(&engine, secs(3));
            }
            let before = engine.clock.now();
            let Some(id) = hold(&engine, &[charge(rule, 1)]) else {
                continue;
            };
            granted.fetch_add(1, SeqCst);
            let count = {
                let mut live = live.lock().unwrap();
                live.insert(id, before + timeout);
                let now = engine.clock.now();
                live.retain(|_, ends| *ends > now);
                live.len()
            };
            assert!(count <= BOUND, "{count} holders");
            if worker % 3 == round % 3 {
                let before = engine.clock.now();
                let is_renewed = engine.renew(id, timeout, None).is_ok();
                let mut live = live.lock().unwrap();
                let ends = live.remove(&id);
                assert!(is_renewed || ends.is_none_or(|ends| ends <= engine.clock.now()));
                if is_renewed {
                    live.insert(id, before + timeout);
                }
            } else if round % 5 > 0 {
                let ends = live.lock().unwrap().remove(&id);
                let is_committed = engine.commit(id, Actual::All(Cost::ONE), None).is_ok();
                assert!(is_committed || ends.is_none_or(|ends| ends <= engine.clock.now()));
            }
        }
    };
    thread::scope(|scope| {
        (0..8).for_each(|worker| {
            drop({
                let work = &work;
                scope.spawn(move || work(worker))
            })
        })
    });
    assert!(granted.into_inner() > rounds as u64 / 2);
    wait(&engine, timeout);
    engine.expire();
    assert_eq!(
        (free(&engine, rule), engine.reservations().live),
        (BOUND as u64, 0)
    );
}

#[test]
fn millions_of_reservations_leave_memory_unchanged() {
    let rounds = if std::env::var_os("EARRRL_LONG").is_some() {
        10_000_000
    } else {
        100_000
    };
    let engine = engine();
    let rule = prepare(&engine, "streams", STREAMS, 100);
    engine.set_max_reservations(1000);
    let mut live = std::collections::VecDeque::new();
    let mut early = 0;
    let mut before = 0;
    for round in 0..rounds {
        if round % 4 == 0 {
            wait(&engine, Duration::from_millis(1));
        }
        let key = [(round % 50) as u8];
        live.extend(hold(
            &engine,
            &[Charge {
                rule,
                key: &key,
                cost: Cost::ONE,
            }],
        ));
        if live.len() > 100 {
            let id = live.pop_front().unwrap();
            match round % 10 {
                0 => engine.renew(id, secs(60), None).unwrap(),
                _ => drop(engine.commit(id, Actual::All(Cost::ONE), None).unwrap()),
            }
        }
        let rules = engine.rules.load();
        let states = rules.get(rule.0 as usize).unwrap().clients.bytes();
        before = before.max(states);
        if round == rounds / 10 {
            early = engine.reservations().bytes + before;
        }
    }
    let bytes = engine.reservations().bytes + before;
    assert!(
        bytes <= early + early / 10,
        "{early} bytes after a tenth, {bytes} at the end"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Hold { client: u8, cost: u8, ttl: u64 },
    Commit(usize),
    Renew { nth: usize, ttl: u64 },
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ttl = || 1u64..90;
    let step = prop_oneof![
        4 => (0u8..3, 0u8..4, ttl()).prop_map(|(client, cost, ttl)| Step::Hold { client, cost, ttl }),
        2 => (0usize..40).prop_map(Step::Commit),
        2 => (0usize..40, ttl()).prop_map(|(nth, ttl)| Step::Renew { nth, ttl }),
        2 => (0u64..50).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A reservation of the model: its client and places, and the time at which it ends.
type Live = HashMap<HoldId, (u8, u64, u64)>;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn decides_as_a_list_of_live_holders_does(steps in steps(), timeout in 1u64..60) {
        let engine = engine();
        let text = std::format!("concurrent 5 timeout={timeout}s");
        let rule = prepare(&engine, "streams", &text, 10);
        let (mut live, mut ids, mut now) = (Live::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Step::Wait(time) => {
                    now += time;
                    wait(&engine, secs(time));
                    live.retain(|_, (_, _, ends)| *ends > now);
                }
                Step::Hold { client, cost, ttl } => {
                    let key = [client];
                    let charge = Charge { rule, key: &key, cost: Cost::from_units(cost.into()) };
                    let holding = engine.hold(&[charge], HoldTerms::default().ttl(secs(ttl)), None);
                    let holding = holding.unwrap();
                    let taken: u64 =
                        live.values().filter(|held| held.0 == client).map(|held| held.1).sum();
                    let fits = taken + u64::from(cost) <= 5;
                    prop_assert_eq!(holding.decision.allowed, fits);
                    let left = 5 - taken - if fits { u64::from(cost) } else { 0 };
                    prop_assert_eq!(holding.decision.remaining, left);
                    if let Some(id) = holding.id {
                        ids.push(id);
                        live.insert(id, (client, cost.into(), now + ttl.min(timeout)));
                    }
                }
                Step::Commit(nth) if nth < ids.len() => {
                    // A commit of a reservation that was committed before is repeated or forgotten.
                    let found = engine.commit(ids[nth], Actual::All(Cost::ONE), None);
                    let is_first = found.is_ok_and(|committed| !committed.repeated);
                    prop_assert_eq!(is_first, live.remove(&ids[nth]).is_some());
                }
                Step::Renew { nth, ttl } if nth < ids.len() => {
                    let renewed = engine.renew(ids[nth], secs(ttl), None).is_ok();
                    let known = live.get_mut(&ids[nth]);
                    prop_assert_eq!(renewed, known.is_some());
                    if let Some(held) = known {
                        held.2 = now + ttl.min(timeout);
                    }
                }
                Step::Commit(_) | Step::Renew { .. } => {}
            }
        }
        prop_assert_eq!(engine.reservations().live >= live.len(), true);
    }
}

/// A timeout is the longest time between renewals, so its bounds are those of a reservation.
#[test]
fn the_rule_names_what_is_wrong() {
    for (text, expected) in [
        (
            "concurrent",
            "column 11: expected a number of places such as 10",
        ),
        (
            "concurrent 10",
            "column 14: expected timeout=60s, as in `concurrent 10 timeout=60s`",
        ),
        (
            "concurrent 0 timeout=60s",
            "column 12: places: 0 is not from 1 to 100000",
        ),
        (
            "concurrent 1.5 timeout=60s",
            "column 12: `1.5` is not a number of places such as 10",
        ),
        (
            "concurrent 1 timeout=2d",
            "column 22: timeout: 172800s is not from 1ms to 24h",
        ),
        (
            "concurrent 1 timeout=60s strict",
            "column 26: unexpected `strict`; known here: timeout",
        ),
    ] {
        assert_eq!(text.parse::<Rule>().unwrap_err().to_string(), expected);
    }
    let limit = *STREAMS.parse::<Rule>().unwrap().limit();
    assert_eq!(Rule::from(limit).to_string(), "concurrent 3 timeout=1m");
    assert!(matches!(limit, Limit::Concurrent(_)));
}

/// After a reset, a reservation of two places does not find its own in the one place that another
/// reservation took at the same instant.
#[test]
fn a_renewal_takes_nobody_else_s_place() {
    let engine = engine();
    let rule = prepare(&engine, "streams", STREAMS, 10);
    let two = hold(&engine, &[charge(rule, 2)]).unwrap();
    engine.reset(rule, b"alice").into_inner().unwrap();
    hold(&engine, &[charge(rule, 1)]).unwrap();
    assert!(unknown(engine.renew(two, secs(60), None)));
    assert_eq!(free(&engine, rule), 2);
}
