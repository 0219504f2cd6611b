//! Fixed windows that begin with a client's first request (`start=first`).

use std::time::Duration;

use earrrl::algorithm::{Algorithm, FixedWindow, fixed_window::Count};
use earrrl::{Cost, Limit, Nanos, Rule};

use crate::algorithms::client::Client;

fn at(millis: u64) -> Nanos {
    Nanos::new(1_800_000_000_123_000_000 + millis * 1_000_000)
}

fn limit(text: &str) -> FixedWindow {
    let rule: Rule = text.parse().unwrap();
    match rule.limit() {
        Limit::FixedWindow(limit) => *limit,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_window_begins_with_the_first_request_after_the_last_window() {
    for policy in ["leaky", "strict"] {
        let mut client = Client::of(&format!("fixed-window 2/10s start=first {policy}"));
        for (millis, allowed, resets_in) in [
            (0, true, 10_000),
            (9_000, true, 1_000),
            (9_999, false, 1),
            (10_000, true, 10_000),
            (10_001, true, 9_999),
            (19_999, false, 1),
            (25_500, true, 10_000),
            (35_499, true, 1),
            (35_500, true, 10_000),
        ] {
            let decision = client.ask(at(millis), Cost::ONE);
            assert_eq!(decision.allowed, allowed, "{policy} {millis}");
            let resets_in = Duration::from_millis(resets_in);
            assert_eq!(decision.reset_after, resets_in, "{policy} {millis}");
            if !allowed {
                assert_eq!(
                    decision.retry_after.duration(),
                    Some(resets_in),
                    "{policy} {millis}"
                );
            }
        }
    }
}

#[test]
fn what_is_taken_back_and_corrected_is_of_the_window_of_its_time() {
    let limit = limit("fixed-window 5/10s start=first");
    let count = |millis, units: u128| Count {
        window: at(millis).get() / 1_000_000,
        count: units * 1_000_000_000,
    };
    let three = Cost::from_units(3);
    let begun = limit.charge(None, at(0), three);
    assert_eq!(begun, count(0, 3));
    // A request that is taken back whole leaves no window behind.
    for (charged_at, left) in [
        (0, None),
        (4_000, None),
        (9_999, None),
        (10_000, Some(begun)),
    ] {
        let state = limit.refund(begun, at(5_000), at(charged_at), three);
        assert_eq!(state, left, "{charged_at}");
    }
    let later = count(12_000, 1);
    for (before, charged_at, after) in [
        (Some(count(0, 1)), 4_000, Some(count(0, 4))),
        (None, 4_000, Some(count(4_000, 3))),
        (None, 3_000, None),
        (Some(later), 11_000, Some(later)),
    ] {
        let before = limit
            .advance(before, at(13_000))
            .or(before.filter(|_| charged_at == 4_000));
        let now = if charged_at == 4_000 { 9_000 } else { 13_000 };
        let state = limit.charge_past(before, at(now), at(charged_at), three);
        assert_eq!(state, after, "{charged_at}");
    }
}

#[test]
fn words_of_the_table_keep_the_start_and_the_count() {
    let limit = limit("fixed-window 5/10s start=first");
    let count = |window, count| Count { window, count };
    for (window, spent) in [
        (0, 1),
        (1_800_000_000_123, 549_755_813_886_000_000_000),
        (1_800_000_000_123, 549_755_813_886),
        (u64::MAX / 1_000_000, 123_456_789_012),
    ] {
        let state = count(window, spent);
        assert_eq!(limit.state_of(limit.word(&state)), Some(state));
    }
    let rounded_up = limit.word(&count(7, 549_755_813_888_000_000_001));
    assert_eq!(limit.state_of(rounded_up), Some(count(7, u128::MAX)));
    let rounded_up = limit.word(&count(7, 1_000_000_000_001));
    assert_eq!(
        limit.state_of(rounded_up),
        Some(count(7, 1_000_000_000_010))
    );
    for now in [0, 1_800_000_000, u64::MAX / 1_000_000_000].map(Nanos::from_secs) {
        let present = limit.word(&limit.charge(None, now, Cost::ONE));
        assert!(limit.rank(present, now) > limit.idle(now));
        assert!(present < limit.greatest(now));
        assert!((-(1 << 87)..1 << 87).contains(&limit.greatest(now)));
    }
}

/// New clients do not displace one that has spent its quota.
#[test]
fn a_client_that_has_spent_more_ranks_higher_until_its_window_ends() {
    let limit = limit("fixed-window 50/10s start=first");
    let busy = limit.word(&limit.charge(None, at(0), Cost::from_units(50)));
    let new = limit.word(&limit.charge(None, at(9_999), Cost::ONE));
    assert!(limit.rank(busy, at(9_999)) > limit.rank(new, at(9_999)));
    assert_eq!(limit.rank(busy, at(10_000)), limit.idle(at(10_000)));
}

#[test]
fn the_start_has_one_text_and_a_meaning_of_its_own() {
    let rule: Rule = "fixed-window 5/60s start=first".parse().unwrap();
    assert_eq!(
        Rule::from(*rule.limit()).to_string(),
        "fixed-window 5/1m start=first leaky"
    );
    let meanings = ["5/1m", "5/1m start=first", "5/week"].map(|text| {
        let rule: Rule = format!("fixed-window {text}").parse().unwrap();
        rule.limit().meaning()
    });
    assert!(meanings[0] != meanings[1] && meanings[1].1[1] != meanings[2].1[1]);
}
