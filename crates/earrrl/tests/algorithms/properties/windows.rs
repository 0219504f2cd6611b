//! What windows and logs admit, counted by hand.

use earrrl::algorithm::sliding_window::Edge;
use earrrl::{Cost, Limit, Nanos, Policy};
use proptest::prelude::*;

use super::strategies::{
    Request, cases, fixed_windows, requests, sliding_counters, sliding_logs, sliding_windows,
    starts,
};
use crate::client::Client;

/// The cost allowed to one client, by time.
fn admitted(limit: Limit, start: Nanos, requests: &[Request]) -> Vec<(u64, u128)> {
    let (mut client, mut now, mut admitted) = (Client::new(limit), start, vec![]);
    for request in requests {
        now = request.after(now, &limit);
        if client.ask(now, request.cost).allowed {
            admitted.push((now.get(), request.cost.billionths()));
        }
    }
    admitted
}

/// The most cost in any `(t - window, t]`.
fn most_in_any(admitted: &[(u64, u128)], window: u64) -> u128 {
    let within = |t: u64| {
        let counted = admitted.iter().filter(|(u, _)| *u <= t && t - *u < window);
        counted.map(|(_, cost)| cost).sum()
    };
    admitted.iter().map(|(t, _)| within(*t)).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn harsh_sub_windows_never_admit_more_than_the_quota(
        limit in sliding_windows(), start in starts(), requests in requests(120),
    ) {
        let limit = limit.with_edge(Edge::Harsh);
        let admitted = admitted(limit.into(), start, &requests);
        prop_assert!(most_in_any(&admitted, limit.window()) <= limit.quota().billionths());
    }

    #[test]
    fn logs_never_admit_more_than_the_quota(
        limit in sliding_logs(), start in starts(), requests in requests(120),
    ) {
        let admitted = admitted(limit.into(), start, &requests);
        prop_assert!(most_in_any(&admitted, limit.window()) <= limit.quota().billionths());
    }

    /// A whole log denies only what would really be too much.
    #[test]
    fn logs_deny_only_what_is_too_much(
        limit in sliding_logs(), start in starts(), requests in requests(60),
    ) {
        let limit = limit.with_max_entries(10_000);
        let (mut client, mut now) = (Client::new(limit.into()), start);
        let mut attempts: Vec<(u64, u128)> = vec![];
        for request in &requests {
            now = request.after(now, &client.limit);
            let cost = request.cost.billionths();
            let recent = attempts.iter().filter(|(t, _)| now.get() - t < limit.window());
            let sum = recent.map(|(_, cost)| cost).sum::<u128>();
            let fits = sum + cost <= limit.quota().billionths();
            let full = sum <= limit.quota().billionths();
            prop_assert_eq!(client.peek(now, Cost::ZERO).allowed, full);
            prop_assert_eq!(client.ask(now, request.cost).allowed, fits);
            if fits || client.limit.policy() == Policy::Strict {
                attempts.push((now.get(), cost));
            }
        }
    }

    #[test]
    fn a_fixed_window_admits_at_most_twice_the_quota(
        limit in fixed_windows(), start in starts(), requests in requests(120),
    ) {
        let admitted = admitted(limit.into(), start, &requests);
        prop_assert!(most_in_any(&admitted, limit.window()) <= 2 * limit.quota().billionths());
    }

    /// The counter by its definition, in integers over whole histories.
    #[test]
    fn a_sliding_counter_follows_its_formula(
        limit in sliding_counters(), start in starts(), requests in requests(60),
    ) {
        let (mut client, mut now) = (Client::new(limit.into()), start);
        let mut counts = std::collections::BTreeMap::<u64, u128>::new();
        let (w, q) = (u128::from(limit.window()), limit.quota().billionths());
        for request in &requests {
            now = request.after(now, &client.limit);
            let (window, e) = (now.get() / limit.window(), u128::from(now.get() % limit.window()));
            let count = |window: u64| counts.get(&window).copied().unwrap_or(0);
            let (prev, cur) = (count(window.wrapping_sub(1)), count(window));
            let cost = request.cost.billionths();
            let fits = prev * (w - e) + (cur + cost) * w <= q * w;
            let decision = client.ask(now, request.cost);
            prop_assert_eq!(decision.allowed, fits);
            if fits || client.limit.policy() == Policy::Strict {
                *counts.entry(window).or_default() += cost;
            }
            let cur = counts.get(&window).copied().unwrap_or(0);
            let sum = (prev as f64 * (w - e) as f64 / w as f64 + cur as f64) / 1e9;
            let rate = decision.rate.unwrap_or_default() * w as f64 / 1e9;
            prop_assert!((rate - sum).abs() <= 1e-9 * sum, "{rate}, {sum}");
        }
    }
}

#[test]
fn a_tenth_and_a_tenth_and_a_tenth_are_three_tenths() {
    let tenth: Cost = "0.1".parse().unwrap();
    for rule in [
        "fixed-window 0.3/1m",
        "sliding-log 0.3/1m",
        "sliding-window 0.3/1m",
        "sliding-counter 0.3/1m",
        "token-bucket 0.3 refill=1/h",
    ] {
        let mut client = Client::of(rule);
        for _ in 0..3 {
            assert!(client.ask(Nanos::from_secs(600), tenth).allowed, "{rule}");
        }
        assert!(!client.ask(Nanos::from_secs(600), tenth).allowed, "{rule}");
    }
}
