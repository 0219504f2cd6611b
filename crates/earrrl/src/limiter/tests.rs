use std::collections::HashMap;
use std::string::String;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::algorithm::State;
use crate::clock::tests::Lagging;
use crate::clock::{Clock, ManualClock};
use crate::store::table::TableError;
use crate::{Action, Decision, OnExpiry, Outcome, Policy, Wait};

const RULES: [&str; 8] = [
    "recent-average 2/s half-life=5s strict",
    "recent-average 2/s half-life=5s leaky",
    "gcra 2/s burst=7",
    "exponential 20/10s leaky",
    "fixed-window 20/10s",
    "sliding-log 20/10s",
    "sliding-window 20/10s",
    "sliding-counter 20/10s",
];

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

fn at(millis: u64) -> Nanos {
    Nanos::from_secs(1_800_000_000) + Duration::from_millis(millis)
}

type Manual<K> = (Limiter<K, Arc<ManualClock>>, Arc<ManualClock>);

fn manual(text: &str) -> Manual<str> {
    manual_for(text)
}

fn manual_for<K: ?Sized>(text: &str) -> Manual<K> {
    let clock = Arc::new(ManualClock::new(at(0)));
    let limiter = Limiter::builder(rule(text))
        .capacity(1000)
        .clock(clock.clone());
    (limiter.build().unwrap(), clock)
}

fn queue(text: &str) -> (Queue<str, Arc<ManualClock>>, Arc<ManualClock>) {
    let (limiter, clock) = manual(text);
    (Queue::new(limiter).unwrap(), clock)
}

fn allowed_of(limiter: &Limiter<str, Arc<ManualClock>>, key: &str, requests: usize) -> usize {
    (0..requests)
        .filter(|_| limiter.check(key).is_allowed())
        .count()
}

proptest! {
    /// Compares every field of every decision of the limiter with the pure functions over a map.
    #[test]
    fn it_decides_as_the_pure_functions_do(
        requests in prop::collection::vec((0..4_u64, 0..4000_u64, 0..3_u64), 1..60),
    ) {
        for text in RULES {
            let (limiter, rule) = (manual_for::<u64>(text).0, rule(text));
            let mut states: HashMap<u64, State> = HashMap::new();
            let mut now = at(0);
            for (key, wait, cost) in &requests {
                now = now + Duration::from_millis(*wait);
                let cost = Cost::from_units(*cost);
                let (after, expected) =
                    rule.limit().decide(states.remove(key), now, cost, Mode::Check);
                states.extend(after.map(|state| (*key, state)));
                let verdict = limiter.check_at(key, cost, now).unwrap();
                prop_assert_eq!(verdict.is_allowed(), expected.allowed);
                prop_assert_eq!(verdict.decision(), expected, "{}", text);
            }
        }
    }
}

#[test]
fn what_cannot_be_built_is_refused() {
    let error = |text: &str, capacity| {
        let built = Limiter::<str>::builder(rule(text))
            .capacity(capacity)
            .build();
        built.map(drop).unwrap_err()
    };
    for text in RULES {
        assert_eq!(
            error(text, 0),
            BuildError::Table(TableError::NoCapacity),
            "{text}"
        );
        let capacity = usize::MAX;
        assert_eq!(
            error(text, capacity),
            BuildError::Table(TableError::TooLarge { capacity })
        );
    }
    let half = rule("gcra 1/s burst=5")
        .with_max_cost("0.5".parse().unwrap())
        .unwrap();
    assert!(matches!(
        Limiter::<str>::builder(half).build(),
        Err(BuildError::Rule(_))
    ));
}

#[test]
fn a_cost_above_max_cost_is_an_error_and_stores_nothing() {
    let cheap = rule("gcra 1/s burst=5")
        .with_max_cost(Cost::from_units(2))
        .unwrap();
    let limiter = Limiter::<str>::builder(cheap).build().unwrap();
    assert!(limiter.check_cost("k", Cost::from_units(3)).is_err());
    assert!(limiter.peek("k", Cost::from_units(3)).is_err());
    assert_eq!(limiter.peek("k", Cost::ONE).unwrap().remaining(), 5);
}

