//! Exponential rate limiting: sequences with the waits that are really enough.

use earrrl::{Cost, Limit};

use super::data::{Vectors, flag, list, number, text, whole};
use crate::algorithms::client::{Client, assert_close, assert_wait, at, units};

/// Seconds of the limit's period: measured rates are per second, the source's per period.
fn period(client: &Client) -> f64 {
    match client.limit {
        Limit::Exponential(limit) => limit.period_nanos() as f64 / 1e9,
        _ => panic!("{client:?}"),
    }
}

#[test]
fn rates_and_verdicts_request_by_request() {
    let mut vectors = Vectors::read("exponential");
    for case in vectors.rows("cases") {
        let rule = text(&case["rule"]);
        let mut client = Client::of(rule);
        let cost = units(whole(&case["cost"]));
        let gap = number(&case["gap_s"]);
        let mut rows = list(&case["rows"]).into_iter().peekable();
        let mut allowed = 0;
        for k in 0..whole(&case["requests"]) {
            let decision = client.ask(at(k as f64 * gap), cost);
            allowed += u64::from(decision.allowed);
            if let Some(row) = rows.next_if(|row| whole(&row[0]) == k) {
                let r = decision.rate.unwrap() * period(&client);
                assert_close(r, number(&row[1]), &format!("{rule}, request {k}"));
                assert_eq!(decision.allowed, flag(&row[2]), "{rule}, request {k}");
                vectors.reached(1);
            }
        }
        assert!(rows.peek().is_none(), "{rule}: rows left over");
        assert_eq!(allowed, whole(&case["allowed"]), "{rule}");
    }
}

#[test]
fn the_first_denial_and_its_wait() {
    let mut vectors = Vectors::read("exponential");
    for case in vectors.rows("cases") {
        let rule = text(&case["rule"]);
        let denial = &case["first_denial"];
        if denial.is_null() {
            continue;
        }
        let mut client = Client::of(rule);
        let cost = units(whole(&case["cost"]));
        let gap = number(&case["gap_s"]);
        for k in 0..whole(&denial["request"]) {
            assert!(
                client.ask(at(k as f64 * gap), cost).allowed,
                "{rule}, request {k}"
            );
        }
        let now = whole(&denial["request"]) as f64 * gap;
        let denied = client.ask(at(now), cost);
        assert!(!denied.allowed, "{rule}");
        assert_close(
            denied.rate.unwrap() * period(&client),
            number(&denial["r"]),
            rule,
        );
        assert_wait(
            denied.retry_after.duration().unwrap(),
            number(&denial["wait_s"]),
            rule,
        );
        // The source's own wait, kept for contrast, is too short.
        let obeyed = client.peek(at(now + number(&denial["source_wait_s"])), cost);
        assert!(!obeyed.allowed, "{rule}");
        let r = obeyed.rate.unwrap() * period(&client);
        assert_close(r, number(&denial["r_after_source_wait"]), rule);
        vectors.reached(1);
    }
}

#[test]
fn a_steady_client_measures_its_rate() {
    let mut vectors = Vectors::read("exponential");
    for case in vectors.rows("cases") {
        let rule = text(&case["rule"]);
        let Some(steady) = case["steady"].as_f64() else {
            continue;
        };
        let mut client = Client::of(rule);
        let cost = units(whole(&case["cost"]));
        let gap = number(&case["gap_s"]);
        let requests = (30.0 * period(&client) / gap) as u64;
        (0..requests).for_each(|k| client.charge(at(k as f64 * gap), cost));
        let r = client.peek(at(requests as f64 * gap), cost).rate.unwrap() * period(&client);
        assert_close(r, steady, rule);
        vectors.reached(1);
    }
    vectors.passed_over(
        1,
        "of the cancellation that `expm1` avoids, tested by every other row",
    );
    assert!(
        Client::of("exponential 1/1m")
            .peek(at(0.0), Cost::ONE)
            .allowed
    );
}
