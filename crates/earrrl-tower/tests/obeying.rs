//! Clients that obey the headers are served, through the real layer, whatever the algorithm.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use crate::support::{Counting, ask, available, engine, layer, number, request};
use earrrl::{ManualClock, Rule};
use earrrl_tower::{ClientAddress, RequestRule};
use http::{HeaderMap, StatusCode};
use tower::Layer;

/// Requests of each client under each rule; with 3 clients and 14 rules a million in all.
const REQUESTS: u32 = 24_000;

/// Rates from a thousand a second to one in an hour; bursts of a second and more, but for the last.
const RULES: [&str; 14] = [
    "gcra 1000/s burst=1000",
    "gcra 1/1h burst=3",
    "token-bucket 60 refill=1/s",
    "credit-pool 100 refill=1/m",
    "recent-average 1/s half-life=10s",
    "recent-average 200/s period=1m strict",
    "recent-average 2/s half-life=1h leaky",
    "exponential 60/1m",
    "fixed-window 60/1m",
    "sliding-log 60/1m",
    "sliding-log 5/1h strict",
    "sliding-window 600/1h",
    "sliding-counter 100/10s",
    "gcra 10/s burst=1",
];

/// The responses that a client got under one rule.
#[derive(Default)]
struct Seen {
    served: u32,
    denied: u32,
    in_a_row: u32,
    longest_row: u32,
}

/// Sends requests; after each, waits for the time that `wait` reads from the response.
fn run(text: &str, mut wait: impl FnMut(&HeaderMap, StatusCode) -> Duration) -> (Seen, Duration) {
    let (engine, clock) = engine();
    let rule: Rule = text.parse().unwrap();
    let rules = [RequestRule::new("rule", rule, ClientAddress::default())];
    let mut service = layer(&engine, rules).layer(Counting::default());
    let started = earrrl::Clock::now(&*clock);
    let mut seen = Seen::default();
    for _ in 0..REQUESTS {
        let response = ask(&mut service, request("192.0.2.7", &[]));
        if response.status() == StatusCode::OK {
            (seen.served, seen.in_a_row) = (seen.served + 1, 0);
        } else {
            (seen.denied, seen.in_a_row) = (seen.denied + 1, seen.in_a_row + 1);
            seen.longest_row = seen.longest_row.max(seen.in_a_row);
        }
        ManualClock::advance(&clock, wait(response.headers(), response.status()));
    }
    (seen, earrrl::Clock::now(&*clock).since(started))
}

/// Returns the share of the rule's rate that a client used.
fn share(text: &str, seen: &Seen, elapsed: Duration) -> f64 {
    let rule: Rule = text.parse().unwrap();
    let quota = earrrl::Quota::of(rule.limit());
    let state = rule.limit().decide(
        None,
        earrrl::Nanos::ZERO,
        earrrl::Cost::ONE,
        earrrl::Mode::Peek,
    );
    // The burst at the beginning is left out.
    let earned = state.1.limit * elapsed.as_secs_f64();
    f64::from(seen.served) / earned.max(quota.units as f64)
}

#[test]
fn one_that_waits_retry_after_is_never_denied_twice_in_a_row() {
    for text in RULES {
        let mut waited = (Duration::MAX, Duration::ZERO);
        let (seen, _) = run(text, |headers, status| {
            if status == StatusCode::OK {
                return Duration::ZERO;
            }
            let wait = Duration::from_secs(number(headers, "retry-after").unwrap());
            assert_eq!(
                available(headers),
                Some((0, Some(wait.as_secs()))),
                "{text}"
            );
            waited = (waited.0.min(wait), waited.1.max(wait));
            wait
        });
        assert_eq!(
            seen.longest_row, 1,
            "{text}: {} of {} denied",
            seen.denied, seen.served
        );
        assert!(waited.0 >= Duration::from_secs(1), "{text}: {waited:?}");
    }
}

#[test]
fn one_that_paces_itself_is_never_denied() {
    for text in RULES {
        let (seen, elapsed) = run(text, |headers, _| match available(headers) {
            Some((0, Some(t))) => Duration::from_secs(t),
            Some((r, Some(t))) => Duration::from_secs(t).div_f64(r as f64),
            told => panic!("{text}: {told:?}"),
        });
        assert_eq!(seen.denied, 0, "{text}");
        let share = share(text, &seen, elapsed);
        // `t` has whole seconds, rounded up. At ten requests a second, this may cost a sixth of the limit.
        assert!(share > 0.83 || text.ends_with("burst=1"), "{text}: {share}");
    }
}

#[test]
fn one_that_sends_all_at_once_and_rests_is_never_denied() {
    for text in RULES {
        let (seen, elapsed) = run(text, |headers, _| match available(headers) {
            Some((0, Some(t))) => Duration::from_secs(t),
            Some((_, Some(_))) => Duration::ZERO,
            told => panic!("{text}: {told:?}"),
        });
        assert_eq!(seen.denied, 0, "{text}");
        let share = share(text, &seen, elapsed);
        assert!(
            share > 0.899 || text.ends_with("burst=1"),
            "{text}: {share}"
        );
    }
}