proptest! {
    /// Costs of which the sums of some fit a word and the sums of others do not.
    #[test]
    fn counts_that_fit_no_word_are_rounded_to_the_deny_side(
        steps in prop::collection::vec((0..400_u64, 0..6_usize), 1..80),
    ) {
        let costs = ["1", "2.5", "0.000000001", "0.0000123", "1000000", "40000000000"];
        for text in ["fixed-window 5/1s", "sliding-counter 5/1s", "sliding-counter 7.5/100ms strict"] {
            let (limiter, clock) = manual(text);
            let (limit, mut exact, mut is_whole) = (*limiter.rule().limit(), None, true);
            for (millis, nth) in &steps {
                clock.advance(Duration::from_millis(*millis));
                let cost: Cost = costs[*nth].parse().unwrap();
                is_whole &= *nth < 2;
                let verdict = limiter.check_cost("k", cost).unwrap();
                let (_, expected) = limit.decide(exact.clone(), clock.now(), cost, Mode::Check);
                prop_assert!(expected.allowed || !verdict.is_allowed(), "{text}: {cost}");
                prop_assert!(!is_whole || verdict.is_allowed() == expected.allowed, "{text}: {cost}");
                let is_stored = verdict.is_allowed() || limit.policy() == Policy::Strict;
                let stored = if is_stored { Mode::Charge } else { Mode::Peek };
                exact = limit.decide(exact, clock.now(), cost, stored).0;
                let remaining = limit.decide(exact.clone(), clock.now(), cost, Mode::Peek).1.remaining;
                prop_assert!(verdict.remaining() <= remaining, "{text}: {cost}");
            }
        }
    }
}

/// After the end of a window, the words of new clients are greater than those of clients that spent
/// their quota in the window before.
#[test]
fn new_clients_do_not_displace_those_over_their_limit() {
    let (limiter, clock) = manual_for::<u64>("sliding-counter 5/1m");
    for offender in 0..300 {
        while limiter.check(&offender).is_allowed() {}
    }
    clock.advance(Duration::from_secs(61));
    for newcomer in 1000..20_000 {
        assert!(limiter.check(&newcomer).is_allowed());
    }
    assert_eq!(
        (0..300)
            .filter(|offender| limiter.check(offender).is_allowed())
            .count(),
        0
    );
}

#[test]
fn clients_of_ended_windows_do_not_count_as_displaced() {
    let (limiter, clock) = manual_for::<u64>("fixed-window 5/1m");
    (0..1000).for_each(|client| assert!(limiter.check(&client).is_allowed()));
    let before = limiter.displaced();
    clock.advance(Duration::from_secs(61));
    (1000..1700).for_each(|client| assert!(limiter.check(&client).is_allowed()));
    assert_eq!(limiter.displaced(), before);
}

#[test]
fn a_clear_forgets_all_clients() {
    for text in RULES {
        let (limiter, _) = manual_for::<u64>(text);
        for client in 0..100 {
            let _ = limiter.charge(&client, Cost::from_units(50)).unwrap();
        }
        assert!(!limiter.check(&7).is_allowed(), "{text}");
        assert_eq!(limiter.clear(), 100, "{text}");
        assert_eq!((limiter.len(), limiter.clear()), (0, 0), "{text}");
        assert!(
            (0..100).all(|client| limiter.check(&client).is_allowed()),
            "{text}"
        );
    }
}

#[test]
fn a_peek_stores_nothing_and_a_reset_forgets() {
    for text in RULES {
        let (limiter, _) = manual(text);
        let first = limiter.peek("k", Cost::ONE).unwrap().decision();
        assert_eq!(
            limiter.peek("k", Cost::ONE).unwrap().decision(),
            first,
            "{text}"
        );
        assert!(limiter.is_empty(), "{text}");
        let whole = allowed_of(&limiter, "k", 100);
        assert!(
            (1..100).contains(&whole) && !limiter.check("k").is_allowed(),
            "{text}"
        );
        limiter.reset("k");
        assert_eq!(allowed_of(&limiter, "k", 100), whole, "{text}");
        assert_eq!((limiter.len(), limiter.displaced()), (1, 0), "{text}");
    }
}

#[test]
fn a_refund_gives_back_what_was_charged() {
    for text in RULES {
        let (limiter, clock) = manual(text);
        let before = limiter.peek("k", Cost::ONE).unwrap().remaining();
        let charged_at = limiter
            .check_cost("k", Cost::from_units(3))
            .unwrap()
            .decided_at();
        clock.advance(Duration::from_millis(1));
        limiter.refund("k", Cost::from_units(3), Some(charged_at));
        let after = limiter.peek("k", Cost::ONE).unwrap().remaining();
        assert!(before - after <= 1, "{text}: {before} {after}");
    }
}

