use std::string::ToString;
use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::algorithm::State;
use crate::clock::ManualClock;
use crate::{Action, Engine, Rule};

const START: Nanos = Nanos::from_secs(1_800_000_000);

fn engine() -> MemoryEngine<ManualClock> {
    MemoryEngine::with_clock(1000, ManualClock::new(START)).unwrap()
}

fn prepare(engine: &MemoryEngine<ManualClock>, name: &str, rule: &str) -> RuleId {
    let rule: Rule = rule.parse().unwrap();
    engine.prepare_with(name, &rule, 1000).unwrap()
}

const fn units(units: u64) -> Cost {
    Cost::from_units(units)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn charge(rule: RuleId, cost: u64) -> Charge<'static> {
    Charge {
        rule,
        key: b"alice",
        cost: units(cost),
    }
}

fn remaining(engine: &MemoryEngine<ManualClock>, rule: RuleId) -> u64 {
    engine
        .run(&[charge(rule, 1)], Mode::Peek, None)
        .unwrap()
        .remaining
}

fn hold(engine: &MemoryEngine<ManualClock>, charges: &[Charge<'_>]) -> HoldId {
    engine
        .hold(charges, HoldTerms::default(), None)
        .unwrap()
        .id
        .expect("the hold is allowed")
}

fn wait(engine: &MemoryEngine<ManualClock>, time: u64) {
    engine.clock.at(engine.clock.now() + secs(time));
}

#[test]
fn an_estimate_counts_at_once_and_is_corrected_exactly_once() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "fixed-window 100/1d");
    let id = hold(&engine, &[charge(rule, 60)]);
    assert_eq!(remaining(&engine, rule), 40);
    let first = engine.commit(id, Actual::All(units(25)), None).unwrap();
    assert!(!first.repeated);
    assert_eq!((first.decision.remaining, first.rules()), (75, &[rule][..]));
    for actual in [25, 0, 99] {
        let again = engine.commit(id, Actual::All(units(actual)), None).unwrap();
        assert!(again.repeated);
        assert_eq!(again.decision.remaining, 75);
    }
    assert_eq!(engine.reservations().live, 0);
}

/// Clients with live reservations are not evicted by a reload, although they are more than the capacity.
#[test]
fn a_rule_that_is_prepared_again_keeps_all_live_holders() {
    let engine = engine();
    let limit: Rule = "concurrent 1 timeout=1h".parse().unwrap();
    let held = |rule: RuleId| {
        let holds = |client: &u32| {
            let key = client.to_string();
            let charge = Charge {
                rule,
                key: key.as_bytes(),
                cost: Cost::ONE,
            };
            engine
                .hold(&[charge], HoldTerms::default(), None)
                .unwrap()
                .id
                .is_some()
        };
        (0..40).filter(holds).count()
    };
    let rule = engine.prepare_with("jobs", &limit, 1).unwrap();
    assert_eq!(held(rule), 40);
    assert_eq!(held(engine.prepare_with("jobs", &limit, 1).unwrap()), 0);
}

#[test]
fn ids_that_were_never_given_are_unknown() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "fixed-window 100/1d");
    let id = hold(&engine, &[charge(rule, 60)]);
    for bits in [0, id.bits() + 1, id.bits() ^ 1 << 127, u128::MAX] {
        let error = engine.commit(HoldId::from_bits(bits), Actual::All(Cost::ZERO), None);
        assert_eq!(
            error,
            Err(EngineError::UnknownReservation(HoldId::from_bits(bits)))
        );
    }
    assert_eq!(remaining(&engine, rule), 40);
}

#[test]
fn an_expired_reservation_keeps_its_estimate_or_releases_it() {
    for (on_expiry, left) in [(OnExpiry::Keep, 40), (OnExpiry::Release, 100)] {
        let engine = engine();
        let rule: Rule = "fixed-window 100/1d".parse().unwrap();
        let rule = engine
            .prepare_with("tokens", &rule.with_on_expiry(on_expiry), 10)
            .unwrap();
        let id = hold(&engine, &[charge(rule, 60)]);
        wait(&engine, 299);
        engine.expire();
        assert_eq!(
            (remaining(&engine, rule), engine.reservations().live),
            (40, 1)
        );
        engine.renew(id, secs(10), None).unwrap();
        wait(&engine, 9);
        engine.expire();
        assert_eq!(engine.reservations().live, 1);
        wait(&engine, 1);
        engine.expire();
        assert_eq!(
            (remaining(&engine, rule), engine.reservations().live),
            (left, 0)
        );
        let late = engine.commit(id, Actual::All(Cost::ZERO), None);
        assert_eq!(late, Err(EngineError::UnknownReservation(id)));
        assert_eq!(remaining(&engine, rule), left);
    }
}

