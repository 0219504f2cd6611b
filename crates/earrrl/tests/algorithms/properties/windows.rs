//! What windows and logs admit, counted by hand.

use earrrl::algorithm::{SlidingLog, State, sliding_window::Edge};
use earrrl::{Cost, Limit, Nanos, Policy};
use earrrl_testing::Random;
use proptest::prelude::*;
use std::time::Duration;

use super::strategies::{
    Request, cases, fixed_windows, requests, sliding_counters, sliding_logs, sliding_windows,
    starts,
};
use crate::algorithms::client::Client;

/// The cost allowed to one client, by time.
fn admitted(limit: Limit, start: Nanos, requests: &[Request]) -> Vec<(u64, u128)> {
    let mut client = Client::new(limit);
    let mut now = start;
    let mut admitted = vec![];
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

fn entries_of(client: &Client) -> usize {
    match &client.state {
        Some(State::SlidingLog(log)) => log.entries().len(),
        _ => 0,
    }
}

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn harsh_sub_windows_never_admit_more_than_the_quota(
        limit in sliding_windows(), start in starts(), requests in requests(120),
    ) {
        let limit = limit.with_edge(Edge::Harsh);
        let admitted = admitted(limit.into(), start, &requests);
        prop_assert!(most_in_any(&admitted, limit.window_nanos()) <= limit.quota().billionths());
    }

    #[test]
    fn logs_never_admit_more_than_the_quota(
        limit in sliding_logs(), start in starts(), requests in requests(120),
    ) {
        let admitted = admitted(limit.into(), start, &requests);
        prop_assert!(most_in_any(&admitted, limit.window_nanos()) <= limit.quota().billionths());
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
            let recent = attempts.iter().filter(|(t, _)| now.get() - t < limit.window_nanos());
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

    /// A full log is wrong only about what left the window less than a cell ago.
    #[test]
    fn full_logs_count_for_a_cell_too_long_at_most(
        (limit, entries) in (sliding_logs(), 1usize..60),
        start in starts(), requests in requests(120),
    ) {
        let limit = limit.with_max_entries(entries);
        let (mut client, mut now) = (Client::new(limit.into()), start);
        let mut attempts: Vec<(u64, u128)> = vec![];
        for request in &requests {
            now = request.after(now, &client.limit);
            let cost = request.cost.billionths();
            let longest = limit.window_nanos().saturating_add(limit.grain_nanos());
            let sum = |within: u64| -> u128 {
                let recent = attempts.iter().filter(|(t, _)| now.get() - t < within);
                recent.map(|(_, cost)| cost).sum()
            };
            let allowed = client.ask(now, request.cost).allowed;
            let denied_for_long = sum(longest) + cost > limit.quota().billionths();
            prop_assert!(allowed || denied_for_long);
            prop_assert!(!allowed || sum(limit.window_nanos()) + cost <= limit.quota().billionths());
            if allowed || client.limit.policy() == Policy::Strict {
                attempts.push((now.get(), cost));
            }
            prop_assert!(entries_of(&client) <= entries, "{}", entries_of(&client));
        }
    }

    #[test]
    fn a_fixed_window_admits_at_most_twice_the_quota(
        limit in fixed_windows(), start in starts(), requests in requests(120),
    ) {
        let admitted = admitted(limit.into(), start, &requests);
        prop_assert!(most_in_any(&admitted, limit.window_nanos()) <= 2 * limit.quota().billionths());
    }

    /// The counter by its definition, in integers over whole histories.
    #[test]
    fn a_sliding_counter_follows_its_formula(
        limit in sliding_counters(), start in starts(), requests in requests(60),
    ) {
        let (mut client, mut now) = (Client::new(limit.into()), start);
        let mut counts = std::collections::BTreeMap::<u64, u128>::new();
        let (w, q) = (u128::from(limit.window_nanos()), limit.quota().billionths());
        for request in &requests {
            now = request.after(now, &client.limit);
            let (window, e) = (now.get() / limit.window_nanos(), u128::from(now.get() % limit.window_nanos()));
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

/// More requests than entries: 400 a second, at random, under 20 000 a minute.
#[test]
fn a_quota_beyond_the_entries_denies_hardly_more_than_an_exact_log() {
    let mut client = Client::of("sliding-log 20000/1m");
    let mut random = Random::new(1);
    let mut now = Nanos::from_secs(1_700_000_000);
    let mut exact = std::collections::VecDeque::new();
    let mut denied = 0;
    let mut denied_by_exact = 0;
    for _ in 0..60_000 {
        now = Nanos::new(now.get() + (-random.unit().max(1e-9).ln() / 400.0 * 1e9) as u64);
        denied += u64::from(!client.ask(now, Cost::ONE).allowed);
        while exact
            .front()
            .is_some_and(|then| now.get() - then >= 60_000_000_000)
        {
            exact.pop_front();
        }
        match exact.len() {
            20_000 => denied_by_exact += 1,
            _ => exact.push_back(now.get()),
        }
        assert!(entries_of(&client) <= earrrl::algorithm::sliding_log::DEFAULT_MAX_ENTRIES);
    }
    assert!(
        (7_000..9_000).contains(&denied_by_exact),
        "{denied_by_exact}"
    );
    // Each time that the window is full again, what is sent in a cell of 12 ms comes too early.
    assert!(
        (denied_by_exact..denied_by_exact + 15).contains(&denied),
        "{denied}"
    );
}

/// Exactly those of the last window, however many: what was sent in one cell leaves together.
#[test]
fn a_full_log_on_its_grid() {
    // Of 7 entries 3 are exact; 3 more cells span the window: 20 s each.
    let limit = SlidingLog::new(Cost::from_units(100), Duration::from_secs(60)).unwrap();
    let limit = limit.with_max_entries(7);
    assert_eq!(
        (limit.exact_entries(), limit.grain_nanos()),
        (3, 20_000_000_000)
    );
    let mut client = Client::new(limit.into());
    let at = |secs: u64| Nanos::from_secs(1200 + secs);
    for secs in [0, 1, 2, 3, 4, 19, 20, 39, 40] {
        client.charge(at(secs), Cost::ONE);
    }
    let Some(State::SlidingLog(log)) = &client.state else {
        panic!("no log")
    };
    let entries = log
        .entries()
        .map(|(slot, cost)| (slot / 1_000_000_000 - 1200, cost / 1_000_000_000));
    assert_eq!(
        entries.collect::<Vec<_>>(),
        [(0, 1), (1, 1), (19, 4), (39, 2), (40, 1)]
    );
    // What has been moved is found again by a refund; what was before the oldest is not.
    for (secs, remaining) in [(20, 92), (4, 93), (0, 94), (0, 94), (60, 94)] {
        client.refund(at(41), at(secs), Cost::ONE);
        assert_eq!(
            client.peek(at(41), Cost::ZERO).remaining,
            remaining,
            "{secs}"
        );
    }
}
