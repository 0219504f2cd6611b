use core::time::Duration;
use std::sync::{Arc, Barrier};
use std::thread;

use super::*;
use crate::clock::ManualClock;
use crate::clock::tests::Lagging;
use crate::decision::Action;

fn engine() -> MemoryEngine<ManualClock> {
    MemoryEngine::with_clock(1, ManualClock::new(Nanos::from_secs(1_800_000_000))).unwrap()
}

/// Every figure of a decision refers to the present instant, whatever the clock's last reading is.
#[test]
fn a_decision_is_made_at_the_present_instant() {
    let texts = [
        "gcra 1/1h burst=3",
        "recent-average 100/s half-life=1m",
        "gcra 9/m burst=900",
    ];
    for count in 1..=texts.len() {
        let clock = Arc::new(Lagging::default());
        clock.0.set(Nanos::from_secs(1_000_000));
        let engine = MemoryEngine::with_clock(1, Arc::clone(&clock)).unwrap();
        let charge = |text: &&str| {
            let rule = engine
                .prepare(&format!("r{}", text.len()), &text.parse().unwrap())
                .unwrap();
            Charge {
                rule,
                key: b"alice",
                cost: Cost::ONE,
            }
        };
        let charges: Vec<_> = texts[..count].iter().map(charge).collect();
        for _ in 0..5 {
            let decision = engine
                .decide(&charges, Mode::Check, None)
                .into_inner()
                .unwrap();
            assert_eq!(decision.at, clock.now(), "{count} rules");
            clock.0.advance(Duration::from_millis(3));
        }
    }
}