#[test]
fn several_rules_reserve_all_or_nothing_and_commit_an_amount_each() {
    let engine = engine();
    let tokens = prepare(&engine, "tokens", "token-bucket 100 refill=1/d");
    let requests = prepare(&engine, "requests", "sliding-log 3/1d");
    let both = [charge(tokens, 60), charge(requests, 1)];
    let id = hold(&engine, &both);
    let denied = engine.hold(&both, HoldTerms::default(), None).unwrap();
    assert_eq!((denied.id, denied.decision.rule), (None, 0));
    assert_eq!(denied.granted(), [Cost::ZERO; 2]);
    assert_eq!(
        (remaining(&engine, tokens), remaining(&engine, requests)),
        (40, 2)
    );
    let costs = [(tokens, units(10)), (RuleId(9), units(1))];
    assert!(engine.commit(id, Actual::ByRule(&costs), None).is_err());
    engine
        .commit(id, Actual::ByRule(&costs[..1]), None)
        .unwrap();
    assert_eq!(
        (remaining(&engine, tokens), remaining(&engine, requests)),
        (90, 2)
    );
    assert_eq!(engine.reservations().live, 0);
}

#[test]
fn at_most_grants_what_is_left() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "token-bucket 100 refill=1/d");
    let terms = HoldTerms::default().at_most();
    let ask = |cost| engine.hold(&[charge(rule, cost)], terms, None).unwrap();
    assert_eq!(ask(70).granted(), [units(70)]);
    let rest = ask(70);
    assert_eq!(
        (rest.granted(), rest.decision.remaining),
        (&[units(30)][..], 0)
    );
    let nothing = ask(70);
    assert_eq!((nothing.id, nothing.granted()), (None, &[Cost::ZERO][..]));
    engine
        .commit(rest.id.unwrap(), Actual::All(units(20)), None)
        .unwrap();
    assert_eq!(ask(70).granted(), [units(10)]);
}

/// Under a strict rule, a denied reservation counts its estimate, as a check does.
#[test]
fn at_most_counts_the_estimate_where_nothing_is_left() {
    for (text, counted) in [
        ("fixed-window 100/1d strict", 150),
        ("fixed-window 100/1d", 100),
    ] {
        let engine = engine();
        let rule = prepare(&engine, "tokens", text);
        hold(&engine, &[charge(rule, 100)]);
        let denied = engine.hold(&[charge(rule, 50)], HoldTerms::default().at_most(), None);
        assert_eq!(denied.unwrap().id, None);
        let peek = engine
            .decide(&[charge(rule, 1)], Mode::Peek, None)
            .into_inner()
            .unwrap();
        let units = peek.rate.map(|rate| (rate * 86_400.0).round());
        assert_eq!(units, Some(f64::from(counted)), "{text}");
    }
}

/// A rule that stops nobody must not make a gateway ask its model for less.
#[test]
fn at_most_grants_all_where_nothing_is_enforced() {
    for action in [Action::Observe, Action::Quarantine, Action::ShadowBan] {
        let engine = engine();
        let rule: Rule = "fixed-window 100/1d".parse().unwrap();
        let rule = rule.with_action(action).unwrap();
        let rule = engine.prepare_with("tokens", &rule, 1000).unwrap();
        let ask = || {
            engine
                .hold(&[charge(rule, 90)], HoldTerms::default().at_most(), None)
                .unwrap()
        };
        let granted = [ask(), ask(), ask()].map(|holding| holding.granted()[0]);
        let shown = if action == Action::ShadowBan {
            [90, 10, 90]
        } else {
            [90; 3]
        };
        assert_eq!(granted, shown.map(units), "{action:?}");
    }
}

