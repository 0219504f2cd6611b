//! Exactly `remaining` more requests of cost 1 pass at once.

use earrrl::algorithm::State;
use earrrl::{Cost, Limit, Nanos};
use proptest::prelude::*;

use super::strategies::{cases, costs, histories};
use crate::algorithms::client::Client;

/// Not more than so many are tried.
const MOST: u64 = 2_000;

/// Whether a recent average is within its own error of where one request more would pass: nearer
/// than the tolerance that makes whole limits whole.
fn on_the_edge(client: &Client, now: Nanos) -> bool {
    let (Limit::RecentAverage(limit), Some(State::RecentAverage(state))) =
        (&client.limit, &client.state)
    else {
        return false;
    };
    let room = limit.burst() * (1.0 + 1e-9) - limit.count(Some(state), now);
    (room - room.round()).abs() < 1e-10 * limit.burst().max(1.0)
}

proptest! {
    #![proptest_config(cases(1500))]
    #[test]
    fn is_exact(
        (mut client, last) in histories(),
        gap in 0u64..2_000_000_000,
        cost in costs(),
    ) {
        let now = Nanos::new(last.get() + gap);
        let remaining = client.ask(now, cost).remaining;
        if on_the_edge(&client, now) {
            return Ok(());
        }
        for k in 0..remaining.min(MOST) {
            let decision = client.ask(now, Cost::ONE);
            prop_assert!(decision.allowed, "request {} of {remaining}", k + 1);
            prop_assert_eq!(decision.remaining, remaining - k - 1);
        }
        if remaining <= MOST {
            prop_assert!(!client.ask(now, Cost::ONE).allowed, "more than {remaining}");
        }
    }
}
