//! A commit leaves the state that a charge of the actual cost would have left, or less quota.

use earrrl::algorithm::{State, TokenBucket};
use earrrl::internal::Held;
use earrrl::{Cost, Limit, Mode, Nanos};
use proptest::prelude::*;
use proptest::sample::select;

use super::strategies::{
    Request, cases, costs, fixed_windows, histories, limits, memory, recent_averages, requests,
    sliding_counters, sliding_windows, starts, token_buckets,
};
use crate::algorithms::client::{Client, close, cost};

/// Charges an estimate, whatever the verdict, and returns its reservation.
fn hold(client: &mut Client, at: Nanos, estimate: Cost) -> Held {
    let (state, _, figures) = client
        .limit
        .step(client.state.take(), at, estimate, Mode::Charge);
    client.state = state;
    Held::new(at, estimate, figures.reset_after)
}

fn commit(client: &mut Client, now: Nanos, held: &Held, actual: Cost) {
    client.state = client.limit.commit(client.state.take(), now, held, actual);
}

/// Charges the requests one after the other, and returns the time of the last.
fn charge_all(client: &mut Client, start: Nanos, requests: &[Request]) -> Nanos {
    requests.iter().fold(start, |now, request| {
        let now = request.after(now, &client.limit);
        client.charge(now, request.cost);
        now
    })
}

fn charge(client: &mut Client, now: Nanos, cost: Cost) {
    if !cost.is_zero() {
        client.charge(now, cost);
    }
}

fn counting() -> impl Strategy<Value = Limit> {
    prop_oneof![
        fixed_windows().prop_map(Limit::from),
        sliding_windows().prop_map(Limit::from),
        sliding_counters().prop_map(Limit::from),
    ]
}

/// Costs of a reservation and of what it turns out to be, 0 among them.
fn actual_costs() -> impl Strategy<Value = Cost> {
    prop_oneof![1 => Just(Cost::ZERO), 4 => costs()]
}

fn after(now: Nanos, limit: &Limit, share: f64) -> Nanos {
    Nanos::new(now.get() + (share * memory(limit) as f64) as u64)
}