/// The work is done, so the most expensive request must not become free.
#[test]
fn a_commit_above_max_cost_is_charged_as_max_cost() {
    let engine = engine();
    let cheap: Rule = "fixed-window 100/1d".parse().unwrap();
    let cheap = cheap
        .with_max_cost(units(50))
        .unwrap()
        .with_on_expiry(OnExpiry::Release);
    let cheap = engine.prepare_with("cheap", &cheap, 1000).unwrap();
    let other = prepare(&engine, "other", "fixed-window 100/1d");
    let id = hold(&engine, &[charge(cheap, 10), charge(other, 10)]);
    engine.commit(id, Actual::All(units(70)), None).unwrap();
    assert_eq!(
        (remaining(&engine, cheap), remaining(&engine, other)),
        (50, 30)
    );
    let id = hold(&engine, &[charge(cheap, 10)]);
    engine
        .commit(id, Actual::ByRule(&[(cheap, units(60))]), None)
        .unwrap();
    assert_eq!(remaining(&engine, cheap), 0);
}

/// A retried commit that comes late must not be taken for a request that was never reserved.
#[test]
fn a_forgotten_reservation_is_known_as_issued() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "fixed-window 1000/1d");
    let unknown = HoldId::from_bits(0);
    assert!(!engine.has_issued(unknown));
    let ids: Vec<_> = (0..20).map(|_| hold(&engine, &[charge(rule, 1)])).collect();
    ids.iter()
        .for_each(|id| drop(engine.commit(*id, Actual::All(units(1)), None)));
    wait(&engine, 86_400);
    for _ in 0..20 {
        hold(&engine, &[charge(rule, 1)]);
    }
    for id in ids {
        assert!(engine.commit(id, Actual::All(units(1)), None).is_err());
        assert!(engine.has_issued(id));
        for bit in 0..128 {
            assert!(
                !engine.has_issued(HoldId::from_bits(id.bits() ^ 1 << bit)),
                "{bit}"
            );
        }
    }
    assert!(!engine.has_issued(unknown));
}

/// Two of three reservations are committed, the others expire. `EARRRL_LONG=1` makes ten million.
#[test]
fn reservations_that_have_ended_leave_memory_unchanged() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "token-bucket 700000 refill=1/d");
    let count = if std::env::var_os("EARRRL_LONG").is_some() {
        10_000_000
    } else {
        30_000_u64
    };
    let mut bytes = 0;
    for nth in 0..count {
        let key = &(nth % 64).to_le_bytes();
        let id = hold(
            &engine,
            &[Charge {
                rule,
                key,
                cost: units(2),
            }],
        );
        if nth % 3 > 0 {
            engine
                .commit(id, Actual::All(units(nth % 3)), None)
                .unwrap();
        }
        wait(&engine, 1);
        if nth == 10_000 {
            bytes = engine.reservations().bytes;
        }
    }
    // The reservations are spread over the shards by chance.
    let last = engine.reservations().bytes;
    assert!(last <= bytes + bytes / 4, "{last} after {bytes}");
    assert!((1..150_000).contains(&bytes), "{bytes}");
}

#[test]
fn the_number_of_reservations_is_bounded() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "fixed-window 100/1d");
    engine.set_max_reservations(2);
    let id = hold(&engine, &[charge(rule, 1)]);
    hold(&engine, &[charge(rule, 1)]);
    let full = engine
        .hold(&[charge(rule, 1)], HoldTerms::default(), None)
        .unwrap_err();
    assert_eq!(full, EngineError::Reservations { most: 2 });
    assert!(full.to_string().contains("max_reservations"));
    assert_eq!(remaining(&engine, rule), 98);
    engine.commit(id, Actual::All(units(1)), None).unwrap();
    hold(&engine, &[charge(rule, 1)]);
    wait(&engine, 300);
    hold(&engine, &[charge(rule, 1)]);
}