#[test]
fn a_batch_decides_as_one_by_one() {
    for text in RULES {
        let one = manual_for::<u64>(text).0;
        let many = manual_for::<u64>(text).0;
        let keys: Vec<u64> = (0..1000).map(|nth| nth * nth % 37).collect();
        let batch: Vec<Decision> = many.check_batch(&keys).map(|v| v.decision()).collect();
        let single: Vec<Decision> = keys.iter().map(|key| one.check(key).decision()).collect();
        assert_eq!(batch, single, "{text}");
        let admitting = manual_for::<u64>(text).0;
        let admitted: Vec<bool> = admitting.admit_batch(&keys).collect();
        let allowed: Vec<bool> = single.iter().map(|decision| decision.allowed).collect();
        assert_eq!(admitted, allowed, "{text}");
    }
}

#[test]
fn sixteen_requests_are_admitted_when_the_first_answer_is_read() {
    let (limiter, _clock) = manual("gcra 1/s burst=17");
    let mut batch = limiter.admit_batch(["k"; 18]);
    assert_eq!(batch.next(), Some(true));
    assert!(limiter.check("k").is_allowed() && !limiter.check("k").is_allowed());
    assert_eq!(batch.collect::<Vec<_>>()[14..], [true, false, false]);
}

/// A request of a batch is never judged earlier than a request that was decided before it.
#[test]
fn a_batch_is_decided_as_its_verdicts_are_read() {
    let (limiter, clock) = manual("gcra 1/s burst=2");
    let mut batch = limiter.check_batch(["k", "k"]);
    assert!(batch.next().is_some_and(|verdict| verdict.is_allowed()));
    assert!(limiter.check("k").is_allowed() && !limiter.check("k").is_allowed());
    clock.advance(Duration::from_secs(1));
    let last = batch.next().unwrap();
    assert!(last.is_allowed() && last.decided_at() == clock.now());
    assert!(batch.next().is_none());
}

#[test]
fn nothing_prints_the_key_of_the_hash() {
    let hasher = crate::store::table::KeyHasher::random().unwrap();
    let builder = Limiter::<str>::builder(rule("gcra 1/s burst=1")).hasher(hasher);
    assert_eq!(std::format!("{hasher:?}"), "KeyHasher { .. }");
    assert!(!std::format!("{builder:?} {:?}", manual("gcra 1/s burst=1").0).contains("hasher"));
}

#[test]
fn a_client_is_looked_up_by_what_its_key_borrows_as() {
    let limiter = manual_for::<String>("gcra 1/d burst=2").0;
    assert!(limiter.check("alice").is_allowed());
    assert!(limiter.check(&String::from("alice")).is_allowed());
    assert!(!limiter.check("alice").is_allowed());
}

#[test]
fn an_earlier_instant_counts_as_the_latest_used() {
    let (limiter, clock) = manual("gcra 1/s burst=1");
    let check = |millis| {
        limiter
            .check_at("k", Cost::ONE, at(millis))
            .unwrap()
            .decided_at()
    };
    assert_eq!(
        (check(5000), check(2000), check(6000)),
        (at(5000), at(5000), at(6000))
    );
    assert_eq!(limiter.check("k").decided_at(), at(6000));
    clock.set(at(9000));
    assert_eq!(limiter.check("k").decided_at(), at(9000));
    assert_eq!(check(7000), at(9000));
}

/// A replay's instants are long past: nothing beside `check_at` may move the limiter to today.
#[test]
fn whatever_takes_an_instant_or_decides_nothing_keeps_a_replay_in_its_time() {
    let (limiter, clock) = manual("fixed-window 1/1h");
    clock.set(Nanos::from_secs(1_800_000_000));
    let mut allowed = 0;
    for nth in 0..10 {
        let now = at(1000 * nth);
        let first = limiter.peek_at("k", Cost::ONE, now).unwrap();
        assert_eq!((first.decided_at(), first.is_allowed()), (now, nth == 0));
        let checked = limiter.check_at("k", Cost::ONE, now).unwrap();
        allowed += u32::from(checked.is_allowed());
        let charged = limiter.charge_at("k", Cost::ONE, now).unwrap();
        limiter.refund_at("k", Cost::ONE, Some(charged.decided_at()), now);
        limiter.reset("other");
        assert!(limiter.state("k").is_some());
        assert_eq!(limiter.len(), 1);
    }
    assert_eq!(allowed, 1);
}

