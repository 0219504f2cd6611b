//! Denied at every instant before `retry_after`, allowed from it on.

use earrrl::{Cost, Limit, Nanos, Wait};
use proptest::prelude::*;

use super::strategies::{cases, costs, histories, memory};
use crate::algorithms::client::{Client, before, nanos};

/// Nanoseconds around the wait within which exponential's doubles can't tell the difference: an
/// error of 4e-15 in the measure, over long periods.
fn haze(limit: &Limit) -> u64 {
    match limit {
        Limit::Exponential(limit) => (limit.period_nanos() as f64 * 4e-15) as u64,
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
    let wait = nanos(wait);
    let haze = haze(&client.limit);
    let before = shares.iter().map(|share| (share * wait as f64) as u64);
    for after in before
        .chain([0, wait.saturating_sub(1)])
        .filter(|after| after + haze < wait)
    {
        prop_assert!(!allowed(after), "allowed {} ns before {wait}", wait - after);
    }
    prop_assert!(allowed(wait), "denied when {wait} ns have passed");
    let later = shares
        .iter()
        .map(|share| (share * 3.0 * memory as f64) as u64);
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
            prop_assert_eq!(decision.earliest(), report.earliest);
            prop_assert!(decision.retry_after > Wait::NONE);
        }
        check_wait(&client, now, cost, report.retry_after, &shares)?;
    }

    /// And not a nanosecond earlier, as far as that can be told.
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
        let mut almost = before(later, 1 + haze(&client.limit));
        match client.limit {
            Limit::RecentAverage(_) => {
                let rate = |now| client.report(now, Cost::ZERO).rate.unwrap_or_default();
                let good = 0.01 * then.limit;
                prop_assert!(rate(later) <= good * (1.0 + 1e-12), "{}", rate(later));
                prop_assert!(reset == 0 || rate(almost) > good * (1.0 - 1e-12), "{}", rate(almost));
            }
            Limit::Exponential(limit) => {
                // Where the last digits of 1.01 stand for many nanoseconds.
                almost = before(almost, (limit.period_nanos() as f64 * 1e-14) as u64);
                let measured = |now| {
                    let rate = client.report(now, Cost::ONE).rate.unwrap_or_default();
                    rate * limit.period_nanos() as f64 / 1e9
                };
                prop_assert!(measured(later) <= 1.01 * (1.0 + 1e-12), "{}", measured(later));
                prop_assert!(reset == 0 || measured(almost) > 1.01 * (1.0 - 1e-12), "{reset}");
            }
            _ => {
                prop_assert_eq!(then, fresh);
                let last = client.report(almost, Cost::ZERO).reset_after;
                prop_assert!(reset == 0 || last.as_nanos() == 1);
            }
        }
    }
}
