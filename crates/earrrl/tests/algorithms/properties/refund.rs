//! A refund undoes a check; it never goes below empty.

use std::time::Duration;

use earrrl::{Cost, Limit, Nanos, Policy};
use proptest::prelude::*;

use super::strategies::{
    cases, costs, exponentials, fixed_windows, histories, memory, sliding_counters,
    sliding_windows, starts,
};
use crate::algorithms::client::{Client, at, close, units};

/// A strict log merges what newer requests outweigh, as a log at its `max_entries` does: that can't
/// be undone.
fn merges(limit: &Limit) -> bool {
    match limit {
        Limit::SlidingLog(log) => {
            limit.policy() == Policy::Strict || log.with_max_entries(10_000) != *log
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(cases(2000))]
    #[test]
    fn undoes_a_check(
        (client, last) in histories(),
        (gap, delay) in (0u64..2_000_000_000, prop_oneof![Just(0.0), 0.0..2.0]),
        cost in costs(),
    ) {
        if matches!(client.limit, Limit::Exponential(_)) || merges(&client.limit) {
            return Ok(());
        }
        let now = Nanos::new(last.get() + gap);
        let later = Nanos::new(now.get() + (delay * memory(&client.limit) as f64) as u64);
        let mut undone = client.clone();
        if undone.ask(now, cost).allowed || client.limit.policy() == Policy::Strict {
            undone.refund(later, now, cost);
        }
        let (found, expected) = (undone.report(later, cost), client.report(later, cost));
        let rates = (found.rate.unwrap_or_default(), expected.rate.unwrap_or_default());
        if let Limit::RecentAverage(limit) = client.limit {
            // What is left of a difference is as exact as the larger of the two.
            let slack = 1e-9 * (rates.1 + cost.as_f64() / limit.period_secs());
            prop_assert!((rates.0 - rates.1).abs() <= slack, "{rates:?}");
        } else {
            prop_assert!(close(rates.0, rates.1, 1e-12), "{rates:?}");
            prop_assert_eq!(found.remaining, expected.remaining);
            prop_assert_eq!(found.retry_after, expected.retry_after);
            prop_assert_eq!(found.reset_after, expected.reset_after);
        }
    }

    /// Counts of windows know their time: what was sent since does not matter.
    #[test]
    fn undoes_what_is_not_the_last_request_of_a_window(
        limit in prop_oneof![
            fixed_windows().prop_map(Limit::from),
            sliding_windows().prop_map(Limit::from),
            sliding_counters().prop_map(Limit::from),
        ],
        (start, delay) in (starts(), 0.0..2.0),
        (refunded, other) in (costs(), costs()),
    ) {
        let later = Nanos::new(start.get() + (delay * memory(&limit) as f64) as u64);
        let (mut with, mut without) = (Client::new(limit), Client::new(limit));
        with.charge(start, refunded);
        with.charge(later, other);
        without.charge(later, other);
        with.refund(later, start, refunded);
        prop_assert_eq!(with.report(later, other), without.report(later, other));
    }

    #[test]
    fn never_goes_below_empty(
        (client, last) in histories(),
        back in prop_oneof![Just(0u64), 0u64..2_000_000_000],
        cost in costs(),
    ) {
        let (mut refunded, mut now) = (client.clone(), last);
        for _ in 0..3 {
            refunded.refund(now, crate::algorithms::client::before(now, back), Cost::from_units(1_000_000));
            refunded.refund(now, crate::algorithms::client::before(now, back), cost);
            now = Nanos::new(now.get() + 1);
        }
        let (new, report) = (Client::new(client.limit).report(now, cost), refunded.report(now, cost));
        prop_assert!(report.rate.unwrap_or_default() >= 0.0);
        prop_assert!(report.remaining <= new.remaining);
        prop_assert!(report.retry_after >= new.retry_after);
    }

    /// What a request added to the moving average is known only approximately.
    #[test]
    fn of_exponential_is_approximate(
        limit in exponentials(),
        (share, old) in (0.0..1.0, 1u64..1000),
        cost in costs(),
    ) {
        let mut client = Client::new(limit.into());
        let start = Nanos::from_secs(1_700_000_000);
        client.charge(start, Cost::from_units(old));
        let now = Nanos::new(start.get() + (share * limit.period_nanos() as f64) as u64);
        let untouched = client.clone();
        client.charge(now, cost);
        client.refund(now, now, cost);
        let rate = |client: &Client| {
            let per_second = client.report(now, Cost::ZERO).rate.unwrap_or_default();
            per_second * limit.period_nanos() as f64 / 1e9
        };
        let (found, expected) = (rate(&client), rate(&untouched));
        prop_assert!(found >= 0.0);
        let off = cost.as_f64() * share / 2.0 + 1e-9 * (expected + cost.as_f64());
        prop_assert!((found - expected).abs() <= off, "{found}, {expected}");
    }
}

#[test]
fn what_is_gone_is_not_refunded() {
    for rule in [
        "fixed-window 5/1m",
        "sliding-log 5/1m",
        "sliding-window 5/1m",
        "sliding-counter 5/1m",
    ] {
        let mut client = Client::of(rule);
        let long_ago = Nanos::from_secs(60);
        let now = Nanos::from_secs(600);
        client.ask(long_ago, Cost::ONE);
        client.ask(now, Cost::ONE);
        client.refund(now, long_ago, Cost::ONE);
        assert_eq!(client.peek(now, Cost::ONE).remaining, 4, "{rule}");
    }
}

/// A client of a server may read its answer's `t0` into a double, and send that back.
#[test]
fn a_time_that_went_through_a_double_finds_its_entry() {
    for nanos in [1, 120, 119_999_881, 123_456_789, 500_000_119, 999_999_881] {
        let now = at(1_800_000_000.0) + Duration::from_nanos(nanos);
        let charged_at = at(now.get() as f64 / 1e9);
        let mut log = Client::of("sliding-log 5/1m");
        log.ask(now, units(1));
        log.ask(now + Duration::from_micros(1), units(2));
        let later = now + Duration::from_secs(1);
        log.refund(later, charged_at, units(1));
        assert_eq!(log.peek(later, units(1)).remaining, 3, "{nanos}");
    }
}

/// A node whose clock is ahead may name a time that has not come yet.
#[test]
fn a_refund_takes_back_no_more_than_was_charged() {
    let now = at(100.0);
    let [present, ahead] = [now, at(160.0)].map(|charged_at| {
        let mut client = Client::of("recent-average 1/s half-life=10s");
        for _ in 0..5 {
            client.ask(now, Cost::ONE);
        }
        client.refund(now, charged_at, Cost::ONE);
        client.report(now, Cost::ZERO).rate.unwrap()
    });
    assert_eq!(present, ahead);
}