#[test]
fn many_reservations_leave_memory_as_it_was() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "gcra 1000000/s burst=1000000000");
    engine.set_max_reservations(1000);
    let of = |client: u64| {
        let key = &client.to_le_bytes();
        hold(
            &engine,
            &[Charge {
                key,
                ..charge(rule, 1)
            }],
        )
    };
    let live: Vec<_> = (0..1000).map(of).collect();
    let full = engine.reservations().bytes;
    println!("{} bytes per live reservation", full / 1000);
    live.into_iter()
        .for_each(|id| drop(engine.commit(id, Actual::All(units(1)), None)));
    for _ in 0..100_000 {
        let id = hold(&engine, &[charge(rule, 1)]);
        engine.commit(id, Actual::All(Cost::ZERO), None).unwrap();
    }
    assert!(
        engine.reservations().bytes <= 2 * full,
        "{} {full}",
        engine.reservations().bytes
    );
}

/// Threads whose actual cost is at most their estimate are never admitted above the limit, and the
/// quota that is left is what they did not use.
#[test]
fn concurrent_streams_stay_within_the_limit() {
    for rule in [
        "fixed-window 1000/1d",
        "token-bucket 1000 refill=1/d",
        "sliding-log 1000/1d",
    ] {
        let engine = engine();
        let rule = prepare(&engine, "tokens", rule);
        let start = &Barrier::new(4);
        let engine = &engine;
        let spend = |seed: u64| {
            start.wait();
            let mut spent = 0;
            for nth in 0..200 {
                let estimate = 7 + nth % 5;
                let actual = (seed + nth) % 7;
                let holding = engine.hold(&[charge(rule, estimate)], HoldTerms::default(), None);
                let Some(id) = holding.unwrap().id else {
                    continue;
                };
                engine.commit(id, Actual::All(units(actual)), None).unwrap();
                spent += actual;
            }
            spent
        };
        let spent: u64 = thread::scope(|scope| {
            let spend = &spend;
            let threads: Vec<_> = (0..4)
                .map(|seed| scope.spawn(move || spend(seed)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert!((900..=1000).contains(&spent), "{spent}");
        assert_eq!(remaining(engine, rule), 1000 - spent);
    }
}

/// The streams cost more than their estimates. Nothing passes until the refill has paid the excess.
#[test]
fn the_debt_of_concurrent_streams_is_paid_first() {
    for rule in ["token-bucket 1000 refill=1/s", "gcra 1/s burst=1000"] {
        let engine = engine();
        let rule = prepare(&engine, "tokens", rule);
        let start = &Barrier::new(4);
        let engine = &engine;
        let spend = || {
            let ids = (0..50).filter_map(|_| {
                engine
                    .hold(&[charge(rule, 10)], HoldTerms::default(), None)
                    .unwrap()
                    .id
            });
            let ids: Vec<_> = ids.collect();
            start.wait();
            ids.iter()
                .for_each(|id| drop(engine.commit(*id, Actual::All(units(25)), None)));
            ids.len()
        };
        let admitted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(spend)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(admitted, 100);
        let ask = || {
            engine
                .hold(&[charge(rule, 1)], HoldTerms::default(), None)
                .unwrap()
        };
        assert_eq!(ask().decision.retry_after.duration(), Some(secs(1501)));
        wait(engine, 1500);
        assert_eq!(ask().id, None);
        wait(engine, 1);
        assert!(ask().id.is_some());
    }
}

#[test]
fn a_change_of_the_algorithm_drops_the_estimates() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "fixed-window 100/1d");
    let below = hold(&engine, &[charge(rule, 30)]);
    let above = hold(&engine, &[charge(rule, 30)]);
    prepare(&engine, "tokens", "sliding-log 100/1d");
    engine.commit(below, Actual::All(units(5)), None).unwrap();
    assert_eq!(remaining(&engine, rule), 100);
    engine.commit(above, Actual::All(units(50)), None).unwrap();
    assert_eq!(remaining(&engine, rule), 80);
}

/// A denied reservation between others does not hide what the oldest one gave back.
#[test]
fn a_denied_reservation_leaves_nothing_in_a_bucket() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "token-bucket 100 refill=1/s");
    let first = hold(&engine, &[charge(rule, 34)]);
    let second = hold(&engine, &[charge(rule, 24)]);
    let denied = engine
        .hold(&[charge(rule, 43)], HoldTerms::default(), None)
        .unwrap();
    assert_eq!(denied.id, None);
    engine.commit(first, Actual::All(Cost::ZERO), None).unwrap();
    wait(&engine, 1);
    engine.run(&[charge(rule, 1)], Mode::Charge, None).unwrap();
    engine
        .commit(second, Actual::All(Cost::ZERO), None)
        .unwrap();
    assert_eq!(remaining(&engine, rule), 99);
}

