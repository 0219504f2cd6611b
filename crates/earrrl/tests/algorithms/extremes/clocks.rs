//! A clock that goes back, seen through an engine: the latest time used replaces the earlier one.

use std::sync::Arc;

use earrrl::{Charge, Cost, Engine, ManualClock, Mode, Nanos, Rule};
use earrrl_testing::ReferenceEngine;
use proptest::prelude::*;

use crate::algorithms::client::Client;

const RULES: [&str; 8] = [
    "recent-average 1/s half-life=10s strict",
    "exponential 6/1m strict",
    "token-bucket 6 refill=1/s",
    "fixed-window 6/1m",
    "sliding-log 6/1m",
    "sliding-window 6/1m lenient",
    "sliding-window 6/1m harsh strict",
    "sliding-counter 6/1m",
];

proptest! {
    #[test]
    fn an_earlier_time_is_taken_as_the_latest(
        times in proptest::collection::vec(0u64..200_000_000_000, 1..40),
        which in 0..RULES.len(),
    ) {
        let engine = ReferenceEngine::new(Arc::new(ManualClock::default()));
        let rule: Rule = RULES[which].parse().unwrap();
        let id = engine.prepare("rule", &rule).unwrap();
        let (mut client, mut latest) = (Client::new(*rule.limit()), Nanos::ZERO);
        for time in times.into_iter().map(Nanos::new) {
            latest = latest.max(time);
            let charge = Charge { rule: id, key: b"client", cost: Cost::ONE };
            let found = engine.decide(&[charge], Mode::Check, Some(time)).into_inner().unwrap();
            prop_assert_eq!(found, client.ask(latest, Cost::ONE));
        }
    }

    /// Even where nobody looks after the clock, the functions answer.
    #[test]
    fn states_from_the_future_do_no_harm(
        times in proptest::collection::vec(any::<u64>(), 1..20), which in 0..RULES.len(),
    ) {
        let mut client = Client::of(RULES[which]);
        for time in times.into_iter().map(Nanos::new) {
            let decision = client.ask(time, Cost::ONE);
            prop_assert!(decision.rate.unwrap_or(0.0) >= 0.0);
            client.refund(time, Nanos::MAX, Cost::ONE);
            client.refund(Nanos::ZERO, time, Cost::ONE);
        }
    }
}
