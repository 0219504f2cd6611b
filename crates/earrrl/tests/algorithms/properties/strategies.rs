//! Limits of every algorithm with everyday parameters, and what clients may send under them.

use std::time::Duration;

use earrrl::algorithm::{
    Concurrent, Exponential, FixedWindow, RecentAverage, SlidingCounter, SlidingLog, SlidingWindow,
    TokenBucket, sliding_window::Edge,
};
use earrrl::{Cost, Limit, Mode, Nanos, Policy, Rate, Rule};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;

use crate::algorithms::client::{Client, cost};

/// Cases of a property: more of them where `EARRRL_LONG` is set.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let times = if std::env::var_os("EARRRL_LONG").is_some() {
        50
    } else {
        1
    };
    ProptestConfig {
        cases: usual * times,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub(crate) fn rates() -> impl Strategy<Value = Rate> {
    let amounts = select(vec![
        "0.1", "0.5", "1", "2", "3", "7", "60", "600", "1000", "1234.5",
    ]);
    (amounts, spans()).prop_map(|(amount, per)| Rate::new(cost(amount), per).unwrap())
}

pub(crate) fn spans() -> impl Strategy<Value = Duration> {
    let millis = [
        1, 10, 250, 1_000, 10_000, 60_000, 90_000, 3_600_000, 86_400_000,
    ];
    select(millis.map(Duration::from_millis).to_vec())
}

pub(crate) fn quotas() -> impl Strategy<Value = Cost> {
    let few = select(vec!["0.3", "1", "2", "3", "5", "5.5", "10", "60", "100"]).prop_map(cost);
    prop_oneof![
        few,
        (1u64..1_000_000_000_000).prop_map(|b| Cost::from_billionths(b.into()))
    ]
}

pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    select(vec![Policy::Strict, Policy::Leaky])
}

pub(crate) fn recent_averages() -> impl Strategy<Value = RecentAverage> {
    (rates(), spans(), any::<bool>(), policies()).prop_map(|(rate, span, half, policy)| {
        let build = if half {
            RecentAverage::with_half_life
        } else {
            RecentAverage::with_period
        };
        build(rate, span).unwrap().with_policy(policy)
    })
}

pub(crate) fn exponentials() -> impl Strategy<Value = Exponential> {
    (quotas(), spans(), policies()).prop_map(|(quota, span, policy)| {
        Exponential::new(quota, span).unwrap().with_policy(policy)
    })
}

pub(crate) fn token_buckets() -> impl Strategy<Value = TokenBucket> {
    (quotas(), rates()).prop_map(|(capacity, refill)| TokenBucket::new(capacity, refill).unwrap())
}

pub(crate) fn fixed_windows() -> impl Strategy<Value = FixedWindow> {
    (quotas(), spans(), policies()).prop_map(|(quota, span, policy)| {
        FixedWindow::new(quota, span).unwrap().with_policy(policy)
    })
}

pub(crate) fn sliding_logs() -> impl Strategy<Value = SlidingLog> {
    (quotas(), spans(), policies(), select(vec![1, 3, 8, 10_000])).prop_map(
        |(quota, span, policy, entries)| {
            let log = SlidingLog::new(quota, span).unwrap();
            log.with_policy(policy).with_max_entries(entries)
        },
    )
}

pub(crate) fn sliding_windows() -> impl Strategy<Value = SlidingWindow> {
    let edges = select(vec![Edge::Harsh, Edge::Lenient]);
    (
        quotas(),
        spans(),
        policies(),
        edges,
        proptest::option::of(1u64..100),
    )
        .prop_map(|(quota, span, policy, edge, parts)| {
            let window = SlidingWindow::new(quota, span).unwrap();
            let parts = parts.unwrap_or(window.sub_windows());
            window
                .with_sub_windows(parts)
                .unwrap()
                .with_edge(edge)
                .with_policy(policy)
        })
}

pub(crate) fn sliding_counters() -> impl Strategy<Value = SlidingCounter> {
    (quotas(), spans(), policies()).prop_map(|(quota, span, policy)| {
        SlidingCounter::new(quota, span)
            .unwrap()
            .with_policy(policy)
    })
}

pub(crate) fn concurrent_limits() -> impl Strategy<Value = Concurrent> {
    (1u64..100, spans()).prop_map(|(places, timeout)| Concurrent::new(places, timeout).unwrap())
}

/// Any limit.
pub(crate) fn limits() -> impl Strategy<Value = Limit> {
    prop_oneof![
        recent_averages().prop_map(Limit::from),
        exponentials().prop_map(Limit::from),
        token_buckets().prop_map(Limit::from),
        fixed_windows().prop_map(Limit::from),
        fixed_windows().prop_map(|limit| limit.starting_with_first().into()),
        sliding_logs().prop_map(Limit::from),
        sliding_windows().prop_map(Limit::from),
        sliding_counters().prop_map(Limit::from),
        concurrent_limits().prop_map(Limit::from),
    ]
}