#[test]
fn a_changed_limit_keeps_histories_and_another_algorithm_begins_anew() {
    let (mut limiter, _) = manual("gcra 1/s burst=10");
    assert_eq!(allowed_of(&limiter, "k", 4), 4);
    // The bucket is full in four seconds, as before.
    limiter.change(rule("gcra 2/s burst=10")).unwrap();
    assert_eq!(limiter.peek("k", Cost::ONE).unwrap().remaining(), 2);
    limiter.change(rule("fixed-window 10/1m")).unwrap();
    assert_eq!(limiter.peek("k", Cost::ONE).unwrap().remaining(), 10);
    assert_eq!(allowed_of(&limiter, "k", 4), 4);
    limiter.change(rule("fixed-window 8/1m")).unwrap();
    assert_eq!(limiter.peek("k", Cost::ONE).unwrap().remaining(), 4);
    limiter.change(rule("sliding-log 8/1m")).unwrap();
    assert_eq!(limiter.peek("k", Cost::ONE).unwrap().remaining(), 8);
}

#[test]
fn actions_change_the_answer_and_not_the_state() {
    for (action, outcome) in [
        (Action::Observe, Outcome::Observe),
        (Action::Quarantine, Outcome::Quarantine),
        (Action::ShadowBan, Outcome::ShadowBan),
        (
            Action::Delay {
                max: Duration::from_secs(1),
            },
            Outcome::Delay,
        ),
        (Action::Deny, Outcome::Deny),
    ] {
        let rule = rule("gcra 1/s burst=1").with_action(action).unwrap();
        let clock = ManualClock::new(at(0));
        let limiter = Limiter::<str>::builder(rule).clock(clock).build().unwrap();
        assert_eq!(limiter.check("k").outcome(), Outcome::Allow);
        assert_eq!(limiter.check("k").outcome(), outcome);
        assert_eq!(
            limiter.peek("k", Cost::ONE).unwrap().is_allowed(),
            action != Action::Deny && !matches!(action, Action::Delay { .. })
        );
    }
}

/// All threads send at the same instant. Together they are allowed exactly as much as one thread
/// would be.
#[test]
fn threads_together_are_allowed_what_one_is() {
    for text in RULES {
        let alone = allowed_of(&manual(text).0, "k", 400);
        for threads in [2, 8] {
            let (limiter, _) = manual(text);
            let allowed = AtomicUsize::new(0);
            let start = Barrier::new(threads);
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        start.wait();
                        allowed.fetch_add(allowed_of(&limiter, "k", 400 / threads), Relaxed);
                    });
                }
            });
            assert_eq!(allowed.into_inner(), alone, "{text}, {threads} threads");
        }
    }
}

#[test]
fn a_limiter_without_keys_has_one_client() {
    let (limiter, clock) = manual_for::<()>("fixed-window 2/1m");
    let expected = [true, true, false];
    assert_eq!(expected.map(|_| limiter.check_any().is_allowed()), expected);
    assert_eq!(limiter.len(), 1);
    clock.advance(Duration::from_secs(60));
    assert!(limiter.check_any().is_allowed());
}

#[test]
fn turns_come_in_the_order_of_arrival() {
    let (queue, clock) = queue("gcra 2/s burst=1");
    let take = || queue.turn("k", Cost::ONE, Patience::default()).unwrap();
    let waits: Vec<Duration> = (0..4)
        .map(|_| {
            let turn = take();
            let wait = turn.wait();
            turn.keep();
            wait
        })
        .collect();
    assert_eq!(waits, [0, 500, 1000, 1500].map(Duration::from_millis));
    clock.advance(Duration::from_millis(1750));
    assert_eq!(take().wait(), Duration::from_millis(250));
    assert_eq!(
        take().wait(),
        Duration::from_millis(250),
        "the last one was dropped"
    );
}