#[derive(Clone, Debug)]
enum Step {
    Charge(u64),
    Hold {
        estimate: u64,
        actual: u64,
    },
    /// Commits one of the live reservations.
    Commit(usize),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        1 => (1u64..60).prop_map(Step::Charge),
        3 => (1u64..60, 0u64..60).prop_map(|(estimate, actual)| Step::Hold {
            estimate,
            actual: actual.min(estimate),
        }),
        3 => any::<usize>().prop_map(Step::Commit),
    ];
    proptest::collection::vec((0u64..40, step), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]
    /// Any number of reservations of one bucket at a time: after all commits, the level is at most
    /// that of the actual costs alone.
    #[test]
    fn a_bucket_is_never_above_the_level_of_the_actual_costs(steps in steps()) {
        let engine = engine();
        let rule = prepare(&engine, "tokens", "token-bucket 100 refill=1/s");
        let limit: Rule = "token-bucket 100 refill=1/s".parse().unwrap();
        let (mut live, mut spent, mut now) = (Vec::new(), Vec::new(), START);
        for (gap, step) in steps {
            now = now + secs(gap);
            match step {
                Step::Charge(cost) => {
                    engine.run(&[charge(rule, cost)], Mode::Charge, Some(now)).unwrap();
                    spent.push((now, cost));
                }
                Step::Hold { estimate, actual } => {
                    let terms = HoldTerms::default().ttl(secs(3600));
                    let holding = engine.hold(&[charge(rule, estimate)], terms, Some(now));
                    if let Some(id) = holding.unwrap().id {
                        live.push((id, actual));
                        spent.push((now, actual));
                    }
                }
                Step::Commit(nth) if !live.is_empty() => {
                    let (id, actual) = live.remove(nth % live.len());
                    engine.commit(id, Actual::All(units(actual)), Some(now)).ok();
                }
                Step::Commit(_) => {}
            }
        }
        for (id, actual) in live {
            engine.commit(id, Actual::All(units(actual)), Some(now)).ok();
        }
        let mut exact: Option<State> = None;
        for (at, cost) in spent {
            exact = limit.limit().step(exact, at, units(cost), Mode::Charge).0;
        }
        let expected = limit.limit().decide(exact, now, Cost::ONE, Mode::Peek).1;
        let found = engine.run(&[charge(rule, 1)], Mode::Peek, Some(now)).unwrap();
        prop_assert!(found.remaining <= expected.remaining, "{found:?} {expected:?}");
        prop_assert!(found.reset_after >= expected.reset_after, "{found:?} {expected:?}");
    }
}

#[test]
fn a_reservation_of_after_a_change_of_algorithm_gives_back() {
    let engine = engine();
    prepare(&engine, "tokens", "fixed-window 100/1d");
    let rule = prepare(&engine, "tokens", "sliding-log 100/1d");
    let id = hold(&engine, &[charge(rule, 30)]);
    engine.commit(id, Actual::All(units(5)), None).unwrap();
    assert_eq!(remaining(&engine, rule), 95);
}

/// Under the faster refill, the bucket was full before the commit, so that nothing is left to give back.
#[test]
fn a_faster_refill_leaves_less_to_give_back() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "token-bucket 100 refill=1/s");
    let id = hold(&engine, &[charge(rule, 50)]);
    prepare(&engine, "tokens", "token-bucket 100 refill=10/s");
    wait(&engine, 20);
    engine.run(&[charge(rule, 60)], Mode::Charge, None).unwrap();
    engine.commit(id, Actual::All(Cost::ZERO), None).unwrap();
    assert_eq!(remaining(&engine, rule), 40);
}

