//! The article's comparison of fixed windows with the recent average, request by request.

use earrrl::{Cost, Nanos};
use serde_json::Value;

use super::data::{Vectors, flag, number, text, whole};
use crate::algorithms::client::{Client, at};

/// A request every gap up to 150 s, then one a second up to 299 s.
fn times(gap: &Value) -> Vec<Nanos> {
    let early = |k: u64| gap.as_f64().map_or(k as f64 / 1.67, |gap| k as f64 * gap);
    let mut times: Vec<f64> = (0..).map(early).take_while(|t| *t < 150.0 - 1e-9).collect();
    times.extend((150..300).map(f64::from));
    times.into_iter().map(at).collect()
}

fn decisions(rule: &str, times: &[Nanos]) -> Vec<bool> {
    let mut client = Client::of(rule);
    times
        .iter()
        .map(|now| client.ask(*now, Cost::ONE).allowed)
        .collect()
}

fn secs(value: &Value) -> Option<Nanos> {
    value.as_f64().map(at)
}

fn near(found: Option<Nanos>, expected: &Value) -> bool {
    match (found, secs(expected)) {
        (Some(found), Some(expected)) => found.get().abs_diff(expected.get()) <= 1_000,
        (found, expected) => found == expected,
    }
}

/// Every figure that a row tells of a run.
fn assert_row(row: &Value, rule: &str, times: &[Nanos], until: &[Value]) {
    let allowed = decisions(rule, times);
    let run: Vec<(Nanos, bool)> = times.iter().copied().zip(allowed).collect();
    assert_eq!(run.len() as u64, whole(&row["requests"]), "{rule}");
    let permitted = |to: u64| {
        run.iter()
            .filter(|(t, allowed)| *allowed && *t <= Nanos::from_secs(to))
            .count() as u64
    };
    assert_eq!(permitted(300), whole(&row["permitted"]), "{rule}");
    for (to, expected) in until.iter().zip(row["permitted_until"].as_array().unwrap()) {
        assert_eq!(permitted(whole(to)), whole(expected), "{rule} until {to} s");
    }
    let first_denied = run.iter().find(|(_, allowed)| !allowed).map(|(t, _)| *t);
    let last_denied = run.iter().rposition(|(_, allowed)| !allowed);
    let resumes = last_denied
        .and_then(|place| run.get(place + 1))
        .map(|(t, _)| *t);
    let late = run
        .iter()
        .find(|(t, allowed)| *allowed && *t >= Nanos::from_secs(150));
    assert!(
        near(first_denied, &row["first_denied_at"]),
        "{rule}: {first_denied:?}"
    );
    assert!(
        near(
            last_denied.map(|place| run[place].0),
            &row["last_denied_at"]
        ),
        "{rule}"
    );
    assert!(
        near(resumes, &row["resumes_for_good_at"]),
        "{rule}: {resumes:?}"
    );
    assert!(
        near(
            late.map(|(t, _)| *t),
            &row["first_permitted_at_or_after_150"]
        ),
        "{rule}"
    );
    let reopened = run
        .windows(2)
        .filter(|pair| !pair[0].1 && pair[1].1)
        .count() as u64;
    assert_eq!(reopened, whole(&row["times_reopened"]), "{rule}");
}

#[test]
fn recent_average() {
    let mut vectors = Vectors::read("windowed");
    let until = vectors.rows("permitted_until_s");
    for row in vectors.rows("recent_average") {
        if text(&row["check"]) == "after" {
            vectors.passed_over(1, "that count a request before judging it");
            continue;
        }
        let policy = if flag(&row["count_denied"]) {
            "strict"
        } else {
            "leaky"
        };
        let rule = format!(
            "recent-average 1/s half-life={}s {policy}",
            row["half_life_s"]
        );
        assert_row(&row, &rule, &times(&row["gap_s"]), &until);
        vectors.reached(1);
    }
}

#[test]
fn fixed_window() {
    let mut vectors = Vectors::read("windowed");
    let until = vectors.rows("permitted_until_s");
    for row in vectors.rows("fixed_window") {
        let rule = format!("fixed-window {}/{}s", row["limit"], row["window_s"]);
        assert_row(&row, &rule, &times(&row["gap_s"]), &until);
        vectors.reached(1);
    }
}

#[test]
fn half_lives_from_15_to_30_seconds() {
    let mut vectors = Vectors::read("windowed");
    let times = times(&Value::from(0.6));
    for row in vectors.rows("half_life_scan") {
        let rule = format!(
            "recent-average 1/s half-life={}s strict",
            number(&row["half_life_s"])
        );
        let allowed = decisions(&rule, &times);
        let permitted = allowed.iter().filter(|allowed| **allowed).count() as u64;
        assert_eq!(permitted, whole(&row["permitted"]), "{rule}");
        let first_denied = allowed
            .iter()
            .position(|allowed| !allowed)
            .map(|place| times[place]);
        assert!(
            near(first_denied, &row["first_denied_at"]),
            "{rule}: {first_denied:?}"
        );
        let last_denied = allowed.iter().rposition(|allowed| !allowed);
        let resumes = last_denied.and_then(|place| times.get(place + 1)).copied();
        assert!(near(resumes, &row["resumes_at"]), "{rule}: {resumes:?}");
        vectors.reached(1);
    }
}

#[test]
fn the_figure_decision_by_decision() {
    let mut vectors = Vectors::read("windowed");
    let times = times(&Value::from(0.6));
    for (rule, field) in [
        (
            "recent-average 1/s half-life=20s strict",
            "half_life_20s_decisions",
        ),
        ("fixed-window 30/30s", "fixed_window_30s_decisions"),
    ] {
        let found: String = decisions(rule, &times)
            .iter()
            .map(|a| if *a { '1' } else { '0' })
            .collect();
        assert_eq!(found, text(&vectors.get(field)), "{rule}");
        vectors.reached(times.len());
    }
}