/// Callers that give up leave a gap, and never a turn that another caller has as well.
#[test]
fn no_two_callers_have_one_turn_whoever_gives_up() {
    for seed in 0..200 {
        let (queue, clock) = queue("gcra 10/s burst=1");
        let mut random = crate::random::Random::new(seed);
        let mut waiting = Vec::new();
        let mut turns = Vec::new();
        for _ in 0..40 {
            clock.advance(Duration::from_millis(random.below(150)));
            let now = clock.now();
            while let Some(due) = waiting.iter().position(|(at, _)| *at <= now) {
                let (at, turn): (Nanos, Turn<'_, _>) = waiting.remove(due);
                turns.push(at);
                turn.keep();
            }
            if random.below(3) == 0 && !waiting.is_empty() {
                drop(waiting.remove(random.below(waiting.len() as u64) as usize));
            } else {
                let turn = queue.turn("k", Cost::ONE, Patience::default());
                let turn = turn.unwrap();
                waiting.push((now + turn.wait(), turn));
            }
        }
        turns.sort();
        for pair in turns.windows(2) {
            let apart = pair[1].get() - pair[0].get();
            assert!(apart >= 99_999_999, "seed {seed}: {apart} ns apart");
        }
    }
}

#[test]
fn the_queue_is_bounded_and_impossible_turns_are_refused() {
    let (queue, _) = queue("gcra 1/s burst=2");
    let patience = Patience::default().max_wait(Duration::from_secs(3));
    let kept = (0..100)
        .map_while(|_| queue.turn("k", Cost::ONE, patience).ok())
        .map(Turn::keep)
        .count();
    assert_eq!(kept, 2 + 3);
    let refused = |cost| {
        queue
            .turn("k", Cost::from_units(cost), patience)
            .unwrap_err()
    };
    assert_eq!(
        refused(1),
        TurnError::TooLong(Wait::For(Duration::from_secs(4)))
    );
    assert_eq!(refused(3), TurnError::TooLong(Wait::Never));
}

#[test]
fn only_buckets_have_turns() {
    for text in RULES {
        let queue = Limiter::<str>::builder(rule(text)).build_queue();
        assert_eq!(queue.is_ok(), text.starts_with("gcra"), "{text}");
    }
}

#[test]
fn jitter_only_ever_adds() {
    let (queue, _) = queue("gcra 1/s burst=1");
    queue
        .turn("k", Cost::ONE, Patience::default())
        .unwrap()
        .keep();
    let patience = Patience::default().jitter(Duration::from_millis(100));
    let waits: Vec<Duration> = (0..50)
        .map(|_| queue.turn("k", Cost::ONE, patience).unwrap().wait())
        .collect();
    assert!(
        waits
            .iter()
            .all(|wait| (1000..=1100).contains(&wait.as_millis())),
        "{waits:?}"
    );
    assert!(waits.iter().any(|wait| *wait != waits[0]));
}

#[test]
fn waiting_sleeps_once_and_giving_up_refunds() {
    let (queue, _) = queue("gcra 1/s burst=1");
    let slept = std::sync::Mutex::new(vec![]);
    let sleep = |wait: Duration| {
        slept.lock().unwrap().push(wait);
        core::future::ready(())
    };
    let turn = || queue.until_ready_with("k", Cost::ONE, Patience::default(), sleep);
    let poll = |future: &mut core::pin::Pin<Box<dyn Future<Output = Result<(), TurnError>>>>| {
        future.as_mut().poll(&mut core::task::Context::from_waker(
            core::task::Waker::noop(),
        ))
    };
    assert!(poll(&mut (Box::pin(turn()) as _)).is_ready());
    assert!(poll(&mut (Box::pin(turn()) as _)).is_ready());
    assert_eq!(*slept.lock().unwrap(), [Duration::from_secs(1)]);
    let never = |_| core::future::pending::<()>();
    let mut waiting: core::pin::Pin<Box<dyn Future<Output = Result<(), TurnError>>>> =
        Box::pin(queue.until_ready_with("k", Cost::ONE, Patience::default(), never));
    assert!(poll(&mut waiting).is_pending());
    let next = || {
        queue
            .turn("k", Cost::ONE, Patience::default())
            .unwrap()
            .wait()
    };
    assert_eq!(next(), Duration::from_secs(3));
    drop(waiting);
    assert_eq!(next(), Duration::from_secs(2));
}

/// A change to another algorithm applies the new rule's bound on memory.
#[test]
fn a_changed_rule_brings_its_bound() {
    let rule: Rule = "gcra 1/s burst=5".parse().unwrap();
    let mut limiter: Limiter<u64> = Limiter::builder(rule).capacity(100_000).build().unwrap();
    let rule: Rule = "sliding-window 5/15m".parse().unwrap();
    limiter
        .change(rule.with_max_bytes(1_000_000).unwrap())
        .unwrap();
    let clients: u64 = 20_000;
    assert!((0..clients).all(|key| limiter.check(&key).is_allowed()));
    assert!(limiter.len() < 10_000, "{}", limiter.len());
}

/// The clock's last reading is used only if the present instant would give the same verdict.
#[test]
fn a_denied_request_that_may_be_allowed_by_now_is_judged_at_the_present_instant() {
    for text in [
        "gcra 1/1h burst=2",
        "recent-average 0.001/s half-life=1m leaky",
    ] {
        let clock = Arc::new(Lagging::default());
        clock.0.set(Nanos::from_secs(1_000_000));
        let limiter: Limiter<u64, _> = Limiter::builder(rule(text))
            .clock(Arc::clone(&clock))
            .build()
            .unwrap();
        let allowed = (0..100).filter(|_| limiter.check(&7).is_allowed()).count();
        assert!((1..=2).contains(&allowed), "{text}: {allowed}");
        let denied = limiter.check(&7);
        assert!(
            denied.decided_at() < clock.now(),
            "denied by the last reading"
        );
        let allowed_at = denied.decided_at() + denied.retry_after().duration().unwrap();
        clock.0.set(Nanos::new(allowed_at.get() - 1));
        let last = limiter.check(&7);
        assert!(!last.is_allowed(), "{text}");
        assert_eq!(last.decided_at(), clock.now());
        assert_eq!(
            last.retry_after().duration(),
            Some(Duration::from_nanos(1)),
            "{text}"
        );
        clock.0.advance(Duration::from_nanos(1));
        assert!(limiter.check(&7).is_allowed(), "{text}");
    }
}

/// A thread in a loop reuses a reading of the clock, but never one from before another thread's
/// request.
#[test]
fn a_request_is_not_judged_earlier_than_one_that_has_returned() {
    let limiter: Limiter<u64> = Limiter::builder(rule("gcra 1000/s burst=1000000"))
        .build()
        .unwrap();
    let turn = AtomicUsize::new(0);
    let last = AtomicU64::new(0);
    // A thread that sleeps would come too late to find a reading that may be used again.
    let wait = |until| {
        while turn.load(SeqCst) != until {
            thread::yield_now();
        }
    };
    let other = || {
        for round in 0..1000 {
            wait(2 * round + 1);
            let instant = match round % 2 {
                0 => limiter.check(&7).decided_at(),
                _ => limiter.clock.now(),
            };
            last.store(instant.get(), SeqCst);
            turn.store(2 * round + 2, SeqCst);
        }
    };
    let mut earlier = 0;
    thread::scope(|scope| {
        scope.spawn(other);
        for round in 0..1000 {
            let _ = (0..100).filter(|_| limiter.check(&7).is_allowed()).count();
            turn.store(2 * round + 1, SeqCst);
            wait(2 * round + 2);
            let after = limiter.check(&7).decided_at();
            earlier += usize::from(after.get() < last.load(SeqCst));
        }
    });
    assert_eq!(earlier, 0);
}

/// The stored instant of a request is never later than the request, and at most a 128th of the time
/// in which the rule forgets earlier.
#[test]
fn what_is_stored_lags_behind_by_little() {
    let rule = |text: &str| -> Rule { text.parse().unwrap() };
    for (text, price, lag) in [
        ("gcra 1000/s burst=1", 1_000_000, 1_000_000 / 128),
        ("gcra 10/s burst=1", 100_000_000, 100_000_000 / 128),
        ("gcra 1/s burst=10", 1_000_000_000, 4_000_000),
    ] {
        let clock = Arc::new(Lagging::default());
        clock.0.set(Nanos::from_secs(1_000_000));
        let limiter: Limiter<u64, _> = Limiter::builder(rule(text))
            .clock(Arc::clone(&clock))
            .build()
            .unwrap();
        assert!(limiter.check(&7).is_allowed());
        clock.0.advance(Duration::from_secs(3600));
        let reset = limiter.check(&7).reset_after();
        let short = Duration::from_nanos(price).saturating_sub(reset);
        assert!(short <= Duration::from_nanos(lag + 1), "{text}: {short:?}");
    }
}

#[test]
fn a_changed_rule_brings_its_lag() {
    let clock = Arc::new(Lagging::default());
    clock.0.set(Nanos::from_secs(1_000_000));
    let mut limiter: Limiter<u64, _> = Limiter::builder(rule("gcra 1/h burst=9"))
        .clock(Arc::clone(&clock))
        .build()
        .unwrap();
    // A bucket that fills faster may be empty, so each turn has a client of its own.
    let mut client = 7;
    let mut lag = || {
        client += 1;
        let _ = limiter.check(&client);
        let lag = clock.now().since(limiter.check(&client).decided_at());
        limiter.change(rule("gcra 1000/s burst=9")).unwrap();
        lag
    };
    assert_eq!(
        [lag(), lag()],
        [4_000_000, 9_000_000 / 128].map(Duration::from_nanos)
    );
}

/// A hold that is dropped behaves as an expired reservation.
#[test]
fn a_dropped_hold_keeps_or_releases_its_estimate() {
    for (on_expiry, left) in [(OnExpiry::Keep, 40), (OnExpiry::Release, 100)] {
        for text in ["token-bucket 100 refill=1/d", "sliding-log 100/1d"] {
            let rule: Rule = text.parse().unwrap();
            let rule = rule.with_on_expiry(on_expiry);
            let clock = ManualClock::new(Nanos::from_secs(1_800_000_000));
            let limiter = Limiter::<str>::builder(rule).clock(clock).build().unwrap();
            let remaining = || limiter.peek("alice", Cost::ONE).unwrap().remaining();
            drop(limiter.hold("alice", Cost::from_units(60)).unwrap());
            assert_eq!(remaining(), left, "{text}");
            let hold = limiter.hold("alice", Cost::from_units(30)).unwrap();
            assert_eq!(
                (hold.granted(), remaining()),
                (Cost::from_units(30), left - 30)
            );
            hold.commit(Cost::from_units(35));
            assert_eq!(remaining(), left - 35, "{text}");
            limiter
                .hold("alice", Cost::from_units(5))
                .unwrap()
                .release();
            assert_eq!(remaining(), left - 35, "{text}");
            let denied = limiter.hold("alice", Cost::from_units(90));
            assert!(matches!(denied, Err(HoldError::Denied(_))), "{text}");
            assert_eq!(remaining(), left - 35, "{text}");
        }
    }
}

#[test]
fn a_commit_above_max_cost_is_charged_as_max_cost() {
    let rule: Rule = "fixed-window 100/1d".parse().unwrap();
    let rule = rule.with_max_cost(Cost::from_units(50)).unwrap();
    let rule = rule.with_on_expiry(OnExpiry::Release);
    let limiter = Limiter::<str>::builder(rule).build().unwrap();
    limiter
        .hold("alice", Cost::from_units(10))
        .unwrap()
        .commit(Cost::from_units(70));
    assert_eq!(limiter.peek("alice", Cost::ONE).unwrap().remaining(), 50);
}

/// A dry-run rule that is over its limit lets a request pass without storing it, so a commit has
/// nothing to correct.
#[test]
fn a_hold_that_was_not_stored_is_not_corrected() {
    let rule: Rule = "fixed-window 10/1d".parse().unwrap();
    let limiter = Limiter::<str>::builder(rule.with_action(Action::Observe).unwrap())
        .build()
        .unwrap();
    let within = limiter.hold("alice", Cost::from_units(8)).unwrap();
    limiter
        .hold("alice", Cost::from_units(8))
        .unwrap()
        .release();
    assert_eq!(limiter.peek("alice", Cost::ONE).unwrap().remaining(), 2);
    within.release();
    assert_eq!(limiter.peek("alice", Cost::ONE).unwrap().remaining(), 10);
}

/// A flood of checks could fill the memory with clients that must not be evicted.
#[test]
fn a_check_takes_no_place_of_a_concurrent_rule() {
    let limiter: Limiter<u64> = Limiter::builder(rule("concurrent 2 timeout=60s"))
        .capacity(100)
        .build()
        .unwrap();
    for key in 0..10_000 {
        assert!(
            !limiter.check(&key).is_allowed()
                && !limiter.charge(&key, Cost::ONE).unwrap().is_allowed()
        );
    }
    assert_eq!(
        (limiter.len(), limiter.check(&7).retry_after()),
        (0, Wait::Never)
    );
    let hold = limiter.hold(&7, Cost::ONE).unwrap();
    assert_eq!(limiter.peek(&7, Cost::ONE).unwrap().remaining(), 1);
    drop(hold);
    assert_eq!(limiter.peek(&7, Cost::ONE).unwrap().remaining(), 2);
}

#[test]
fn a_renewed_hold_keeps_its_place_beyond_the_timeout() {
    let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_000_000)));
    let builder = Limiter::<str>::builder(rule("concurrent 2 timeout=60s")).clock(clock.clone());
    let limiter = Arc::new(builder.build().unwrap());
    let free = || limiter.peek("alice", Cost::ONE).unwrap().remaining();
    let mut renewed = Arc::clone(&limiter).hold_owned("alice", Cost::ONE).unwrap();
    let mut lost = limiter.hold("alice", Cost::ONE).unwrap();
    clock.advance(Duration::from_secs(59));
    assert!(renewed.renew());
    assert_eq!(free(), 0);
    clock.advance(Duration::from_secs(59));
    assert_eq!((free(), lost.renew(), renewed.renew()), (1, false, true));
    clock.advance(Duration::from_secs(59));
    assert_eq!(free(), 1);
    std::thread::spawn(move || renewed.commit(Cost::ZERO))
        .join()
        .unwrap();
    lost.release();
    assert_eq!(free(), 2);
}