/// A reservation that is held back is charged, although it was over the limit.
#[test]
fn a_delayed_reservation_gives_back() {
    let engine = engine();
    let limit: Rule = "gcra 1/s burst=2".parse().unwrap();
    let delayed = limit.with_action(Action::Delay { max: secs(10) }).unwrap();
    let rule = engine.prepare_with("tokens", &delayed, 1000).unwrap();
    hold(&engine, &[charge(rule, 2)]);
    let id = hold(&engine, &[charge(rule, 2)]);
    let reset_after = || {
        engine
            .run(&[charge(rule, 1)], Mode::Peek, None)
            .unwrap()
            .reset_after
    };
    assert_eq!(reset_after(), secs(4));
    engine.commit(id, Actual::All(Cost::ZERO), None).unwrap();
    assert_eq!(reset_after(), secs(2));
}

#[test]
fn denied_reservations_take_no_memory() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "gcra 1/s burst=1");
    for nth in 0..10_000_u64 {
        let charge = Charge {
            rule,
            key: &nth.to_le_bytes(),
            cost: units(2),
        };
        assert_eq!(
            engine
                .hold(&[charge], HoldTerms::default(), None)
                .unwrap()
                .id,
            None
        );
    }
    assert!(
        engine.reservations().bytes < 100_000,
        "{:?}",
        engine.reservations()
    );
}

/// Under a changed quota, a commit corrects the state that was charged. Where the rule began afresh, nothing
/// is left to give back.
#[test]
fn a_commit_after_a_change_corrects_only_the_state_that_was_charged() {
    for (old, new, expected) in [
        ("fixed-window 10/1d", "fixed-window 20/1d", 17),
        ("sliding-counter 10/1d", "sliding-counter 20/1d", 17),
        ("sliding-window 10/1d", "sliding-window 20/1d", 17),
        ("sliding-log 10/1d", "sliding-log 20/1d", 17),
        (
            "token-bucket 10 refill=1/d",
            "token-bucket 20 refill=1/d",
            17,
        ),
        ("fixed-window 10/1d", "fixed-window 20/2d", 17),
        ("sliding-log 10/1d", "fixed-window 20/1d", 17),
    ] {
        let engine = engine();
        let rule = prepare(&engine, "tokens", old);
        let id = hold(&engine, &[charge(rule, 7)]);
        prepare(&engine, "tokens", new);
        engine.run(&[charge(rule, 3)], Mode::Charge, None).unwrap();
        engine.commit(id, Actual::All(Cost::ZERO), None).unwrap();
        assert_eq!(remaining(&engine, rule), expected, "{old}, {new}");
    }
}

/// A caller whose answer was lost sends the request again under its id.
#[test]
fn a_repeated_reservation_is_charged_once() {
    let engine = engine();
    let tokens = prepare(&engine, "tokens", "token-bucket 100 refill=1/d");
    let streams = prepare(&engine, "streams", "concurrent 1 timeout=60s");
    let both = [charge(tokens, 60), charge(streams, 1)];
    let terms = HoldTerms::default().id(HoldId::from_bits(u128::MAX / 3));
    let first = engine.hold(&both, terms, None).unwrap();
    let again = engine.hold(&both, terms, None).unwrap();
    assert!(first.id.is_some() && again.decision.allowed);
    assert_eq!((again.id, again.granted()), (first.id, first.granted()));
    assert_eq!(
        (remaining(&engine, tokens), remaining(&engine, streams)),
        (40, 0)
    );
    for other in [&both[..1], &[charge(tokens, 50), charge(streams, 1)]] {
        let refused = engine.hold(other, terms, None);
        assert_eq!(
            refused,
            Err(EngineError::OtherReservation(first.id.unwrap()))
        );
    }
    let id = first.id.unwrap();
    engine.commit(id, Actual::All(units(25)), None).unwrap();
    assert_eq!(engine.hold(&both, terms, None).unwrap().id, first.id);
    assert!(
        engine
            .commit(id, Actual::All(Cost::ZERO), None)
            .unwrap()
            .repeated
    );
    assert_eq!(remaining(&engine, tokens), 75);
}

#[test]
fn a_reservation_is_repeated_by_many_threads_at_once() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "sliding-log 100/1d");
    for nth in 0..50 {
        let terms = HoldTerms::default().id(HoldId::from_bits(nth));
        let reserve = || engine.hold(&[charge(rule, 2)], terms, None).unwrap().id;
        let ids = thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(reserve));
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(ids.iter().all(|id| id.is_some() && *id == ids[0]));
    }
    assert_eq!(remaining(&engine, rule), 0);
}

