//! Limits from one in ten years to 1e9 a second, half-lives from 1 ms to ten years, costs from 1e-9
//! to 1e15, clocks near 0 and in the year 2200, a hundred years idle: no panic, no wrap, nothing
//! that is not a number, and never an allow where exact arithmetic denies.

use std::time::Duration;

use earrrl::algorithm::{
    Concurrent, Exponential, FixedWindow, RecentAverage, SlidingCounter, SlidingLog, SlidingWindow,
    TokenBucket, sliding_window::Edge,
};
use earrrl::internal::Figures;
use earrrl::{Cost, Limit, Nanos, Policy, Rate};
use proptest::prelude::*;
use proptest::sample::select;

use super::oracle::{Exact, History};
use crate::algorithms::client::Client;

const TEN_YEARS: u64 = 3660 * 86_400 * 1_000_000_000;
const CENTURY: u64 = 10 * TEN_YEARS;

fn cases() -> ProptestConfig {
    let cases = if std::env::var_os("EARRRL_LONG").is_some() {
        200_000
    } else {
        10_000
    };
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_local_rejects: u32::MAX,
        ..ProptestConfig::default()
    }
}

/// A whole number of any magnitude between the two.
fn magnitudes(least: f64, most: f64) -> impl Strategy<Value = u128> {
    let any = (least.ln()..=most.ln()).prop_map(move |x| (x.exp() as u128).max(least as u128));
    prop_oneof![8 => any, 1 => Just(least as u128), 1 => Just(most as u128)]
}

fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        3 => Just(Cost::ONE),
        1 => Just(Cost::ZERO),
        6 => magnitudes(1.0, 1e24).prop_map(Cost::from_billionths),
    ]
}

fn spans() -> impl Strategy<Value = Duration> {
    magnitudes(1e6, TEN_YEARS as f64)
        .prop_map(|nanos| Duration::from_nanos((nanos as u64).clamp(1_000_000, TEN_YEARS)))
}

fn rates() -> impl Strategy<Value = Rate> {
    let extremes = select(vec![
        (1_000_000_000u128, TEN_YEARS),
        (1_000_000_000, 1),
        (1, 1),
    ]);
    let per = magnitudes(1.0, TEN_YEARS as f64).prop_map(|per| (per as u64).min(TEN_YEARS));
    let any = (magnitudes(1.0, 1e27), per);
    prop_oneof![1 => extremes.boxed(), 9 => any.boxed()]
        .prop_filter_map("out of bounds", |(amount, per)| {
            Rate::new(Cost::from_billionths(amount), Duration::from_nanos(per)).ok()
        })
}

fn limits() -> impl Strategy<Value = Limit> {
    let concurrent = (1u64..=100_000, magnitudes(1e6, 8.64e13)).prop_map(|(places, timeout)| {
        Concurrent::new(places, Duration::from_nanos(timeout as u64)).unwrap()
    });
    let quotas = || magnitudes(1.0, 1e26).prop_map(Cost::from_billionths);
    let recent = (rates(), spans())
        .prop_map(|(rate, span)| RecentAverage::with_half_life(rate, span).unwrap());
    let bucket = (quotas(), rates()).prop_filter_map("too slow", |(capacity, rate)| {
        TokenBucket::new(capacity, rate).ok()
    });
    let windows = (0u8..5, quotas(), spans(), 1u64..=10_000, any::<bool>());
    let policies = || select(vec![Policy::Strict, Policy::Leaky]);
    let windowed = (windows, policies()).prop_filter_map(
        "above 1e9",
        |((which, quota, span, parts, lenient), policy)| {
            let edge = if lenient { Edge::Lenient } else { Edge::Harsh };
            Some(match which {
                0 => Limit::from(FixedWindow::new(quota, span).ok()?.with_policy(policy)),
                1 => SlidingLog::new(quota, span)
                    .ok()?
                    .with_policy(policy)
                    .into(),
                2 => {
                    let window = SlidingWindow::new(quota, span)
                        .ok()?
                        .with_sub_windows(parts)
                        .ok()?;
                    window.with_edge(edge).with_policy(policy).into()
                }
                3 => SlidingCounter::new(quota, span)
                    .ok()?
                    .with_policy(policy)
                    .into(),
                _ => Exponential::new(quota, span)
                    .ok()?
                    .with_policy(policy)
                    .into(),
            })
        },
    );
    prop_oneof![
        2 => (recent, policies()).prop_map(|(limit, policy)| limit.with_policy(policy).into()),
        2 => bucket.prop_map(Limit::from),
        4 => windowed,
        1 => concurrent.prop_map(Limit::from),
    ]
}

