//! A peek tells what a check would, and changes nothing; cost 0 is judged and stores nothing.

use earrrl::{Cost, Mode, Nanos};
use proptest::prelude::*;

use super::strategies::{cases, costs, histories, limits, requests, starts};
use crate::algorithms::client::Client;

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn peeks_and_free_requests_between_change_nothing(
        limit in limits(), start in starts(), requests in requests(30), costs in costs(),
    ) {
        let (mut alone, mut watched, mut now) = (Client::new(limit), Client::new(limit), start);
        for request in &requests {
            now = request.after(now, &limit);
            let peeked = watched.peek(now, request.cost);
            let (state, _) = limit.decide(watched.state.take(), now, costs, Mode::Peek);
            watched.state = state;
            let free = watched.ask(now, Cost::ZERO);
            prop_assert_eq!(&free, &watched.peek(now, Cost::ZERO));
            let decision = watched.ask(now, request.cost);
            prop_assert_eq!(&decision, &alone.ask(now, request.cost));
            prop_assert_eq!(&watched.state, &alone.state);
            prop_assert_eq!(peeked.allowed, decision.allowed);
        }
    }

    #[test]
    fn a_free_request_leaves_no_state(limit in limits(), now in starts()) {
        let mut client = Client::new(limit);
        prop_assert!(client.ask(now, Cost::ZERO).allowed);
        prop_assert_eq!(client.state, None);
    }

    #[test]
    fn a_denied_request_under_leaky_leaves_nothing(
        (mut client, last) in histories(), gap in 0u64..2_000_000_000, cost in costs(),
    ) {
        let now = Nanos::new(last.get() + gap);
        let before = client.clone();
        let decision = client.ask(now, cost);
        if !decision.allowed && client.limit.policy() == earrrl::Policy::Leaky {
            prop_assert_eq!(client.report(now, cost), before.report(now, cost));
        }
    }
}