pub(crate) fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        4 => Just(Cost::ONE),
        2 => select(vec!["0.1", "0.5", "2", "5", "0.000000001"]).prop_map(cost),
        1 => (1u64..20_000_000_000).prop_map(|b| Cost::from_billionths(b.into())),
    ]
}

/// The time that one unit of cost takes at the limit's rate, in nanoseconds.
pub(crate) fn unit_time(limit: &Limit) -> f64 {
    1e9 / limit
        .step(None, Nanos::ZERO, Cost::ZERO, Mode::Peek)
        .2
        .limit
}

/// The time in which a client's past stops to count, in nanoseconds.
pub(crate) fn memory(limit: &Limit) -> u64 {
    match limit {
        Limit::RecentAverage(limit) => (limit.period_secs() * 1e9) as u64,
        Limit::Exponential(limit) => limit.period_nanos(),
        Limit::TokenBucket(limit) => (limit.fill_secs() * 1e9) as u64,
        Limit::FixedWindow(limit) => limit.window_nanos(),
        Limit::SlidingLog(limit) => limit.window_nanos(),
        Limit::SlidingWindow(limit) => limit.window_nanos(),
        Limit::SlidingCounter(limit) => limit.window_nanos(),
        Limit::Concurrent(limit) => limit.timeout_nanos(),
        _ => 1_000_000_000,
    }
}

/// Requests of a client: how long after the one before (as a share of the time that its cost takes
/// at the rate allowed, or of the time that the past counts), and the cost.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    gap: Gap,
    pub(crate) cost: Cost,
}

#[derive(Clone, Debug)]
enum Gap {
    None,
    OfUnit(f64),
    OfMemory(f64),
}

pub(crate) fn requests(most: usize) -> impl Strategy<Value = Vec<Request>> {
    let gap = prop_oneof![
        2 => Just(Gap::None),
        4 => (0.0..2.0).prop_map(Gap::OfUnit),
        2 => select(vec![0.5, 1.0, 2.0]).prop_map(Gap::OfUnit),
        1 => (0.0..2.5).prop_map(Gap::OfMemory),
        1 => select(vec![0.5, 1.0, 2.0, 100.0]).prop_map(Gap::OfMemory),
    ];
    let request = (gap, costs()).prop_map(|(gap, cost)| Request { gap, cost });
    proptest::collection::vec(request, 0..=most)
}

impl Request {
    /// The nanoseconds after the request before it: not more than ten years.
    fn gap(&self, limit: &Limit) -> u64 {
        let gap = match self.gap {
            Gap::None => 0,
            Gap::OfUnit(share) => (share * self.cost.as_f64() * unit_time(limit)) as u64,
            Gap::OfMemory(share) => (share * memory(limit) as f64) as u64,
        };
        gap.min(315_360_000_000_000_000)
    }

    pub(crate) fn after(&self, now: Nanos, limit: &Limit) -> Nanos {
        Nanos::new(now.get().saturating_add(self.gap(limit)))
    }
}

/// Some instant of our time, not on any boundary in particular.
pub(crate) fn starts() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        Just(Nanos::from_secs(1_700_000_000)),
        (0u64..10_000_000_000).prop_map(Nanos::new),
        (1_700_000_000_000_000_000u64..1_800_000_000_000_000_000).prop_map(Nanos::new),
    ]
}

/// A client after some requests, and the time of the last.
pub(crate) fn histories() -> impl Strategy<Value = (Client, Nanos)> {
    (limits(), starts(), requests(30)).prop_map(|(limit, start, requests)| {
        let mut client = Client::new(limit);
        let mut now = start;
        for request in requests {
            now = request.after(now, &limit);
            client.ask(now, request.cost);
        }
        (client, now)
    })
}

/// Fails with the names of the algorithms that a strategy never gives.
pub(crate) fn assert_whole(limits: impl Strategy<Value = Limit>, what: &str) {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut missing: std::collections::BTreeSet<&str> = earrrl::internal::algorithms().collect();
    for _ in 0..2000 {
        let limit = limits.new_tree(&mut runner).unwrap().current();
        let text = Rule::from(limit).to_string();
        missing.remove(text.split(' ').next().unwrap_or_default());
    }
    assert!(missing.is_empty(), "{what} never tries {missing:?}");
}

#[test]
fn every_algorithm_has_its_properties_tested() {
    assert_whole(limits(), "properties/strategies.rs");
}
