//! The run on Redis that the source article prints: 71 requests about a second apart.

use earrrl::{Cost, Nanos};
use serde_json::Value;

use super::data::{Vectors, by_number, flag, list, number, text};
use crate::algorithms::client::{Client, assert_close, at};

/// The rates measured at requests `gap` apart, and the client after the last.
fn steady(rule: &str, gap: f64, requests: usize) -> (Vec<f64>, Client) {
    let mut client = Client::of(rule);
    let decide = |k: usize| {
        client
            .ask(at(gap * k as f64), Cost::ONE)
            .rate
            .unwrap_or_default()
    };
    ((0..requests).map(decide).collect(), client)
}

fn assert_rates(rates: &[f64], expected: &Value, what: &str) -> usize {
    let rows = by_number(expected);
    for (k, rate) in &rows {
        assert_close(
            rates[*k as usize],
            number(rate),
            &format!("{what}, request {k}"),
        );
    }
    rows.len()
}

#[test]
fn a_request_every_second() {
    let mut vectors = Vectors::read("redis_run");
    let rule = vectors.get("rule");
    let (rates, client) = steady(text(&rule), 1.0, 71);
    vectors.reached(assert_rates(&rates, &vectors.get("gap_1s"), "gap of 1 s"));
    for (k, limited) in by_number(&vectors.get("gap_1s_limited")) {
        assert_eq!(rates[k as usize] > 0.5, flag(&limited), "request {k}");
        vectors.reached(1);
    }
    let last = client.peek(at(80.0), Cost::ONE).rate.unwrap_or_default();
    assert_close(
        last,
        number(&vectors.get("gap_1s_after_70_plus_10s")),
        "after 10 s",
    );
    let (rates, client) = steady(text(&rule), 1.0, 2000);
    let limits = vectors.get("steady_gap_1s");
    assert_close(rates[1999], number(&limits["before"]), "steady, before");
    let after = client.peek(at(1999.0), Cost::ONE).rate.unwrap_or_default();
    assert_close(after, number(&limits["after"]), "steady, after");
    vectors.reached(3);
}

#[test]
fn the_printed_run_with_the_gaps_it_had() {
    let mut vectors = Vectors::read("redis_run");
    let rule = vectors.get("rule");
    let printed = vectors.get("printed");
    let mut client = Client::of(text(&rule));
    client.ask(Nanos::ZERO, Cost::ONE);
    let mut now = Nanos::ZERO;
    let gaps = vectors.rows("gaps_s");
    let expected = vectors.rows("with_gaps");
    for (k, (gap, rate)) in (1..).zip(gaps.iter().zip(&expected)) {
        now = Nanos::new(now.get() + at(number(gap)).get());
        let decision = client.ask(now, Cost::ONE);
        let measured = decision.rate.unwrap_or_default();
        assert_close(measured, number(rate), &format!("request {k}"));
        assert_close(
            measured,
            number(&printed[k.to_string()]),
            &format!("printed, request {k}"),
        );
        assert_eq!(
            !decision.allowed,
            flag(&vectors.get("printed_limited")[k.to_string()])
        );
        vectors.reached(3);
    }
}

#[test]
fn the_printed_run_with_its_mean_gaps() {
    let mut vectors = Vectors::read("redis_run");
    let rule = vectors.get("rule");
    let printed = vectors.get("printed");
    let expected = list(&vectors.get("with_mean_gap"));
    let (rates, _) = steady(
        text(&rule),
        number(&vectors.get("mean_gap_s")),
        expected.len(),
    );
    for (k, rate) in expected.iter().enumerate() {
        assert_close(rates[k], number(rate), &format!("mean gap, request {k}"));
        vectors.reached(1);
    }
    let gap = number(&vectors.get("gap_to_70_s"));
    let (rates, client) = steady(text(&rule), gap, 71);
    assert_close(rates[70], number(&printed["70"]), "printed, request 70");
    let woken = at(70.0 * gap + number(&vectors.get("last_sleep_s")));
    let last = client.peek(woken, Cost::ONE);
    assert_close(
        last.rate.unwrap_or_default(),
        number(&printed["70+10s"]),
        "printed, last",
    );
    assert_eq!(number(&printed["0"]), rates[0]);
    assert!(!flag(&vectors.get("printed_limited")["0"]));
    vectors.reached(4);
}
