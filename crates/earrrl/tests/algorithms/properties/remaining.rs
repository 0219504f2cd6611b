//! Exactly `remaining` more requests of cost 1 pass at once.

use earrrl::{Cost, Nanos};
use proptest::prelude::*;

use super::strategies::{cases, costs, histories};

/// Not more than so many are tried.
const MOST: u64 = 2_000;

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
