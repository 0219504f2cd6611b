//! The exact rate that recent-average estimates, computed from the whole history.

use crate::algorithm::RecentAverage;
use crate::arithmetic::exp;
use crate::clock::Nanos;
use crate::cost::Cost;

/// Returns the recent average of `requests` at `now`: `λ·Σ cᵢ·e^(-λ(now-tᵢ))`. Requests after `now`
/// are left out.
///
/// ```
/// use earrrl::sim::exact_rate;
/// use earrrl::{Cost, Nanos, Rate, RecentAverage};
/// use std::time::Duration;
///
/// let limit = RecentAverage::with_period(Rate::per_second(1)?, Duration::from_secs(60))?;
/// let now = Nanos::from_secs(5);
/// assert_eq!(exact_rate(&limit, [(now, Cost::from_units(30))], now), 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn exact_rate(
    limit: &RecentAverage,
    requests: impl IntoIterator<Item = (Nanos, Cost)>,
    now: Nanos,
) -> f64 {
    let period = limit.period_secs();
    let weight =
        |(time, cost): (Nanos, Cost)| cost.as_f64() * exp(-now.since(time).as_secs_f64() / period);
    requests
        .into_iter()
        .filter(|(time, _)| *time <= now)
        .map(weight)
        .sum::<f64>()
        / period
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::time::Duration;

    use super::*;
    use crate::algorithm::Limit;
    use crate::rule::Rule;
    use crate::sim::{Client, run};

    #[test]
    fn the_estimate_is_the_sum_over_the_whole_history() {
        let rule: Rule = "recent-average 3/s half-life=7s".parse().unwrap();
        let Limit::RecentAverage(limit) = rule.limit() else {
            panic!("not a recent average")
        };
        for client in ["a random 5/s", "a bursty 30 every=20s gap=10ms cost=0.25"] {
            let client: Client = client.parse().unwrap();
            let cost = client.cost;
            let mut history: Vec<(Nanos, Cost)> = Vec::new();
            run(&rule, &[client], 3, Duration::from_secs(60), |attempt| {
                let exact = exact_rate(limit, history.iter().copied(), attempt.time);
                let found = attempt.decision.rate.unwrap();
                assert!((found - exact).abs() <= 1e-9 * exact, "{found} {exact}");
                history.push((attempt.time, cost));
            })
            .unwrap();
        }
    }
}
