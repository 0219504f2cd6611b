//! Token buckets as golang.org/x/time/rate tests them.

use std::sync::Arc;
use std::time::Duration;

use earrrl::algorithm::{State, TokenBucket};
use earrrl::{Action, Charge, Cost, Engine, Limit, ManualClock, Mode, Nanos, Outcome, Rate, Rule};
use earrrl_testing::{ReferenceEngine, decide_all};
use serde_json::Value;

use super::data::{Vectors, flag, list, number, text, whole};
use crate::algorithms::client::{Client, assert_close, units};

const TICK: u64 = 100_000_000;

fn bucket(case: &Value) -> TokenBucket {
    let refill = Rate::per_second(whole(&case["per_s"])).unwrap();
    TokenBucket::new(units(whole(&case["burst"])), refill).unwrap()
}

#[test]
fn allowed_or_not() {
    let mut vectors = Vectors::read("go_time_rate");
    for case in vectors.rows("allow") {
        let name = text(&case["name"]);
        if name == "TestLimiterJumpBackwards" {
            vectors.passed_over(list(&case["steps"]).len(), "whose clock goes back");
            continue;
        }
        let bucket = bucket(&case);
        let mut client = Client::new(bucket.into());
        for (k, step) in list(&case["steps"]).iter().map(list).enumerate() {
            let now = Nanos::new(whole(&step[0]));
            let tokens = match &client.state {
                Some(State::TokenBucket(full_at)) => bucket.balance(Some(full_at), now),
                _ => bucket.balance(None, now),
            };
            assert_close(tokens, number(&step[2]), &format!("{name}, step {k}"));
            let decision = client.ask(now, units(whole(&step[1])));
            assert_eq!(decision.allowed, flag(&step[3]), "{name}, step {k}");
            vectors.reached(1);
        }
    }
}

/// There an earlier time refills anew; here it is taken as the latest one used.
#[test]
fn a_clock_that_jumps_back_refills_nothing() {
    let vectors = Vectors::read("go_time_rate");
    let cases = vectors.rows("allow");
    let case = cases
        .iter()
        .find(|case| text(&case["name"]) == "TestLimiterJumpBackwards")
        .unwrap();
    let engine = ReferenceEngine::new(Arc::new(ManualClock::default()));
    let rule = engine
        .prepare("jump", &Rule::from(Limit::from(bucket(case))))
        .unwrap();
    let mut latest = Nanos::ZERO;
    let mut client = Client::new(bucket(case).into());
    for step in list(&case["steps"]).iter().map(list) {
        let now = Nanos::new(whole(&step[0]));
        let cost = units(whole(&step[1]));
        latest = latest.max(now);
        let decide = engine.decide(
            &[Charge {
                rule,
                key: b"k",
                cost,
            }],
            Mode::Check,
            Some(now),
        );
        let decision = decide.into_inner().unwrap();
        assert_eq!(decision, client.ask(latest, cost), "at {now:?}");
    }
}

/// A reservation is a request that is delayed; what happens to it afterwards stands in the remark.
fn reserve(case: &Value, vectors: &mut Vectors) {
    let most_wait = if text(&case["name"]).contains("max wait") {
        1
    } else {
        u64::MAX / TICK
    };
    let most_wait = Duration::from_nanos(TICK * most_wait);
    let limit: Limit = bucket(case).into();
    let mut state = None;
    for (k, step) in list(&case["steps"]).iter().map(list).enumerate() {
        let what = format!("{}, step {k}", text(&case["name"]));
        let ticks = whole(&step[0]);
        let cost = units(whole(&step[1]));
        let rule = Rule::from(limit)
            .with_action(Action::Delay { max: most_wait })
            .unwrap();
        let mut states = [state.take()];
        let now = Nanos::new(ticks * TICK);
        let decision = decide_all(&[(&rule, cost)], &mut states, Mode::Check, now);
        [state] = states;
        assert_eq!(decision.outcome != Outcome::Deny, flag(&step[3]), "{what}");
        if decision.allowed {
            let expected = (whole(&step[2]) - ticks) * TICK;
            assert_eq!(decision.delay, Duration::from_nanos(expected), "{what}");
        }
        if step.get(4).map(text) == Some("cancelled at 1") {
            state = limit.refund(state, Nanos::new(TICK), now, cost);
        }
        vectors.reached(1);
    }
}

#[test]
fn reservations_are_delays() {
    let mut vectors = Vectors::read("go_time_rate");
    for case in vectors.rows("reserve") {
        let steps = list(&case["steps"]).len();
        match text(&case["name"]) {
            "TestReserveSetLimit" => {
                vectors.passed_over(steps, "of a changed rate, which leaves a debt its time");
            }
            "TestReserveJumpBack" | "TestReserveSetBurst" => {
                vectors.passed_over(steps, "whose clock goes back");
            }
            "TestCancel0Tokens" | "TestCancel1Token" => {
                vectors.passed_over(steps, "that keep back what later ones wait for");
            }
            _ => reserve(&case, &mut vectors),
        }
    }
}

#[test]
fn rates_of_intervals_and_some_facts() {
    let mut vectors = Vectors::read("go_time_rate");
    for row in vectors.rows("every").iter().map(list) {
        let rate = Rate::new(Cost::ONE, Duration::from_nanos(whole(&row[0]))).unwrap();
        assert_close(rate.per_second_f64(), number(&row[1]), "a rate");
        vectors.reached(1);
    }
    let mut client = Client::of("token-bucket 5 refill=1/s");
    let allowed = (0..15)
        .filter(|_| client.ask(Nanos::ZERO, Cost::ONE).allowed)
        .count();
    assert_eq!(allowed, 5, "15 at once");
    let mut client = Client::of("token-bucket 100 refill=100/s");
    let every_2_ms = (0..2500).map(|k| Nanos::new(k * 2_000_000));
    let allowed = every_2_ms
        .filter(|now| client.ask(*now, Cost::ONE).allowed)
        .count();
    assert!((599..=601).contains(&allowed), "{allowed} in 5 s");
    assert!(
        Client::of("token-bucket 1 refill=0.769230769/s")
            .ask(Nanos::ZERO, Cost::ONE)
            .allowed
    );
    vectors.reached(3);
    vectors.passed_over(2, "of limits 0 and infinity, which are refused");
}