fn starts() -> impl Strategy<Value = Nanos> {
    let year_2200 = 7_258_118_400_000_000_000;
    prop_oneof![
        Just(Nanos::ZERO),
        (0u64..10).prop_map(Nanos::new),
        (0u64..TEN_YEARS).prop_map(Nanos::new),
        (year_2200..year_2200 + TEN_YEARS).prop_map(Nanos::new),
    ]
}

fn gaps() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(0),
        6 => magnitudes(1.0, TEN_YEARS as f64).prop_map(|gap| gap as u64),
        1 => Just(CENTURY),
    ]
}

fn check_figures(report: &Figures) -> Result<(), TestCaseError> {
    let rate = report.rate.unwrap_or(0.0);
    prop_assert!(rate.is_finite() && rate >= 0.0, "rate {rate}");
    prop_assert!(
        report.limit.is_finite() && report.limit > 0.0,
        "limit {}",
        report.limit
    );
    let wait = report.retry_after.duration().unwrap_or_default();
    prop_assert!(wait < Duration::MAX && report.reset_after < Duration::MAX);
    Ok(())
}

proptest! {
    #![proptest_config(cases())]
    #[test]
    fn is_answered_and_rightly(
        limit in limits(),
        start in starts(),
        requests in proptest::collection::vec((gaps(), costs()), 1..25),
    ) {
        let (mut client, mut history, mut now) = (Client::new(limit), History::default(), start);
        for (gap, cost) in requests {
            now = Nanos::new(now.get().saturating_add(gap));
            let exact = history.verdict(&limit, now, cost);
            let peeked = client.report(now, cost);
            let decision = client.ask(now, cost);
            if exact != Exact::Either && !(History::is_bounded(&limit) && exact == Exact::Allow) {
                prop_assert_eq!(decision.allowed, exact == Exact::Allow, "at {:?}, {:?}", now, cost);
            }
            if decision.allowed || limit.policy() == Policy::Strict {
                history.store(now, cost);
            }
            check_figures(&peeked)?;
            check_figures(&client.report(now, cost))?;
            check_figures(&client.report(Nanos::MAX, Cost::MAX))?;
        }
    }

    /// A wait that ends before the clock does is exact; one that does not says so all the same.
    #[test]
    fn waits_hold(
        limit in limits(),
        start in starts(),
        requests in proptest::collection::vec((gaps(), costs()), 1..12),
        cost in costs(),
    ) {
        let (mut client, mut now) = (Client::new(limit), start);
        for (gap, cost) in requests {
            now = Nanos::new(now.get().saturating_add(gap));
            client.ask(now, cost);
        }
        let report = client.report(now, cost);
        let Some(wait) = report.retry_after.duration() else {
            prop_assert!(!client.peek(Nanos::MAX, cost).allowed);
            return Ok(());
        };
        let haze = match limit {
            // Where a nanosecond is less than doubles tell.
            Limit::Exponential(limit) => (limit.period_nanos() as f64 * 1e-14) as u64 + 1,
            _ => 0,
        };
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        if let Some(end) = now.get().checked_add(nanos).and_then(|end| end.checked_add(haze)) {
            prop_assert!(client.peek(Nanos::new(end), cost).allowed, "denied after {wait:?}");
        }
        if nanos > haze + 1 {
            let before = now.get().saturating_add(nanos - haze - 1);
            prop_assert!(!client.peek(Nanos::new(before), cost).allowed, "before {wait:?}");
        }
    }

    #[test]
    fn refunds_of_anything_are_harmless(
        limit in limits(),
        start in starts(),
        requests in proptest::collection::vec((gaps(), costs()), 1..12),
        back in gaps(),
    ) {
        let (mut client, mut now) = (Client::new(limit), start);
        for (gap, cost) in requests {
            now = Nanos::new(now.get().saturating_add(gap));
            client.charge(now, cost);
            check_figures(&client.report(now, cost))?;
            let charged_at = Nanos::new(now.get().saturating_sub(back));
            client.refund(now, charged_at, cost);
            client.charge(now, cost);
        }
    }
}

#[test]
fn every_algorithm_is_taken_to_extremes() {
    crate::algorithms::properties::strategies::assert_whole(limits(), "extremes/whatever.rs");
}
