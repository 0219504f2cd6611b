//! A changed limit keeps every client's history.

use earrrl::algorithm::sliding_window::Edge;
use earrrl::{Cost, Limit, Nanos, State};
use proptest::prelude::*;

use super::strategies::{
    cases, exponentials, fixed_windows, recent_averages, requests, sliding_counters, sliding_logs,
    sliding_windows, starts, token_buckets,
};
use crate::algorithms::client::{Client, close};

/// Two limits of one algorithm.
fn pairs() -> impl Strategy<Value = (Limit, Limit)> {
    prop_oneof![
        (recent_averages(), recent_averages()).prop_map(|(a, b)| (a.into(), b.into())),
        (exponentials(), exponentials()).prop_map(|(a, b)| (a.into(), b.into())),
        (token_buckets(), token_buckets()).prop_map(|(a, b)| (a.into(), b.into())),
        (fixed_windows(), fixed_windows()).prop_map(|(a, b)| (a.into(), b.into())),
        (sliding_counters(), sliding_counters()).prop_map(|(a, b)| (a.into(), b.into())),
    ]
}

/// What a conversion keeps: a rate, a balance, or a count.
fn kept(client: &Client, now: Nanos) -> f64 {
    let rate = client.report(now, Cost::ZERO).rate.unwrap_or_default();
    match (&client.limit, &client.state) {
        (Limit::TokenBucket(limit), Some(State::TokenBucket(full_at))) => {
            limit.balance(Some(full_at), now)
        }
        (Limit::TokenBucket(limit), _) => limit.balance(None, now),
        (Limit::FixedWindow(limit), _) => rate * limit.window_nanos() as f64 / 1e9,
        (Limit::SlidingCounter(limit), _) => rate * limit.window_nanos() as f64 / 1e9,
        _ => rate,
    }
}

proptest! {
    #![proptest_config(cases(1000))]
    #[test]
    fn keeps_rates_balances_and_counts(
        (old, new) in pairs(), start in starts(), requests in requests(20), gap in 0u64..1 << 32,
    ) {
        let (mut client, mut now) = (Client::new(old), start);
        for request in &requests {
            now = request.after(now, &old);
            client.ask(now, request.cost);
        }
        let now = Nanos::new(now.get() + gap);
        let state = client.state.clone().and_then(|state| new.convert(&old, state, now));
        let changed = Client { limit: new, state };
        let (was, is) = (kept(&client, now), kept(&changed, now));
        let was = match new {
            // A pool that was full under the old capacity is full; no more than the new one fits.
            Limit::TokenBucket(_) if client.state.is_none() => return Ok(()),
            Limit::TokenBucket(limit) => was.min(limit.capacity().as_f64()),
            _ => was,
        };
        let step = match new {
            // Balances are kept to a tick, in which a fast pool refills more than 1e-9.
            Limit::TokenBucket(limit) => limit.capacity().as_f64() / limit.full_ticks() as f64,
            // Both counts have the decimals that fit beside the quota, in at least 19 bits.
            Limit::SlidingCounter(limit) => 20.0 * was.max(limit.quota().as_f64()) / 524_286.0,
            _ => 0.0,
        };
        let near = (was - is).abs() < 1e-9 + step;
        prop_assert!(close(was, is, 1e-9) || near, "{was} became {is}");
    }

    /// The counts of sub-windows go where they leave no earlier than they should.
    #[test]
    fn harsh_sub_windows_admit_no_more_across_a_change_of_their_number(
        limit in sliding_windows(), parts in 1u64..100, start in starts(),
        (before, after) in (requests(40), requests(40)),
    ) {
        let limit = limit.with_edge(Edge::Harsh);
        let changed: Limit = limit.with_sub_windows(parts).unwrap().into();
        let (mut client, mut now, mut admitted) = (Client::new(limit.into()), start, vec![]);
        for request in &before {
            now = request.after(now, &client.limit);
            if client.ask(now, request.cost).allowed {
                admitted.push((now.get(), request.cost.billionths()));
            }
        }
        let state = client.state.take().and_then(|s| changed.convert(&client.limit, s, now));
        let mut client = Client { limit: changed, state };
        for request in &after {
            now = request.after(now, &client.limit);
            if client.ask(now, request.cost).allowed {
                admitted.push((now.get(), request.cost.billionths()));
            }
        }
        for (t, _) in &admitted {
            let recent = admitted.iter().filter(|(u, _)| u <= t && t - u < limit.window_nanos());
            let sum: u128 = recent.map(|(_, cost)| cost).sum();
            prop_assert!(sum <= limit.quota().billionths());
        }
    }

    #[test]
    fn logs_keep_what_is_in_the_new_window(
        (old, new) in (sliding_logs(), sliding_logs()), start in starts(), requests in requests(20),
    ) {
        let (old, new): (Limit, Limit) = (old.into(), new.into());
        let (mut client, mut now) = (Client::new(old), start);
        for request in &requests {
            now = request.after(now, &old);
            client.ask(now, request.cost);
        }
        let entries = |state: &Option<State>| match state {
            Some(State::SlidingLog(log)) => log.entries().collect::<Vec<_>>(),
            _ => vec![],
        };
        let (Limit::SlidingLog(old_log), Limit::SlidingLog(new_log)) = (old, new) else {
            return Ok(());
        };
        let window = old_log.window_nanos().max(new_log.window_nanos());
        let known = entries(&client.state);
        let state = client.state.and_then(|state| new.convert(&old, state, now));
        let in_new = |(t, _): &(u64, u128)| now.get() - t < new_log.window_nanos();
        let expected: Vec<_> = known.iter().copied().filter(in_new).collect();
        prop_assert!(known.iter().all(|(t, _)| now.get() - t < window));
        if expected.len() <= new_log.max_entries() {
            prop_assert_eq!(entries(&state), expected);
        } else {
            let sum = |entries: &[(u64, u128)]| entries.iter().map(|(_, cost)| cost).sum::<u128>();
            prop_assert_eq!(sum(&entries(&state)), sum(&expected));
            prop_assert!(entries(&state).len() <= new_log.max_entries());
        }
    }
}

#[test]
fn another_algorithm_starts_anew() {
    let limit = |rule: &str| Client::of(rule).limit;
    let mut client = Client::of("token-bucket 60 refill=1/s");
    client.ask(Nanos::from_secs(1), Cost::ONE);
    let new = limit("recent-average 1/s half-life=10s");
    let state = client.state.unwrap();
    assert_eq!(new.convert(&client.limit, state, Nanos::from_secs(1)), None);
}