/// A client that never commits is denied at last, and takes no place of another.
#[test]
fn a_client_has_a_share_of_the_reservations() {
    let engine = engine();
    engine.set_max_reservations(1600);
    let rule = prepare(&engine, "tokens", "fixed-window 1000000/1d");
    let other = prepare(&engine, "other", "fixed-window 1000000/1d");
    let ask = |charges: &[Charge<'_>]| engine.hold(charges, HoldTerms::default(), None).unwrap();
    let ids: Vec<_> = (0..100)
        .map(|_| hold(&engine, &[charge(rule, 1)]))
        .collect();
    let denied = ask(&[charge(other, 1), charge(rule, 1)]);
    assert_eq!((denied.id, denied.decision.rule), (None, 1));
    assert_eq!(denied.decision.outcome, crate::Outcome::Deny);
    assert!(denied.decision.is_over(1));
    assert_eq!(remaining(&engine, other), 1_000_000);
    let bob = Charge {
        key: b"bob",
        ..charge(rule, 1)
    };
    assert!(ask(&[bob]).id.is_some() && ask(&[charge(other, 1)]).id.is_some());
    engine.commit(ids[0], Actual::All(units(1)), None).unwrap();
    assert!(ask(&[charge(rule, 1)]).id.is_some());
    assert!(ask(&[charge(rule, 1)]).id.is_none());
}

/// The estimate went with the state, so a commit must not give back what was spent later.
#[test]
fn a_commit_after_a_reset_or_an_eviction_gives_nothing_back() {
    for text in [
        "fixed-window 1000/1d",
        "sliding-counter 1000/1d",
        "sliding-window 1000/1d",
        "sliding-log 1000/1d",
        "token-bucket 1000 refill=1/d",
        "recent-average 1000/1d half-life=1d",
        "exponential 1000/1d",
        "concurrent 1000 timeout=1d",
    ] {
        for is_evicted in [false, true] {
            let engine = engine();
            let rule = engine.prepare_with("tokens", &text.parse().unwrap(), 1);
            let rule = rule.unwrap();
            let is_concurrent = text.starts_with("concurrent");
            let spend = |key: &[u8], cost| {
                let cost = units(cost);
                let charge = Charge { rule, key, cost };
                if is_concurrent {
                    hold(&engine, &[charge]);
                } else {
                    engine.run(&[charge], Mode::Charge, None).unwrap();
                }
            };
            let id = hold(&engine, &[charge(rule, 100)]);
            if !is_evicted {
                engine.reset(rule, b"alice").into_inner().unwrap();
            } else if is_concurrent {
                continue;
            } else {
                (0..2000_u64).for_each(|key| spend(&key.to_le_bytes(), 500));
            }
            let anew = remaining(&engine, rule);
            spend(b"alice", 100);
            let spent = remaining(&engine, rule);
            assert!(spent < anew, "{text}, {is_evicted}");
            engine.commit(id, Actual::All(Cost::ZERO), None).unwrap();
            assert_eq!(remaining(&engine, rule), spent, "{text}, {is_evicted}");
        }
    }
}

/// A refund fills the bucket earlier, so that more refill is lost while a reservation is live.
#[test]
fn a_refund_during_a_reservation_of_a_bucket_is_not_given_back_twice() {
    let engine = engine();
    let rule = prepare(&engine, "tokens", "token-bucket 100 refill=1/s");
    engine.run(&[charge(rule, 50)], Mode::Charge, None).unwrap();
    let id = hold(&engine, &[charge(rule, 40)]);
    let refunded = engine.refund(&charge(rule, 50), None, None);
    refunded.into_inner().unwrap();
    // Without the reservation, the bucket has been full since the refund.
    wait(&engine, 45);
    engine.run(&[charge(rule, 100)], Mode::Check, None).unwrap();
    assert_eq!(remaining(&engine, rule), 0);
    engine.commit(id, Actual::All(Cost::ZERO), None).unwrap();
    assert_eq!(remaining(&engine, rule), 0);
}
