use core::time::Duration;
use std::sync::{Barrier, mpsc};
use std::thread;

use super::prepared::BLOCK;
use super::*;
use crate::clock::ManualClock;
use crate::clock::tests::Lagging;
use crate::decision::Action;
use crate::store::Next;
use crate::store::older::lock_move;

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

/// A sweep holds the lock of a client with a larger state while it waits for a shard. A request
/// that holds that shard must not wait for the sweep, although it moves a word of the same key.
#[test]
fn a_request_under_both_kinds_of_rules_does_not_wait_for_a_sweep() {
    let engine = engine();
    let (word, larger): (Rule, Rule) = (
        "gcra 1/s burst=9".parse().unwrap(),
        "sliding-window 5/1h".parse().unwrap(),
    );
    let clients = |rule: &Rule| Arc::new(Clients::new(rule.limit(), 10, None).unwrap());
    let older = clients(&word);
    let newer = clients(&word);
    let states = clients(&larger);
    older.seal(Next {
        rule: word.clone(),
        clients: newer,
    });
    let key = engine.hash(b"alice");
    let _sweep = lock_move(&states.kept, key);
    let (send, received) = mpsc::channel();
    thread::spawn(move || {
        let part = |rule, clients| Part {
            rule,
            clients,
            key,
            cost: Cost::ONE,
        };
        let mut parts = [part(&larger, &states), part(&word, &older)];
        let now = || Nanos::from_secs(1_800_000_000);
        let _ = send.send(atomic::decide(&mut parts, Mode::Check, &now).allowed);
    });
    // Only a deadlock takes this long.
    assert_eq!(received.recv_timeout(Duration::from_secs(20)), Ok(true));
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

/// Consecutive versions of the list of rules share their unchanged blocks.
#[test]
fn a_rule_more_copies_one_block() {
    let engine = engine();
    let rule = "exponential 10/1m".parse().unwrap();
    for nth in 0..3 * BLOCK {
        let id = engine.prepare(&format!("rule-{nth}"), &rule).unwrap();
        assert_eq!(id, RuleId(nth as u32));
    }
    let before = engine.rules.load_full();
    assert_eq!(engine.prepare("rule-70", &rule).unwrap(), RuleId(70));
    let after = engine.rules.load_full();
    let same: Vec<bool> = before
        .0
        .iter()
        .zip(&after.0)
        .map(|(a, b)| Arc::ptr_eq(a, b))
        .collect();
    assert_eq!(same, [true, false, true]);
    assert_eq!(engine.rules().len(), 3 * BLOCK);
}

/// A change of only the limit touches no state and delays no request.
#[test]
fn a_changed_limit_converts_nothing() {
    for (old, new, keeps) in [
        (
            "recent-average 1/s half-life=10s",
            "recent-average 2/s half-life=10s leaky",
            true,
        ),
        (
            "recent-average 1/s half-life=10s",
            "recent-average 1/s half-life=20s",
            false,
        ),
        ("exponential 10/1m", "exponential 20/1m", true),
        ("exponential 10/1m", "exponential 10/2m", false),
        ("gcra 1/s burst=5", "gcra 1/s burst=6", false),
        ("fixed-window 10/1m", "fixed-window 20/1m", true),
        ("fixed-window 10/1m", "fixed-window 10/2m", false),
        ("sliding-log 10/1m", "sliding-log 20/1m strict", true),
        ("sliding-window 10/1m", "sliding-window 20/1m lenient", true),
        (
            "sliding-window 10/1m",
            "sliding-window 10/1m sub-windows=7",
            false,
        ),
        ("sliding-counter 10/1m", "sliding-counter 20/1m", true),
        ("sliding-counter 10/1m", "fixed-window 10/1m", false),
    ] {
        let (old, new): (Rule, Rule) = (old.parse().unwrap(), new.parse().unwrap());
        assert_eq!(
            new.limit().keeps_states_of(old.limit()),
            keeps,
            "{old} to {new}"
        );
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

const ROOM: usize = 24_000;
const CLIENTS: u64 = 64;

/// Rule changes that leave the remaining quota as it is, each version with its capacity.
const CHANGES: [(&str, [(&str, usize); 4]); 4] = [
    (
        "bucket",
        [
            ("token-bucket 1000000 refill=1/h", ROOM),
            ("token-bucket 1000000 refill=7/h", ROOM),
            ("token-bucket 1000000 refill=7/h", 2 * ROOM),
            ("token-bucket 1000000 refill=3/d", ROOM / 4),
        ],
    ),
    (
        "window",
        [
            ("fixed-window 1000000/1h", ROOM),
            ("fixed-window 1000000/1d", ROOM),
            ("fixed-window 1000000/1d", 2 * ROOM),
            ("fixed-window 1000000/7d", ROOM / 4),
        ],
    ),
    (
        "sub-windows",
        [
            ("sliding-window 1000000/1h", ROOM),
            ("sliding-window 1000000/1h sub-windows=7", ROOM),
            ("sliding-window 1000000/1d", 2 * ROOM),
            ("sliding-window 1000000/1d sub-windows=9", ROOM / 4),
        ],
    ),
    (
        "log",
        [
            ("sliding-log 1000000/1h", ROOM),
            ("sliding-log 1000000/1d", ROOM),
            ("sliding-log 1000000/1d", 2 * ROOM),
            ("sliding-log 1000000/7d", ROOM / 4),
        ],
    ),
];

fn change_all(engine: &Manual, nth: usize) -> Vec<RuleId> {
    let rules = CHANGES.map(|(name, rules)| (name, rules[nth % 4]));
    let rules = rules.map(|(name, (rule, room))| (name, rule.parse().unwrap(), room));
    let wanted = rules.each_ref().map(|(name, rule, capacity)| Preparation {
        name,
        rule,
        capacity: *capacity,
        store: None,
    });
    engine.prepare_all(&wanted).unwrap()
}

#[test]
fn a_change_keeps_every_client_once() {
    let engine = manual();
    let ids = change_all(&engine, 0);
    for (id, client) in ids
        .iter()
        .flat_map(|id| (0..CLIENTS).map(move |client| (*id, client)))
    {
        for _ in 0..=client {
            ask(&engine, &[(id, client)], Mode::Check);
        }
    }
    for nth in 1..9 {
        assert_eq!(change_all(&engine, nth), ids);
        for id in &ids {
            for client in (nth as u64 % 3..CLIENTS).step_by(3) {
                assert_eq!(
                    remaining(&engine, *id, client),
                    1_000_000 - client - 1,
                    "{nth} {id:?}"
                );
            }
        }
    }
    assert!(ids.iter().all(|id| engine.usage(*id).unwrap().1 == 0));
}

const THREADS: u64 = 4;
/// The number of requests of each thread, and of clients that send only once.
const REQUESTS: u64 = 10_000;
const COMING: u64 = 4_000;

/// The requests that one thread counted, by rule and client.
type Counted = [Vec<u64>; 4];

/// Sends a request to one rule or to all rules at once, for a new client or a recent one. Takes
/// some requests back.
fn request(engine: &Manual, ids: &[RuleId], thread: u64) -> Counted {
    let mut counted: Counted = std::array::from_fn(|_| vec![0; COMING as usize]);
    let mut random = thread;
    for nth in 0..REQUESTS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let client = (nth * COMING / REQUESTS).saturating_sub(random >> 62);
        let all: Vec<_> = ids.iter().map(|id| (*id, client)).collect();
        let asked = all
            .get((random >> 40) as usize % 5..)
            .filter(|some| !some.is_empty())
            .map_or(&all[..], |some| &some[..1]);
        let decision = ask(engine, asked, Mode::Check);
        assert!(decision.allowed, "{asked:?} {decision:?}");
        assert!(
            ask(engine, asked, Mode::Peek).remaining < 1_000_000,
            "forgotten"
        );
        let takes_back = random >> 50 & 7 == 0;
        for (rule, _) in asked {
            if takes_back {
                let key = client.to_le_bytes();
                let charge = Charge {
                    rule: *rule,
                    key: &key,
                    cost: Cost::ONE,
                };
                engine
                    .refund(&charge, Some(START), None)
                    .into_inner()
                    .unwrap();
            }
            let place = ids.iter().position(|id| id == rule).unwrap();
            counted[place][client as usize] += u64::from(!takes_back);
        }
    }
    counted
}

/// The remaining quota shows how many requests were counted while the rules changed: each request
/// exactly once.
#[test]
fn requests_during_changes_are_counted_once() {
    let episodes = if std::env::var_os("EARRRL_LONG").is_some() {
        200
    } else {
        4
    };
    for episode in 0..episodes {
        let engine = manual();
        let ids = change_all(&engine, 0);
        let counted: Vec<_> = thread::scope(|scope| {
            let start = |nth| {
                scope.spawn({
                    let engine = &engine;
                    let ids = &ids;
                    move || request(engine, ids, episode * THREADS + nth)
                })
            };
            let workers: Vec<_> = (0..THREADS).map(start).collect();
            for nth in 1.. {
                if workers.iter().all(|worker| worker.is_finished()) {
                    break;
                }
                change_all(&engine, nth);
            }
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect()
        });
        for (place, id) in ids.iter().enumerate() {
            for client in 0..COMING {
                let sum: u64 = counted.iter().map(|of| of[place][client as usize]).sum();
                assert_eq!(
                    1_000_000 - remaining(&engine, *id, client),
                    sum,
                    "{id:?} {client}"
                );
            }
        }
    }
}

/// A request moves a client in two steps: out of the older store, then into the new one. The rule must have its
/// older store until the second step is done. Otherwise, another request would find the client in no store, and
/// take it for a new client.
#[test]
fn a_change_ends_after_the_moves_that_have_begun() {
    for text in ["fixed-window 9/1h", "sliding-log 9/1h"] {
        let engine = Arc::new(manual());
        let rule = engine
            .prepare_with("rule", &text.parse().unwrap(), 100)
            .unwrap();
        ask(&engine, &[(rule, 1)], Mode::Check);
        let other = engine.hash(&2_u64.to_le_bytes());
        let moving = lock_move(&engine.rules.load().get(0).unwrap().clients.kept, other);
        let (send, received) = mpsc::channel();
        let change = thread::spawn({
            let engine = Arc::clone(&engine);
            move || {
                engine
                    .prepare_with("rule", &"fixed-window 9/2h".parse().unwrap(), 100)
                    .unwrap();
                engine
                    .prepare_with("rule", &"sliding-log 9/2h".parse().unwrap(), 200)
                    .unwrap();
                engine
                    .prepare_with("rule", &"sliding-log 9/1h".parse().unwrap(), 100)
                    .unwrap();
                let _ = send.send(());
            }
        });
        assert!(
            received.recv_timeout(Duration::from_millis(200)).is_err(),
            "{text}"
        );
        drop(moving);
        assert_eq!(received.recv_timeout(Duration::from_secs(60)), Ok(()));
        change.join().unwrap();
    }
}

/// Requests under rules of words and of larger states, while clients of both move and are swept. A
/// request that waits for a sweep while the sweep waits for the request would never end.
#[test]
fn requests_under_both_kinds_of_rules_end_during_sweeps() {
    let engine = Arc::new(manual());
    let ids = change_all(&engine, 0);
    let (send, received) = mpsc::channel();
    let requests = |nth: u64| {
        let engine = Arc::clone(&engine);
        let ids = ids.clone();
        let send = send.clone();
        move || {
            for client in 0..REQUESTS {
                let client = (client + nth) % 8;
                let all: Vec<_> = ids.iter().map(|id| (*id, client)).collect();
                assert!(ask(&engine, &all, Mode::Check).allowed);
            }
            let _ = send.send(());
        }
    };
    let workers: Vec<_> = (0..THREADS)
        .map(|nth| thread::spawn(requests(nth)))
        .collect();
    let sweeper = thread::spawn({
        let engine = Arc::clone(&engine);
        move || {
            for nth in (1..).take_while(|_| workers.iter().any(|worker| !worker.is_finished())) {
                change_all(&engine, nth);
                engine.tidy();
            }
        }
    });
    for _ in 0..THREADS {
        // Only a deadlock takes this long.
        assert_eq!(received.recv_timeout(Duration::from_secs(60)), Ok(()));
    }
    sweeper.join().unwrap();
    let counted = 1_000_000 - THREADS * REQUESTS / 8;
    for (id, client) in ids
        .iter()
        .flat_map(|id| (0..8).map(move |client| (*id, client)))
    {
        assert_eq!(remaining(&engine, id, client), counted, "{id:?} {client}");
    }
}

#[test]
fn another_capacity_takes_effect() {
    for rule in ["gcra 1/h burst=5", "sliding-log 5/1h"] {
        let engine = manual();
        let rule = rule.parse().unwrap();
        let id = engine.prepare_with("rule", &rule, 100).unwrap();
        for client in 0..100 {
            ask(&engine, &[(id, client)], Mode::Check);
        }
        engine.prepare_with("rule", &rule, 10_000).unwrap();
        for client in 0..10_000 {
            ask(&engine, &[(id, client)], Mode::Check);
        }
        let all_there =
            (0..10_000).all(|client| remaining(&engine, id, client) == 4 - u64::from(client < 100));
        assert!(all_there, "{rule}");
        assert_eq!(engine.usage(id), Some((10_000, 0)), "{rule}");
        engine.prepare_with("rule", &rule, 100).unwrap();
        assert_eq!(remaining(&engine, id, 9_999), 4, "{rule}");
    }
}

/// A client whose place in the larger table is unknown stays in the smaller one until its next
/// request or until it is idle.
#[test]
fn a_table_that_was_replaced_is_given_back_after_its_last_client() {
    let clock = Arc::new(ManualClock::new(START));
    let rule = "gcra 1/m burst=5".parse().unwrap();
    let engine = MemoryEngine::with_clock(1, Arc::clone(&clock)).unwrap();
    let id = engine.prepare_with("rule", &rule, 100).unwrap();
    for client in 0..3 {
        ask(&engine, &[(id, client)], Mode::Check);
    }
    engine.prepare_with("rule", &rule, 1000).unwrap();
    assert!(!engine.tidy());
    (0..2).for_each(|client| assert_eq!(ask(&engine, &[(id, client)], Mode::Check).remaining, 3));
    assert!(!engine.tidy());
    assert_eq!(engine.usage(id), Some((3, 0)));
    clock.advance(std::time::Duration::from_secs(60));
    assert!(engine.tidy());
    assert_eq!(engine.usage(id), Some((2, 0)));
    assert!(lock(&engine.given_up).is_empty());
}

/// A store without clients is referred to by an older one that still has clients. No change waits for it, and
/// both are freed after the last client.
#[test]
fn changes_do_not_wait_for_the_clients_of_the_oldest_table() {
    let clock = Arc::new(ManualClock::new(START));
    let rule = "gcra 1/m burst=5".parse().unwrap();
    let engine = MemoryEngine::with_clock(1, Arc::clone(&clock)).unwrap();
    let id = engine.prepare_with("rule", &rule, 100).unwrap();
    ask(&engine, &[(id, 0)], Mode::Check);
    let stores = [1000, 10_000, 100_000].map(|capacity| {
        engine.prepare_with("rule", &rule, capacity).unwrap();
        assert!(lock(&engine.given_up).is_empty(), "{capacity}");
        Arc::downgrade(&engine.rules.load().get(0).unwrap().clients)
    });
    let alive = || stores.each_ref().map(|store| store.upgrade().is_some());
    assert_eq!((engine.tidy(), alive()), (false, [true, true, true]));
    assert_eq!(ask(&engine, &[(id, 0)], Mode::Check).remaining, 3);
    assert_eq!((engine.tidy(), alive()), (true, [false, false, true]));
    assert!(lock(&engine.given_up).is_empty());
}

/// A rule that is prepared again without a capacity keeps its capacity.
#[test]
fn preparing_again_without_a_capacity_keeps_it() {
    let engine = manual();
    let rule = "gcra 1/h burst=5".parse().unwrap();
    let id = engine.prepare_with("rule", &rule, 1000).unwrap();
    assert_eq!(engine.prepare("rule", &rule), Ok(id));
    assert_eq!(engine.rules.load().get(0).unwrap().capacity, 1000);
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

#[test]
fn a_change_keeps_the_number_of_displaced_clients() {
    let engine = manual();
    let change = |text: &str| {
        engine
            .prepare_with("rule", &text.parse().unwrap(), 1)
            .unwrap()
    };
    let id = change("gcra 1/h burst=5");
    for client in 0..1000 {
        ask(&engine, &[(id, client)], Mode::Check);
    }
    let before = engine.usage(id).unwrap().1;
    change("gcra 2/h burst=5");
    assert!(before > 0 && engine.usage(id).unwrap().1 >= before);
}
