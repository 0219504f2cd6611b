//! Reservations under a concurrency limit, step by step.

use std::collections::HashMap;
use std::time::Duration;

use earrrl::internal::Held;
use earrrl::{Cost, Nanos};

use super::data::{Vectors, list, text, whole};
use crate::algorithms::client::{Client, cost};

#[test]
fn places_are_taken_renewed_and_given_back() {
    let mut vectors = Vectors::read("concurrent");
    for case in vectors.rows("cases") {
        let rule = text(&case["rule"]);
        let mut client = Client::of(rule);
        let mut held = HashMap::new();
        for step in &list(&case["steps"]) {
            let now = Nanos::new(whole(&step[0]) * 1_000_000);
            let id = text(&step[2]);
            let limit = client.limit;
            let cost = cost(text(&step[3]));
            let done = match (text(&step[1]), held.get_mut(id)) {
                ("hold", _) => {
                    let decision = client.ask(now, cost);
                    if decision.allowed {
                        held.insert(id, Held::new(now, cost, decision.reset_after));
                    }
                    decision.allowed
                }
                ("free", Some(held)) => {
                    client.state = limit.commit(client.state.take(), now, held, cost);
                    true
                }
                ("renew", Some(held)) => {
                    let (state, is_renewed) = limit.renew(client.state.take(), now, held);
                    client.state = state;
                    held.at = if is_renewed { now } else { held.at };
                    is_renewed
                }
                other => panic!("{other:?} of {id}"),
            };
            let peek = client.peek(now, Cost::ONE);
            let wait = Duration::from_millis(whole(&step[6]));
            let found = (done, peek.remaining, peek.retry_after.duration());
            let expected = (step[4] == true, whole(&step[5]), Some(wait));
            assert_eq!(found, expected, "{rule}: {step}");
            vectors.reached(1);
        }
    }
}
