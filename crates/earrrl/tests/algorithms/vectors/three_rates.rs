//! The article's figure: three steady rates, seen through two half-lives.

use earrrl::{Cost, Nanos};

use super::data::{Vectors, by_number, list, number, whole};
use crate::algorithms::client::{Client, assert_close, at, close};

#[test]
fn estimates_of_three_rates() {
    let mut vectors = Vectors::read("three_rates");
    for row in vectors.rows("rows") {
        let rate = number(&row["rate"]);
        let request = |k: u64| at(50.0 + k as f64 / rate);
        let rule = format!(
            "recent-average 1/s half-life={}s strict",
            row["half_life_s"]
        );
        let mut client = Client::of(&rule);
        let mut sent = 0;
        for (secs, expected) in by_number(&row["at"]) {
            let now = Nanos::from_secs(secs);
            let expected = list(&expected);
            while sent < whole(&row["requests"]) && request(sent) < now {
                client.ask(request(sent), Cost::ONE);
                sent += 1;
            }
            let what = format!("{rule}, {rate}/s, at {secs} s");
            let measured = client.peek(now, Cost::ONE).rate.unwrap_or_default();
            assert_close(measured, number(&expected[0]), &format!("{what}, before"));
            if sent < whole(&row["requests"]) && request(sent) == now {
                client.ask(now, Cost::ONE);
                sent += 1;
            }
            let measured = client.peek(now, Cost::ONE).rate.unwrap_or_default();
            assert_close(measured, number(&expected[1]), &format!("{what}, after"));
            vectors.reached(2);
        }
        assert_eq!(sent, whole(&row["requests"]), "{rule}, {rate}/s");
        assert_steady(
            &rule,
            rate,
            &list(&row["steady"]).iter().map(number).collect::<Vec<_>>(),
        );
        vectors.reached(2);
    }
}

/// Where the estimate settles, before and after a request.
fn assert_steady(rule: &str, rate: f64, expected: &[f64]) {
    let mut client = Client::of(rule);
    let gap = at(1.0 / rate).get();
    let last = Nanos::new(gap * (400.0 * rate).max(40.0) as u64);
    let mut now = Nanos::ZERO;
    while now < last {
        client.ask(now, Cost::ONE);
        now = Nanos::new(now.get() + gap);
    }
    let before = client.ask(now, Cost::ONE).rate.unwrap_or_default();
    let after = client.peek(now, Cost::ONE).rate.unwrap_or_default();
    assert!(
        close(before, expected[0], 1e-9),
        "{rule}, {rate}/s: {before}, {}",
        expected[0]
    );
    assert!(
        close(after, expected[1], 1e-9),
        "{rule}, {rate}/s: {after}, {}",
        expected[1]
    );
}
