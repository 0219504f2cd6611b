//! Never means never: no such request is allowed, whatever else is sent and however long one waits.

use earrrl::{Cost, Nanos, Wait};
use proptest::prelude::*;

use super::strategies::{cases, costs, limits, requests, starts};
use crate::algorithms::client::Client;

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn an_allow_after_never(
        limit in limits(),
        start in starts(),
        (requests, costs) in (requests(40), proptest::collection::vec(costs(), 40)),
    ) {
        let (mut client, mut now, mut least_never) = (Client::new(limit), start, Cost::MAX);
        for (request, cost) in requests.iter().zip(costs) {
            now = request.after(now, &limit);
            let decision = client.ask(now, cost);
            prop_assert!(!(decision.allowed && cost >= least_never));
            if decision.retry_after == Wait::Never {
                least_never = least_never.min(cost);
            }
        }
        let years = Nanos::new(1 << 63);
        prop_assert!(least_never == Cost::MAX || !client.peek(years, least_never).allowed);
    }
}

#[test]
fn which_costs_are_never_allowed() {
    for (rule, most) in [
        ("exponential 60/1m", Some(60)),
        ("token-bucket 60 refill=1/s", Some(60)),
        ("token-bucket 7 refill=600000007/s", Some(7)),
        ("gcra 7/m burst=60", Some(60)),
        ("fixed-window 60/1m", Some(60)),
        ("sliding-log 60/1m", Some(60)),
        ("sliding-window 60/1m", Some(60)),
        ("sliding-counter 60/1m", Some(60)),
        ("recent-average 1/s half-life=10s", None),
    ] {
        let mut client = Client::of(rule);
        let Some(most) = most else {
            client.charge(Nanos::ZERO, Cost::MAX);
            assert_ne!(
                client.peek(Nanos::ZERO, Cost::MAX).retry_after,
                Wait::Never,
                "{rule}"
            );
            continue;
        };
        let just = Cost::from_units(most);
        let over = Cost::from_units(most + 1);
        assert!(client.peek(Nanos::ZERO, just).allowed, "{rule}");
        client.ask(Nanos::ZERO, Cost::ONE);
        assert!(
            client.peek(Nanos::ZERO, just).retry_after < Wait::Never,
            "{rule}"
        );
        assert_eq!(
            client.peek(Nanos::ZERO, over).retry_after,
            Wait::Never,
            "{rule}"
        );
    }
}
