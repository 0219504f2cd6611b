//! Credit pools: the source's table, and cases beside it.

use earrrl::algorithm::{Algorithm, TokenBucket};
use earrrl::{Cost, Nanos, Rate};

use super::data::{Vectors, flag, list, number, text, whole};
use crate::algorithms::client::{assert_close, assert_wait, at, units};

#[test]
fn balances_verdicts_and_waits() {
    let mut vectors = Vectors::read("weighted_credits");
    for case in vectors.rows("cases") {
        let name = text(&case["name"]);
        let refill = list(&case["refill"]);
        let per = std::time::Duration::from_secs(whole(&refill[1]));
        let refill = Rate::new(units(whole(&refill[0])), per).unwrap();
        let pool = TokenBucket::new(units(whole(&case["capacity"])), refill).unwrap();
        let mut state = None;
        for (k, event) in list(&case["events"]).iter().map(list).enumerate() {
            let what = format!("{name}, event {k}");
            let now = at(number(&event[0]));
            let cost = units(whole(&event[1]));
            assert_close(pool.balance(state.as_ref(), now), number(&event[2]), &what);
            let allowed = pool.allows(state.as_ref(), now, cost);
            assert_eq!(allowed, flag(&event[3]), "{what}");
            if allowed && !cost.is_zero() {
                state = Some(pool.charge(state, now, cost));
            }
            assert_close(pool.balance(state.as_ref(), now), number(&event[4]), &what);
            let left = pool.remaining(state.as_ref(), now);
            assert_eq!(left, (number(&event[4]) + 1e-9) as u64, "{what}");
            if !allowed {
                let wait = pool.retry_after(state.as_ref(), now, cost).duration();
                assert_eq!(wait.is_some(), event[5].is_number(), "{what}");
                assert_wait(
                    wait.unwrap_or_default(),
                    event[5].as_f64().unwrap_or(0.0),
                    &what,
                );
            }
            assert_wait(
                pool.reset_after(state.as_ref(), now),
                number(&event[6]),
                &what,
            );
            vectors.reached(1);
        }
    }
    let idle: Option<&earrrl::algorithm::Moment> = None;
    let pool = TokenBucket::new(units(5), Rate::per_second(1).unwrap()).unwrap();
    assert!(pool.allows(idle, Nanos::ZERO, Cost::ZERO));
}