#[test]
fn a_hold_of_at_most_the_estimate_grants_what_is_left() {
    for text in ["token-bucket 100 refill=1/d", "sliding-log 100/1d"] {
        let limiter = Limiter::<str>::builder(rule(text)).build().unwrap();
        let ask = || limiter.hold_at_most("alice", Cost::from_units(70));
        let all = ask().unwrap();
        let rest = ask().unwrap();
        let granted = [&all, &rest].map(|hold| hold.granted());
        assert_eq!(granted, [70, 30].map(Cost::from_units), "{text}");
        assert!(matches!(ask(), Err(HoldError::Denied(_))), "{text}");
        let mut rest = rest;
        assert!(rest.renew(), "only places are renewed");
        rest.commit(Cost::from_units(20));
        all.release();
        assert_eq!(
            limiter.peek("alice", Cost::ONE).unwrap().remaining(),
            80,
            "{text}"
        );
    }
}

#[test]
fn a_batch_of_unknown_length_is_answered_whole() {
    let keys: Vec<u64> = (0..50).collect();
    let of_any_length = || keys.iter().filter(|_| true);
    let (limiter, _clock) = manual_for::<u64>("gcra 1/h burst=5");
    assert_eq!(limiter.check_batch(of_any_length()).count(), keys.len());
    assert_eq!(limiter.admit_batch(of_any_length()).count(), keys.len());
}