/// Each client has its own rule, and all share another one. The shared rule never admits more than
/// its limit, and a request that it denies is charged to no client.
#[test]
fn a_denied_request_leaves_no_charge_behind() {
    for (own, shared) in [
        ("gcra 1/s burst=100", "gcra 1/s burst=50"),
        ("gcra 1/s burst=100", "fixed-window 50/1h"),
        ("fixed-window 100/1h", "gcra 1/s burst=50"),
        ("sliding-log 100/1h", "sliding-window 50/1h"),
        ("recent-average 1/s half-life=1m leaky", "gcra 1/s burst=50"),
    ] {
        let engine = engine();
        let prepare = |name, text: &str, capacity| {
            engine
                .prepare_with(name, &text.parse().unwrap(), capacity)
                .unwrap()
        };
        let own_id = prepare("own", own, 100);
        let shared_id = prepare("shared", shared, 1);
        let engine = &engine;
        let start = &Barrier::new(4);
        let ask = |client: u8, mode| {
            let client = [client];
            let charges = [(own_id, &client[..]), (shared_id, b"all")].map(|(rule, key)| Charge {
                rule,
                key,
                cost: Cost::ONE,
            });
            engine.decide(&charges, mode, None).into_inner().unwrap()
        };
        let allowed: Vec<usize> = thread::scope(|scope| {
            let run = |client: u8| {
                move || {
                    start.wait();
                    (0..60).filter(|_| ask(client, Mode::Check).allowed).count()
                }
            };
            let threads: Vec<_> = (0..4).map(|client| scope.spawn(run(client))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(
            allowed.iter().sum::<usize>() <= 50,
            "{own}, {shared}: {allowed:?}"
        );
        assert_eq!(ask(0, Mode::Peek).rule, 1);
        engine.reset(shared_id, b"all").into_inner().unwrap();
        for (client, allowed) in (0..).zip(&allowed) {
            let expected = remaining_after(own, *allowed).min(50);
            assert_eq!(
                ask(client, Mode::Peek).remaining,
                expected,
                "{own}, {shared}"
            );
        }
    }
}

/// Returns the remaining quota of a client after a number of simultaneous requests.
fn remaining_after(rule: &str, requests: usize) -> u64 {
    let engine = engine();
    let rule = engine.prepare("rule", &rule.parse().unwrap()).unwrap();
    let ask = |mode| {
        let charge = Charge {
            rule,
            key: b"k",
            cost: Cost::ONE,
        };
        engine.decide(&[charge], mode, None).into_inner().unwrap()
    };
    (0..requests).for_each(|_| assert!(ask(Mode::Check).allowed));
    ask(Mode::Peek).remaining
}

/// A thread in a loop must not judge by a reading of the clock from before another thread's
/// request.
#[test]
fn a_request_is_not_judged_earlier_than_one_that_has_returned() {
    let engine = MemoryEngine::new(1_000).unwrap();
    let rule = engine
        .prepare("login", &"gcra 1000/s burst=1000000".parse().unwrap())
        .unwrap();
    let check = || {
        let charge = Charge {
            rule,
            key: b"alice",
            cost: Cost::ONE,
        };
        engine
            .decide(&[charge], Mode::Check, None)
            .into_inner()
            .unwrap()
    };
    for round in 0..100 {
        (0..100).for_each(|_| assert!(check().allowed));
        let before = thread::scope(|scope| scope.spawn(check).join().unwrap());
        let after = check();
        assert!(
            after.at >= before.at,
            "{:?} before, round {round}",
            before.at.since(after.at)
        );
        assert!(after.remaining < before.remaining + 1_000, "round {round}");
    }
}

/// Under a rule with larger states; a change of the memory bound keeps the clients.
#[test]
fn a_rules_clients_take_what_it_says() {
    let engine = engine();
    let rule: Rule = "sliding-window 5/15m".parse().unwrap();
    let prepare = |rule: &Rule| engine.prepare_with("login", rule, 100_000).unwrap();
    let small = prepare(&rule.clone().with_max_bytes(1_000_000).unwrap());
    let visit = |key: u64| {
        let charge = Charge {
            rule: small,
            key: &key.to_le_bytes(),
            cost: Cost::ONE,
        };
        engine
            .decide(&[charge], Mode::Check, None)
            .into_inner()
            .unwrap()
            .remaining
    };
    assert!((0..20_000).all(|key| visit(key) == 4));
    let (clients, displaced) = engine.usage(small).unwrap();
    assert!(
        (1_000_000 / 332..1_000_000 / 100).contains(&clients),
        "{clients} clients"
    );
    assert!(displaced > 0);
    assert_eq!(prepare(&rule.with_max_bytes(100_000_000).unwrap()), small);
    assert_eq!(visit(19_999), 3);
    assert!((20_000..30_000).all(|key| visit(key) == 4));
    assert!(engine.usage(small).unwrap().0 >= clients + 10_000);
}

/// Consecutive versions of the list of rules share their unchanged rules.
#[test]
fn a_changed_rule_leaves_the_others_shared() {
    let engine = engine();
    let rule = "exponential 10/1m".parse().unwrap();
    for nth in 0..3 {
        let id = engine.prepare(&format!("rule-{nth}"), &rule).unwrap();
        assert_eq!(id, RuleId(nth));
    }
    let before = engine.rules.load_full();
    assert_eq!(engine.prepare("rule-1", &rule).unwrap(), RuleId(1));
    let after = engine.rules.load_full();
    let each = before.iter().zip(&*after);
    let same: Vec<bool> = each.map(|(a, b)| Arc::ptr_eq(a, b)).collect();
    assert_eq!(same, [true, false, true]);
    assert_eq!(engine.rules().len(), 3);
}

/// Limits before and after a change, and true if the change applies to the stored states.
const CHANGES: [(&str, &str, bool); 22] = [
    (
        "recent-average 10/h half-life=1h leaky",
        "recent-average 20/h half-life=1h strict",
        true,
    ),
    (
        "recent-average 10/h half-life=1h",
        "recent-average 10/h half-life=2h",
        false,
    ),
    ("exponential 10/1h", "exponential 20/1h strict", true),
    ("exponential 10/1h", "exponential 10/2h", false),
    ("gcra 1/h burst=9", "gcra 1/h burst=20", true),
    ("gcra 1/h burst=9", "gcra 3/h burst=9", true),
    ("token-bucket 9 refill=7/h", "gcra 2/d burst=9", true),
    ("fixed-window 10/1h", "fixed-window 20/1h", true),
    ("fixed-window 10/1h", "fixed-window 10/2h", false),
    ("fixed-window 10/1s", "fixed-window 9000000/1s", true),
    ("sliding-log 10/1h", "sliding-log 20/1h strict", true),
    ("sliding-log 10/1h", "sliding-log 10/2h", false),
    ("sliding-window 10/1h", "sliding-window 20/1h", true),
    ("sliding-window 10/1h", "sliding-window 10/1h lenient", true),
    ("sliding-window 10/1h", "sliding-window 10/2h", false),
    (
        "sliding-window 10/1h",
        "sliding-window 10/1h sub-windows=7",
        false,
    ),
    ("sliding-counter 10/1h", "sliding-counter 20/1h", true),
    ("sliding-counter 10/1h", "sliding-counter 10/2h", false),
    ("sliding-counter 10/1h", "fixed-window 10/1h", false),
    ("gcra 1/h burst=9", "recent-average 1/h half-life=9h", false),
    ("sliding-log 10/1h", "sliding-window 10/1h", false),
    ("exponential 10/1h", "fixed-window 10/1h", false),
];

/// A changed limit finds the states that the former one left, or none, as a notice then says.
#[test]
fn a_changed_limit_applies_in_place_or_begins_afresh() {
    let changes = CHANGES.into_iter();
    for (old, new, is_in_place) in changes.flat_map(|(a, b, same)| [(a, b, same), (b, a, same)]) {
        let engine = manual();
        let [before, after] = [old, new].map(|text| text.parse::<Rule>().unwrap());
        let id = engine.prepare_with("rule", &before, 100).unwrap();
        let mut state = None;
        for _ in 0..5 {
            ask(&engine, &[(id, 7)], Mode::Check);
            state = before
                .limit()
                .decide(state, START, Cost::ONE, Mode::Check)
                .0;
        }
        let kept = state.and_then(|state| after.limit().carried(before.limit(), state, START));
        assert_eq!(kept.is_some(), is_in_place, "{old} to {new}");
        assert_eq!(engine.prepare_with("rule", &after, 100), Ok(id));
        let expected = after.limit().decide(kept, START, Cost::ONE, Mode::Peek).1;
        assert_eq!(
            remaining(&engine, id, 7),
            expected.remaining,
            "{old} to {new}"
        );
        let notices = engine.notices();
        let former = |notice: &Notice| match notice {
            Notice::Afresh { rule, before } => (rule.clone(), before.parse::<Rule>().unwrap()),
            other => panic!("{other}"),
        };
        let said: Vec<_> = notices.iter().map(former).collect();
        let wanted = [("rule".into(), before.limit().text().parse().unwrap())];
        assert_eq!(said, wanted[usize::from(is_in_place)..], "{old} to {new}");
        assert!(engine.notices().is_empty(), "said once");
    }
}

/// Returns the remaining quota and the wait of a client that spent `cost` under one limit, after a change to
/// another one.
fn after_a_change(old: &str, cost: u64, new: &str) -> (u64, Option<Duration>) {
    let engine = manual();
    let prepare = |text: &str| {
        engine
            .prepare_with("rule", &text.parse().unwrap(), 100)
            .unwrap()
    };
    let id = prepare(old);
    let key = 7_u64.to_le_bytes();
    let cost = Cost::from_units(cost);
    let charge = Charge {
        rule: id,
        key: &key,
        cost,
    };
    let charged = engine.decide(&[charge], Mode::Charge, None);
    charged.into_inner().unwrap();
    prepare(new);
    let decision = ask(&engine, &[(id, 7)], Mode::Peek);
    (decision.remaining, decision.retry_after.duration())
}

/// A bucket keeps the time at which it is full, at most the time that fills an empty one. A debt stays.
#[test]
fn a_faster_bucket_bounds_the_wait_and_keeps_a_debt() {
    let secs = |secs| Some(Duration::from_secs(secs));
    for (old, cost, new, expected) in [
        // Empty before and after.
        ("gcra 1/m burst=10", 10, "gcra 1/s burst=10", (0, secs(1))),
        ("gcra 1/m burst=10", 3, "gcra 1/s burst=10", (0, secs(1))),
        ("gcra 1/m burst=10", 3, "gcra 1/m burst=2", (0, secs(60))),
        // Less than empty under the new limit.
        ("gcra 1/m burst=10", 3, "gcra 2/m burst=10", (4, secs(0))),
        ("gcra 1/m burst=10", 10, "gcra 1/m burst=20", (10, secs(0))),
        ("gcra 1/m burst=10", 10, "gcra 1/h burst=10", (9, secs(0))),
        // In debt for 5 minutes beyond an empty bucket.
        ("gcra 1/m burst=10", 15, "gcra 1/s burst=10", (0, secs(891))),
    ] {
        assert_eq!(
            after_a_change(old, cost, new),
            expected,
            "{old} {cost} {new}"
        );
    }
}

/// A table keeps its size as long as it has live clients; a map of larger states may take more at once.
#[test]
fn another_capacity_of_a_table_waits_until_no_client_is_live() {
    let clock = Arc::new(ManualClock::new(START));
    let engine = MemoryEngine::with_clock(1, Arc::clone(&clock)).unwrap();
    for (name, rule, keeps) in [
        ("table", "gcra 1/h burst=5", true),
        ("map", "sliding-log 5/1h", false),
    ] {
        let rule = rule.parse().unwrap();
        let id = engine.prepare_with(name, &rule, 100).unwrap();
        ask(&engine, &[(id, 1)], Mode::Check);
        engine.prepare_with(name, &rule, 10_000).unwrap();
        let expected = Notice::Capacity {
            rule: name.into(),
            capacity: 100,
            holders: Vec::new(),
        };
        assert_eq!(engine.notices(), [expected][usize::from(!keeps)..]);
        for client in 1..10_000 {
            ask(&engine, &[(id, client)], Mode::Check);
        }
        let (clients, displaced) = engine.usage(id).unwrap();
        assert_eq!((clients < 1000, displaced > 0), (keeps, keeps), "{name}");
        engine.tidy();
        assert_eq!(engine.usage(id).unwrap(), (clients, displaced), "{name}");
        clock.advance(Duration::from_secs(5 * 3600));
        engine.tidy();
        (1..10_000).for_each(|client| assert!(ask(&engine, &[(id, client)], Mode::Check).allowed));
        assert_eq!(engine.usage(id).unwrap(), (9_999, 0), "{name}");
    }
}

type Manual = MemoryEngine<Arc<ManualClock>>;

const START: Nanos = Nanos::from_secs(1_800_000_000);

fn manual() -> Manual {
    MemoryEngine::with_clock(1, Arc::new(ManualClock::new(START))).unwrap()
}

fn ask(engine: &Manual, charges: &[(RuleId, u64)], mode: Mode) -> Decision {
    let keys: Vec<_> = charges
        .iter()
        .map(|(_, client)| client.to_le_bytes())
        .collect();
    let each = charges.iter().zip(&keys);
    let charges: Vec<_> = each
        .map(|((rule, _), key)| Charge {
            rule: *rule,
            key,
            cost: Cost::ONE,
        })
        .collect();
    engine.decide(&charges, mode, None).into_inner().unwrap()
}

fn remaining(engine: &Manual, rule: RuleId, client: u64) -> u64 {
    ask(engine, &[(rule, client)], Mode::Peek).remaining
}

/// Requests that are decided while the rules change are all counted once.
#[test]
fn requests_during_changes_are_counted_once() {
    const THREADS: u64 = 4;
    const REQUESTS: u64 = 5000;
    let quotas = ["1000000/1d", "2000000/1d"];
    let engine = manual();
    let rules = [
        "fixed-window",
        "sliding-window",
        "sliding-log",
        "sliding-counter",
    ];
    let change = |nth: usize| {
        rules.map(|name| {
            let text = format!("{name} {}", quotas[nth % 2]);
            engine
                .prepare_with(name, &text.parse().unwrap(), 100)
                .unwrap()
        })
    };
    let ids = change(0);
    thread::scope(|scope| {
        let request = || {
            for nth in 0..REQUESTS {
                let all = ids.map(|id| (id, nth % 8));
                assert!(ask(&engine, &all, Mode::Check).allowed);
            }
        };
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(request)).collect();
        for nth in 1.. {
            if workers.iter().all(|worker| worker.is_finished()) {
                break;
            }
            change(nth);
        }
    });
    change(0);
    for id in ids {
        for client in 0..8 {
            let counted = THREADS * REQUESTS / 8;
            assert_eq!(
                remaining(&engine, id, client),
                1_000_000 - counted,
                "{id:?}"
            );
        }
    }
}

/// A rule that is prepared again without a capacity keeps its capacity.
#[test]
fn preparing_again_without_a_capacity_keeps_it() {
    let engine = manual();
    let rule = "gcra 1/h burst=5".parse().unwrap();
    let id = engine.prepare_with("rule", &rule, 1000).unwrap();
    assert_eq!(engine.prepare("rule", &rule), Ok(id));
    assert_eq!(engine.rules.load().first().unwrap().capacity, 1000);
}

/// `admit_at_once` allows what `decide` allows and leaves the same states. A request that it does
/// not allow is not stored, also under a strict rule.
#[test]
fn what_is_admitted_at_once_is_what_a_check_allows() {
    for text in [
        "recent-average 1/s half-life=2s strict",
        "recent-average 1/s half-life=2s leaky",
        "exponential 3/2s",
        "gcra 1/s burst=3",
        "fixed-window 3/2s",
        "sliding-log 3/2s strict",
        "sliding-window 3/2s",
        "sliding-counter 3/2s",
    ] {
        for action in [Action::Deny, Action::Observe, Action::ShadowBan] {
            let rule: Rule = text.parse().unwrap();
            let rule = rule.with_action(action).unwrap();
            let rule = rule.with_max_cost(Cost::from_units(4)).unwrap();
            let one = engine();
            let other = engine();
            let id = one.prepare("rule", &rule).unwrap();
            other.prepare("rule", &rule).unwrap();
            let ask = |engine: &MemoryEngine<ManualClock>, charge: &Charge<'_>, mode| {
                engine
                    .decide(std::slice::from_ref(charge), mode, None)
                    .into_inner()
            };
            for (step, cost) in [1, 1, 0, 1, 2, 1, 5, 1, 1, 3, 0, 1].into_iter().enumerate() {
                let charge = Charge {
                    rule: id,
                    key: b"key",
                    cost: Cost::from_units(cost),
                };
                let peeked = ask(&other, &charge, Mode::Peek);
                let allowed = peeked.is_ok_and(|peeked| peeked.over.is_empty());
                assert_eq!(
                    one.admit_at_once(&charge),
                    allowed,
                    "{text} {action:?} {step}"
                );
                if allowed {
                    ask(&other, &charge, Mode::Check).unwrap();
                }
                let one_more = Charge {
                    cost: Cost::ONE,
                    ..charge
                };
                let left = ask(&one, &one_more, Mode::Peek);
                let right = ask(&other, &one_more, Mode::Peek);
                assert_eq!(left, right, "{text} {action:?} {step}");
                for engine in [&one, &other] {
                    engine
                        .clock
                        .at(Nanos::from_secs(1_800_000_000 + step as u64 / 3));
                }
            }
        }
    }
    let unknown = Charge {
        rule: RuleId(7),
        key: b"key",
        cost: Cost::ONE,
    };
    assert!(!engine().admit_at_once(&unknown));
}

/// The brief answer agrees with the whole decision, and both leave the same states.
#[test]
fn a_brief_answer_is_the_decision_s() {
    let actions = [
        Action::Deny,
        Action::Observe,
        Action::Quarantine,
        Action::ShadowBan,
        Action::Delay {
            max: Duration::from_millis(400),
        },
    ];
    for text in [
        "recent-average 1/s half-life=2s strict",
        "recent-average 1/s half-life=2s leaky",
        "exponential 3/2s",
        "gcra 2/s burst=3",
        "fixed-window 3/2s",
        "sliding-log 3/2s strict",
    ] {
        for action in actions {
            let rule: Rule = text.parse().unwrap();
            let Ok(rule) = rule.with_action(action) else {
                continue;
            };
            let rule = rule.with_max_cost(Cost::from_units(4)).unwrap();
            let one = manual();
            let other = manual();
            let id = one.prepare("rule", &rule).unwrap();
            other.prepare("rule", &rule).unwrap();
            for step in 0..60_u64 {
                let cost =
                    Cost::from_units([1, 1, 0, 1, 2, 1, 5, 1, 4, 3, 0, 1][step as usize % 12]);
                let brief = one.check_hashed(id, one.hash(b"key"), cost);
                let whole = other.decide_hashed(id, other.hash(b"key"), cost, Mode::Check, None);
                let whole = whole.as_ref().map(Brief::from).map_err(EngineError::clone);
                assert_eq!(brief, whole, "{text} {action:?} {step}");
                for engine in [&one, &other] {
                    engine.clock.at(START + Duration::from_millis(70 * step));
                }
            }
        }
    }
    let unknown = engine().check_hashed(RuleId(7), engine().hash(b"key"), Cost::ONE);
    assert_eq!(unknown, Err(EngineError::UnknownRule(RuleId(7))));
}

/// After the end of a window, the words of new clients are greater than those of clients that spent
/// their quota in the window before.
#[test]
fn new_clients_do_not_displace_those_over_their_limit() {
    let engine = engine();
    let rule: Rule = "sliding-counter 5/1m".parse().unwrap();
    let rule = engine.prepare_with("r", &rule, 1000).unwrap();
    let admit = |client: u64, second: u64| {
        let now = Nanos::from_secs(1_800_000_000 + second);
        let key = engine.hash(&client.to_ne_bytes());
        let decision = engine.decide_hashed(rule, key, Cost::ONE, Mode::Check, Some(now));
        decision.unwrap().allowed
    };
    for offender in 0..300 {
        while admit(offender, 0) {}
    }
    for newcomer in 1000..20_000 {
        assert!(admit(newcomer, 61));
    }
    let forgotten = (0..300).filter(|offender| admit(*offender, 61)).count();
    assert_eq!(forgotten, 0);
}
