//! GCRA as throttled and redis-cell test it.

use std::time::Duration;

use earrrl::{Nanos, Rate, Wait};

use super::data::{Vectors, flag, list, whole};
use crate::algorithms::client::{Client, units};

#[test]
fn steps_of_throttled_and_redis_cell() {
    let mut vectors = Vectors::read("gcra");
    let rule = format!("gcra 1/1s burst={}", vectors.get("burst"));
    assert_eq!(whole(&vectors.get("emission_interval_ns")), 1_000_000_000);
    let mut client = Client::of(&rule);
    for (k, step) in vectors.rows("steps").iter().map(list).enumerate() {
        let decision = client.ask(Nanos::new(whole(&step[0])), units(whole(&step[1])));
        assert_eq!(decision.allowed, flag(&step[2]), "step {k}");
        assert_eq!(decision.remaining, whole(&step[3]), "step {k}");
        assert_eq!(
            decision.reset_after,
            Duration::from_nanos(whole(&step[4])),
            "step {k}"
        );
        let wait = match (decision.allowed, decision.retry_after) {
            (false, Wait::For(wait)) => i64::try_from(wait.as_nanos()).unwrap(),
            _ => -1,
        };
        assert_eq!(Some(wait), step[5].as_i64(), "step {k}");
        vectors.reached(1);
    }
}

#[test]
fn intervals_of_rates() {
    let mut vectors = Vectors::read("gcra");
    for row in vectors.rows("intervals").iter().map(list) {
        let rate = Rate::new(units(whole(&row[0])), Duration::from_secs(whole(&row[1]))).unwrap();
        let interval = Duration::from_nanos(whole(&row[2]));
        assert_eq!(rate, Rate::new(units(1), interval).unwrap());
        vectors.reached(1);
    }
    assert!(Rate::per_second(0).is_err(), "zero rates are not supported");
    vectors.reached(1);
}

#[test]
fn the_first_call_of_a_burst_of_nothing_more() {
    let mut vectors = Vectors::read("gcra");
    let reply: Vec<i64> = vectors
        .rows("first_call_of_burst_0")
        .iter()
        .filter_map(|n| n.as_i64())
        .collect();
    let decision = Client::of("gcra 1/2s burst=1").ask(Nanos::ZERO, units(1));
    let limited = i64::from(!decision.allowed);
    let burst = 1;
    let reset = i64::try_from(decision.reset_after.as_secs()).unwrap();
    assert_eq!(
        reply,
        [limited, burst, decision.remaining as i64, -1, reset]
    );
    vectors.reached(1);
    vectors.passed_over(1, "on a real clock");
}