#[test]
fn a_quota_that_fits_no_word_keeps_the_history() {
    let (mut limiter, _clock) = manual("fixed-window 10/1s");
    assert!(limiter.check("k").is_allowed());
    limiter.change(rule("fixed-window 9000000/1s")).unwrap();
    assert_eq!(limiter.peek("k", Cost::ONE).unwrap().remaining(), 8_999_999);
}

#[test]
fn the_bound_of_the_builder_outlives_a_change() {
    let builder = Limiter::builder(rule("gcra 1/s burst=5")).capacity(100_000);
    let mut limiter: Limiter<u64> = builder.max_bytes(1_000_000).build().unwrap();
    limiter.change(rule("sliding-window 5/15m")).unwrap();
    assert!((0..20_000_u64).all(|key| limiter.check(&key).is_allowed()));
    assert!(limiter.len() < 10_000, "{}", limiter.len());
}

#[test]
fn a_refund_of_the_only_request_forgets_the_client() {
    let (limiter, _clock) = manual("sliding-log 5/1h");
    let charged_at = limiter.check("k").decided_at();
    limiter.refund("k", Cost::ONE, Some(charged_at));
    assert!(limiter.is_empty());
}

/// Larger states of the same algorithm get more memory, and a later bound replaces an earlier one.
#[test]
fn a_changed_rule_has_memory_for_its_busy_clients() {
    const CLIENTS: u64 = 100;
    let busy = rule("sliding-log 1000/1h");
    let small = busy.clone().with_max_bytes(20_000).unwrap();
    let logs = [
        rule("sliding-log 5/1h"),
        small.clone(),
        rule("exponential 100/1h"),
    ];
    for before in logs {
        let builder = Limiter::builder(before).capacity(CLIENTS as usize);
        let mut limiter: Limiter<u64> = builder.build().unwrap();
        limiter.change(rule("gcra 1/s burst=5")).unwrap();
        limiter.change(rule("sliding-log 5/1h")).unwrap();
        limiter.change(busy.clone()).unwrap();
        for client in 0..CLIENTS {
            assert!((0..1000).all(|_| limiter.check(&client).is_allowed()));
        }
        assert_eq!((limiter.len(), limiter.displaced()), (CLIENTS as usize, 0));
    }
    let mut limiter: Limiter<u64> = Limiter::builder(busy.clone())
        .capacity(1000)
        .build()
        .unwrap();
    assert!((0..1000).all(|client| limiter.check(&client).is_allowed()));
    limiter.change(small).unwrap();
    assert!(limiter.bytes() < 40_000, "{}", limiter.bytes());
    limiter
        .change(busy.with_max_bytes(100_000_000).unwrap())
        .unwrap();
    assert!((0..1000).all(|client| limiter.check(&client).is_allowed()));
    assert_eq!(limiter.len(), 1000);
}

#[test]
fn a_refund_leaves_the_places_of_live_holds() {
    let (limiter, _clock) = manual("concurrent 1 timeout=60s");
    let hold = limiter.hold("k", Cost::ONE).unwrap();
    limiter.refund("k", Cost::ONE, None);
    assert!(limiter.hold("k", Cost::ONE).is_err());
    hold.release();
    assert!(limiter.hold("k", Cost::ONE).is_ok());
}
