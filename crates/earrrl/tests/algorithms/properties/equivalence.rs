//! gcra, token-bucket and credit-pool are one algorithm under three names.

use earrrl::{Mode, Nanos, Rule};
use earrrl_testing::decide_all;
use proptest::prelude::*;

use super::strategies::{cases, quotas, rates, requests, starts};

proptest! {
    #![proptest_config(cases(500))]
    #[test]
    fn three_names_decide_alike_in_every_field(
        (burst, rate) in (quotas(), rates()),
        start in starts(),
        requests in requests(40),
    ) {
        let rules: Vec<Rule> = [
            format!("gcra {rate} burst={burst}"),
            format!("token-bucket {burst} refill={rate}"),
            format!("credit-pool {burst} refill={rate}"),
        ].iter().map(|text| text.parse().unwrap()).collect();
        let (mut states, mut now) = ([None, None, None], start);
        for request in &requests {
            now = request.after(now, rules[0].limit());
            let mut decide = |place: usize| {
                let state = &mut states[place..=place];
                decide_all(&[(&rules[place], request.cost)], state, Mode::Check, now)
            };
            let first = decide(0);
            prop_assert_eq!(first, decide(1));
            prop_assert_eq!(first, decide(2));
            prop_assert_eq!(first.rate, None);
        }
        prop_assert_eq!(&states[0], &states[1]);
        prop_assert_eq!(&states[0], &states[2]);
    }
}

/// Between ticks too: requests at every nanosecond phase of a rate that is no whole interval.
#[test]
fn three_a_second_of_sixty_is_not_fifty_nine() {
    let rule: Rule = "token-bucket 60 refill=3/s".parse().unwrap();
    for phase in 0..1000 {
        let mut states = [None];
        let now = Nanos::new(1_700_000_000_000_000_000 + phase);
        let one = [(&rule, earrrl::Cost::ONE)];
        let allowed = (0..70)
            .filter(|_| decide_all(&one, &mut states, Mode::Check, now).allowed)
            .count();
        assert_eq!(allowed, 60, "phase {phase}");
    }
}