fn count(client: &Client, now: Nanos) -> f64 {
    client.report(now, Cost::ONE).rate.unwrap_or_default()
}

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn of_the_estimate_leaves_the_state_of_a_check(
        (mut client, now) in histories(), cost in costs(), later in requests(5),
    ) {
        let mut checked = client.clone();
        // A commit under concurrent gives its places back, whatever the cost.
        if !checked.ask(now, cost).allowed || client.limit.is_concurrent() {
            return Ok(());
        }
        let held = hold(&mut client, now, cost);
        charge_all(&mut checked, now, &later);
        let now = charge_all(&mut client, now, &later);
        commit(&mut client, now, &held, cost);
        prop_assert_eq!(client.state, checked.state);
    }

    /// A cost of 0 is among the actual costs: the client then never asked.
    #[test]
    fn of_a_window_leaves_the_state_of_the_actual_cost(
        limit in counting(),
        (before, later) in (requests(10), requests(10)),
        (start, share) in (starts(), 0.0..2.0),
        (estimate, actual) in (costs(), actual_costs()),
    ) {
        let mut exact = Client::new(limit);
        let at = charge_all(&mut exact, start, &before);
        let mut client = exact.clone();
        charge(&mut exact, at, actual);
        let held = hold(&mut client, at, estimate);
        charge_all(&mut exact, at, &later);
        let now = after(charge_all(&mut client, at, &later), &limit, share);
        commit(&mut client, now, &held, actual);
        prop_assert_eq!(client.report(now, estimate), exact.report(now, estimate));
    }

    /// While the log has never held more than the quota, and so has dropped nothing.
    #[test]
    fn of_a_log_leaves_the_state_of_the_actual_cost(
        (start, share) in (starts(), 0.0..1.5),
        (estimate, actual) in (costs(), actual_costs()),
        (before, later) in (requests(10), requests(10)),
        max_entries in select(vec![3, 8, 10_000]),
    ) {
        let Limit::SlidingLog(log) = Client::of("sliding-log 1000/1m").limit else {
            unreachable!("the rule is a sliding log");
        };
        let limit = Limit::from(log.with_max_entries(max_entries));
        let mut exact = Client::new(limit);
        let at = charge_all(&mut exact, start, &before);
        let mut client = exact.clone();
        charge(&mut exact, at, actual);
        let held = hold(&mut client, at, estimate);
        charge_all(&mut exact, at, &later);
        let now = after(charge_all(&mut client, at, &later), &limit, share);
        commit(&mut client, now, &held, actual);
        let (found, expected) = (client.report(now, estimate), exact.report(now, estimate));
        if max_entries == 10_000 {
            prop_assert_eq!(found, expected);
        } else {
            let entries = match &client.state {
                Some(State::SlidingLog(log)) => log.entries().len(),
                _ => 0,
            };
            prop_assert!(entries <= max_entries);
        }
    }

    #[test]
    fn of_a_recent_average_leaves_the_rate_of_the_actual_cost(
        limit in recent_averages(),
        (before, later) in (requests(10), requests(10)),
        (start, share) in (starts(), 0.0..2.0),
        (estimate, actual) in (costs(), actual_costs()),
    ) {
        let mut exact = Client::new(limit.into());
        let at = charge_all(&mut exact, start, &before);
        let mut client = exact.clone();
        charge(&mut exact, at, actual);
        let held = hold(&mut client, at, estimate);
        charge_all(&mut exact, at, &later);
        let now = after(charge_all(&mut client, at, &later), &limit.into(), share);
        let largest = count(&client, now);
        commit(&mut client, now, &held, actual);
        let (found, expected) = (count(&client, now), count(&exact, now));
        let slack = 1e-9 * largest.max(expected).max(1.0 / limit.period_secs());
        prop_assert!((found - expected).abs() <= slack, "{found} {expected}");
    }

    /// Equal until the bucket could be full again, and where nothing else was charged. Engines reserve
    /// only what fits; a larger estimate may be given back in part.
    #[test]
    fn of_a_bucket_never_raises_it_above_the_level_of_the_actual_cost(
        limit in token_buckets(),
        (before, later) in (requests(10), requests(10)),
        (start, share) in (starts(), 0.0..1.5),
        (estimate, actual) in (costs(), actual_costs()),
    ) {
        let mut exact = Client::new(limit.into());
        let at = charge_all(&mut exact, start, &before);
        let mut client = exact.clone();
        charge(&mut exact, at, actual);
        let held = hold(&mut client, at, estimate);
        let fits = fits(&client, &limit, at);
        let full_in = missing(&exact, at).min(missing(&client, at)) / TokenBucket::TICKS_PER_NANO;
        let now = charge_all(&mut client, at, &later);
        charge_all(&mut exact, at, &later);
        let now = after(now, &limit.into(), share);
        commit(&mut client, now, &held, actual);
        let (found, expected) = (missing(&client, now), missing(&exact, now));
        prop_assert!(found >= expected, "{found} {expected}");
        let is_early = i128::from(now.get() - at.get()) < full_in;
        let nanosecond = TokenBucket::TICKS_PER_NANO;
        if fits && (is_early || later.is_empty() && actual <= estimate) {
            prop_assert!(found <= expected + nanosecond, "{found} {expected}");
        }
    }

    /// The first charge is not refilled before the last commit, so the bucket is never full. Estimates that
    /// do not fit are not reserved.
    #[test]
    fn of_a_bucket_that_is_never_full_leave_the_state_of_the_actual_costs_in_any_order(
        limit in token_buckets(),
        start in starts(),
        held in proptest::collection::vec((costs(), actual_costs(), 0.0..0.15), 1..6),
        order in Just((0..6usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let mut client = Client::new(limit.into());
        let most = limit.capacity().billionths() * 4 / 5;
        client.charge(start, Cost::from_billionths(most));
        let (mut exact, mut now, mut all) = (client.clone(), start, Vec::new());
        for (estimate, actual, share) in held {
            now = after(now, &limit.into(), share);
            let before = client.clone();
            let held = hold(&mut client, now, estimate);
            if !fits(&client, &limit, now) {
                client = before;
                continue;
            }
            all.push((held, actual));
            charge(&mut exact, now, actual);
        }
        for (held, actual) in order.iter().filter_map(|place| all.get(*place)) {
            commit(&mut client, now, held, *actual);
        }
        prop_assert_eq!(client.state, exact.state);
    }

    /// The log never holds more than its quota, and so drops nothing.
    #[test]
    fn of_a_log_in_any_order_leave_the_state_of_the_actual_costs(
        start in starts(),
        held in proptest::collection::vec((costs(), actual_costs(), 0.0..0.5), 1..6),
        order in Just((0..6usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let mut client = Client::of("sliding-log 1000000/1m");
        let (mut exact, mut now, mut all) = (client.clone(), start, Vec::new());
        for (estimate, actual, share) in held {
            now = after(now, &client.limit, share);
            all.push((hold(&mut client, now, estimate), actual));
            charge(&mut exact, now, actual);
        }
        for (held, actual) in order.iter().filter_map(|place| all.get(*place)) {
            commit(&mut client, now, held, *actual);
        }
        prop_assert_eq!(client.report(now, Cost::ONE), exact.report(now, Cost::ONE));
    }

    /// A bucket that was full in between, and an exponential average, depend on the order.
    #[test]
    fn in_any_order_leave_the_same_state(
        limit in prop_oneof![counting(), recent_averages().prop_map(Limit::from)],
        start in starts(),
        held in proptest::collection::vec((costs(), actual_costs(), 0.0..0.5), 1..6),
        order in Just((0..6usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let (mut client, mut now, mut all) = (Client::new(limit), start, Vec::new());
        for (estimate, actual, share) in held {
            now = after(now, &limit, share);
            all.push((hold(&mut client, now, estimate), actual));
        }
        let mut other = client.clone();
        all.iter().for_each(|(held, actual)| commit(&mut client, now, held, *actual));
        for (held, actual) in order.iter().filter_map(|place| all.get(*place)) {
            commit(&mut other, now, held, *actual);
        }
        let (one, two) = (client.report(now, Cost::ONE), other.report(now, Cost::ONE));
        if let Limit::RecentAverage(limit) = limit {
            let rates = (count(&client, now), count(&other, now));
            let slack = 1e-8 * rates.0.max(30.0 / limit.period_secs());
            prop_assert!((rates.0 - rates.1).abs() <= slack, "{rates:?}");
        } else {
            prop_assert_eq!(one, two);
        }
    }

    #[test]
    fn never_frees_more_than_was_reserved(
        (mut client, now) in histories(), share in 0.0..2.0,
        (estimate, actual) in (costs(), actual_costs()),
    ) {
        let held = hold(&mut client, now, estimate);
        let now = after(now, &client.limit, share);
        let before = client.report(now, Cost::ONE).remaining;
        commit(&mut client, now, &held, actual);
        let freed = client.report(now, Cost::ONE).remaining.saturating_sub(before);
        prop_assert!(freed as f64 <= estimate.as_f64().ceil() + 1.0, "{freed}");
        let new = Client::new(client.limit).report(now, Cost::ONE);
        prop_assert!(client.report(now, Cost::ONE).remaining <= new.remaining);
    }

    /// Nothing else is charged, so the bound of the documentation is the difference of the costs.
    #[test]
    fn of_an_exponential_average_is_within_the_difference(
        (limit, start) in (limits(), starts()), share in 0.0..2.0,
        (estimate, actual) in (costs(), actual_costs()),
    ) {
        let Limit::Exponential(exponential) = limit else { return Ok(()) };
        let (mut client, mut exact) = (Client::new(limit), Client::new(limit));
        client.charge(start, Cost::from_units(5));
        exact.charge(start, Cost::from_units(5));
        let now = after(start, &limit, share);
        let held = hold(&mut client, now, estimate);
        charge(&mut exact, now, actual);
        commit(&mut client, now, &held, actual);
        let period = exponential.period_nanos() as f64 / 1e9;
        let rate = |client: &Client| {
            client.report(now, Cost::ZERO).rate.unwrap_or_default() * period
        };
        let (found, expected) = (rate(&client), rate(&exact));
        let apart = (estimate.as_f64() - actual.as_f64()).abs();
        let bound = apart + 1e-9 * (expected + estimate.as_f64());
        prop_assert!((found - expected).abs() <= bound, "{found} {expected} {apart}");
    }
}

/// Returns the ticks until the bucket is full.
fn missing(client: &Client, now: Nanos) -> i128 {
    let now = i128::from(now.get()) * TokenBucket::TICKS_PER_NANO;
    match &client.state {
        Some(State::TokenBucket(full_at)) => (full_at.0 - now).max(0),
        _ => 0,
    }
}

/// Returns true if a bucket has no debt.
fn fits(client: &Client, limit: &TokenBucket, now: Nanos) -> bool {
    missing(client, now) <= limit.price(limit.capacity())
}

/// A client that reserves, waits until its bucket is full, spends it and then releases has no more
/// than its rate.
#[test]
fn a_release_after_the_bucket_was_full_gives_nothing_back() {
    let mut client = Client::of("token-bucket 100 refill=1/s");
    let start = Nanos::from_secs(1_000);
    let all = cost("100");
    let held = hold(&mut client, start, all);
    let full = Nanos::from_secs(1_100);
    assert!(client.ask(full, all).allowed);
    commit(&mut client, full, &held, Cost::ZERO);
    assert_eq!(client.peek(full, Cost::ONE).remaining, 0);
}

#[test]
fn above_the_estimate_is_debt() {
    for rule in [
        "token-bucket 100 refill=1/s",
        "fixed-window 100/1d",
        "sliding-log 100/1d",
    ] {
        let mut client = Client::of(rule);
        let start = Nanos::from_secs(86_400 * 1000);
        let held = hold(&mut client, start, cost("60"));
        commit(&mut client, start, &held, cost("130"));
        let wait = client
            .peek(start, Cost::ONE)
            .retry_after
            .duration()
            .map(|wait| wait.as_secs_f64());
        assert!(wait.is_some_and(|wait| wait >= 31.0), "{rule}: {wait:?}");
    }
}

#[test]
fn an_ended_window_is_not_corrected() {
    for rule in [
        "fixed-window 100/1m",
        "sliding-counter 100/1m",
        "sliding-log 100/1m",
    ] {
        let mut client = Client::of(rule);
        let held = hold(&mut client, Nanos::from_secs(60), cost("60"));
        let now = Nanos::from_secs(600);
        client.charge(now, cost("10"));
        for actual in ["0", "60.5", "1000"] {
            commit(&mut client, now, &held, cost(actual));
            assert!(
                close(client.peek(now, Cost::ONE).remaining as f64, 90.0, 0.0),
                "{rule}"
            );
        }
    }
}
