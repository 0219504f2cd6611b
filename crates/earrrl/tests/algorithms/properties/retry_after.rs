//! Denied at every instant before `retry_after`, allowed from it on.

use earrrl::{Cost, Limit, Nanos, Wait};
use proptest::prelude::*;

use super::strategies::{cases, costs, histories, memory};
use crate::client::{Client, nanos};

/// Nanoseconds around the wait within which exponential's doubles can't tell the difference: an
/// error of 4e-15 in the measure, over long periods.
fn haze(limit: &Limit) -> u64 {
    match limit {
        Limit::Exponential(limit) => (limit.period() as f64 * 4e-15) as u64,
        _ => 0,
    }
}

/// Checks a wait of `client` for requests of `cost` from `now` on.
pub(crate) fn check_wait(
    client: &Client,
    now: Nanos,
    cost: Cost,
    wait: Wait,
    shares: &[f64],
) -> Result<(), TestCaseError> {
    let memory = memory(&client.limit);
    let allowed = |after: u64| client.peek(Nanos::new(now.get() + after), cost).allowed;
    let Wait::For(wait) = wait else {
        for after in [0, 1, memory, 3 * memory, 1 << 61] {
            prop_assert!(!allowed(after), "allowed after never, in {after} ns");
        }
        return Ok(());
    };
    let (wait, haze) = (nanos(wait), haze(&client.limit));
    let before = shares.iter().map(|share| (share * wait as f64) as u64);
    for after in before.chain([0, wait.saturating_sub(1)]).filter(|after| after + haze < wait) {
        prop_assert!(!allowed(after), "allowed {} ns before {wait}", wait - after);
    }
    prop_assert!(allowed(wait), "denied when {wait} ns have passed");
    let later = shares.iter().map(|share| (share * 3.0 * memory as f64) as u64);
    for after in later.chain([1, 1000, wait]).filter(|after| *after >= haze) {
        prop_assert!(allowed(wait + after), "denied {after} ns after {wait}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(3000))]
    #[test]
    fn is_exact(
        (mut client, last) in histories(),
        gap in prop_oneof![Just(0u64), 1u64..2_000_000_000],
        cost in costs(),
        shares in proptest::collection::vec(0.0..1.0, 8),
    ) {
        let now = Nanos::new(last.get() + gap);
        let decision = client.ask(now, cost);
        let report = client.report(now, cost);
        if decision.allowed {
            prop_assert_eq!(decision.retry_after, Wait::NONE);
        } else {
            prop_assert_eq!(decision.retry_after, report.retry_after);
            prop_assert!(decision.retry_after > Wait::NONE);
        }
        check_wait(&client, now, cost, report.retry_after, &shares)?;
    }

    #[test]
    fn from_reset_after_on_a_client_is_as_good_as_new(
        (client, last) in histories(),
        gap in 0u64..2_000_000_000,
    ) {
        let now = Nanos::new(last.get() + gap);
        let reset = nanos(client.report(now, Cost::ONE).reset_after);
        let later = Nanos::new(now.get() + reset);
        let (then, new) = (client.report(later, Cost::ZERO), Client::new(client.limit));
        let fresh = new.report(later, Cost::ZERO);
        prop_assert_eq!(then.reset_after.as_nanos(), 0);
        match client.limit {
            Limit::RecentAverage(_) => {
                let rate = then.rate.unwrap_or_default();
                prop_assert!(rate <= 0.01 * then.limit * (1.0 + 1e-9), "{rate}");
            }
            Limit::Exponential(limit) => {
                let measured = client.report(later, Cost::ONE).rate.unwrap_or_default();
                let per_period = measured * limit.period() as f64 / 1e9;
                prop_assert!(per_period <= 1.01 + 1e-9, "{per_period}");
            }
            _ => prop_assert_eq!(then, fresh),
        }
    }
}
