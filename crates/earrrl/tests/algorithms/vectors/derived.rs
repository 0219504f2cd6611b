//! Bursts, steady rates and waits that follow from the definition of the recent average.

use earrrl::{Cost, Nanos};
use serde_json::Value;

use super::data::{Vectors, number, whole};
use crate::algorithms::client::{Client, assert_close, assert_wait, at, units};

fn rule(row: &Value) -> String {
    format!(
        "recent-average {}/s half-life={}s strict",
        row["limit"], row["half_life_s"]
    )
}

/// What the tolerance of 1e-9 on the limit takes off a wait.
fn tolerance(row: &Value) -> f64 {
    number(&row["half_life_s"]) / std::f64::consts::LN_2 * 1e-9
}

#[test]
fn bursts_from_idle_and_the_wait_after_one_too_many() {
    let mut vectors = Vectors::read("derived");
    for row in vectors.rows("rows") {
        let rule = rule(&row);
        let burst = whole(&row["burst"]);
        let mut client = Client::of(&rule);
        assert_eq!(
            client.peek(Nanos::ZERO, Cost::ZERO).remaining,
            burst,
            "{rule}"
        );
        for k in 0..burst {
            assert!(
                client.ask(Nanos::ZERO, Cost::ONE).allowed,
                "{rule}, request {k}"
            );
        }
        let denied = client.ask(Nanos::ZERO, Cost::ONE);
        assert!(!denied.allowed, "{rule}");
        // A wait is the logarithm of an estimate: what that is off by counts in periods.
        let wait = number(&row["retry_after_s"]) - tolerance(&row);
        let off = (denied.retry_after.duration().unwrap().as_secs_f64() - wait).abs();
        assert!(
            off <= 1.6e-9 + 1e-2 * tolerance(&row),
            "{rule}: off by {off}, of {wait}"
        );
        vectors.reached(2);
    }
}

#[test]
fn the_fastest_steady_client_that_is_never_limited() {
    let mut vectors = Vectors::read("derived");
    for row in vectors.rows("rows") {
        let rule = rule(&row);
        let steady = number(&row["steady"]);
        for (rate, limited) in [
            (steady * (1.0 - 1e-6), false),
            (steady * (1.0 + 1e-6), true),
        ] {
            let mut client = Client::of(&rule);
            // The estimate settles in about 30 half-lives.
            let requests = (30.0 * number(&row["half_life_s"]) * rate) as u64 + 2;
            let denied = |k: u64| !client.ask(at(k as f64 / rate), Cost::ONE).allowed;
            assert_eq!((0..requests).any(denied), limited, "{rule} at {rate}/s");
        }
        vectors.reached(1);
    }
}

#[test]
fn two_million_requests_by_accident() {
    let mut vectors = Vectors::read("derived");
    for row in vectors.rows("accidents") {
        let rule = rule(&row);
        let requests = whole(&row["requests"]);
        let wait = number(&row["wait_s"]) - tolerance(&row);
        let mut one_by_one = Client::of(&rule);
        for _ in 0..requests {
            one_by_one.charge(Nanos::ZERO, Cost::ONE);
        }
        let mut at_once = Client::of(&rule);
        at_once.charge(Nanos::ZERO, units(requests));
        for client in [one_by_one, at_once] {
            let found = client
                .peek(Nanos::ZERO, Cost::ONE)
                .retry_after
                .duration()
                .unwrap();
            assert_wait(found, wait, &rule);
        }
        vectors.reached(1);
    }
}

#[test]
fn the_first_article_s_example() {
    let mut vectors = Vectors::read("derived");
    let example = vectors.get("example");
    let period = 1.0 / number(&example["lambda_"]);
    let rule = format!("recent-average 1/s period={}ns", (period * 1e9).round());
    let rate_of = |age: f64, cost: u64| {
        let mut client = Client::of(&rule);
        client.charge(Nanos::ZERO, units(cost));
        client.peek(at(age), Cost::ONE).rate.unwrap()
    };
    assert_close(rate_of(0.0, 1), number(&example["one_now"]), "one now");
    assert_close(
        rate_of(9.9, 2),
        number(&example["two_9_9s_ago"]),
        "two, 9.9 s ago",
    );
    assert_close(
        rate_of(number(&example["exact_age_for_two"]), 2),
        0.07,
        "two, as one now",
    );
    vectors.reached(3);
}
