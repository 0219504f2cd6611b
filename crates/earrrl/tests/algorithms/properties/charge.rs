//! A charge answers the verdict of a check, and is stored whatever it is.

use earrrl::algorithm::Waits;
use earrrl::{Cost, Decision, Limit, Mode, Policy, Wait};
use proptest::prelude::*;

use super::strategies::{cases, costs, histories, limits, requests, starts};
use crate::algorithms::client::Client;

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn it_answers_as_a_check_and_stores_all(
        limit in limits(), start in starts(), requests in requests(30),
    ) {
        let (mut client, mut now) = (Client::new(limit), start);
        for request in &requests {
            now = request.after(now, &limit);
            let (checked, check) = limit.decide(client.state.clone(), now, request.cost, Mode::Check);
            let (charged, charge) = limit.decide(client.state.take(), now, request.cost, Mode::Charge);
            prop_assert_eq!(charge.allowed, check.allowed);
            prop_assert_eq!(charge.outcome, check.outcome);
            if check.allowed || limit.policy() == Policy::Strict && limit.waits() == Waits::First {
                prop_assert_eq!((&charged, charge), (&checked, check));
            }
            // An exponential average forgets a little with every request, however small.
            if !matches!(limit, Limit::Exponential(_)) {
                prop_assert!(charge.remaining <= check.remaining);
                prop_assert!(charge.reset_after >= check.reset_after);
            }
            client.state = charged;
        }
    }

    /// Its wait is a promise: from then on the same cost passes, and a nanosecond before it does not.
    #[test]
    fn the_wait_counts_the_debt((client, now) in histories(), cost in costs()) {
        let mut client = client;
        let charge = charge(&mut client, now, cost);
        if let (false, Wait::For(wait)) = (charge.allowed, charge.retry_after) {
            prop_assert!(client.peek(now + wait, cost).allowed);
            if !wait.is_zero() {
                let before = now + (wait - std::time::Duration::from_nanos(1));
                prop_assert!(!client.peek(before, cost).allowed);
            }
        }
    }

    /// What a bucket owes comes off what it earns, to the last billionth.
    #[test]
    fn debts_add_up(first in 0u64..5000, second in 0u64..5000, now in starts()) {
        let apart = &mut Client::of("gcra 1/s burst=60");
        let together = &mut apart.clone();
        charge(apart, now, Cost::from_units(first));
        charge(apart, now, Cost::from_units(second));
        charge(together, now, Cost::from_units(first + second));
        prop_assert_eq!(&apart.state, &together.state);
    }
}

fn charge(client: &mut Client, now: earrrl::Nanos, cost: Cost) -> Decision {
    let limit: Limit = client.limit;
    let (state, decision) = limit.decide(client.state.take(), now, cost, Mode::Charge);
    client.state = state;
    decision
}
