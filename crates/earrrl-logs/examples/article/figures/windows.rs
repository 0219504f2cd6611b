//! Figures of the requests that fixed windows permit.

use std::time::Duration;

use earrrl::{Rule, RuleError};

use super::WINDOW;
use earrrl_logs::plot::{Across, Figure, GREY, Mark, Note, Panel, Series, Stroke};
use earrrl_logs::simulate::{Attempt, Scenario, SimulatedOutcome, run};

/// Returns a scenario with a client that sends 5/3 requests a second for 150 s, and then exactly
/// the permitted one a second.
fn greedy() -> Result<Scenario, RuleError> {
    Ok(Scenario {
        rules: vec![
            "recent-average 1/s half-life=20s strict".parse()?,
            "fixed-window 60/1m".parse()?,
        ],
        clients: vec![
            "greedy steady 5/3s until=150s".parse()?,
            "greedy steady 1/s from=150s".parse()?,
        ],
        duration: Duration::from_secs(300),
        seed: 1,
    })
}

/// The instant at which lines have their names, in seconds: before the last denial.
const NAMED_AT: f64 = 250.0;

/// Draws a client that exceeds its limit: fixed windows admit it again in every window,
/// recent-average only once it slows down.
pub(super) fn windowed_vs_recent() -> Result<Figure, RuleError> {
    let scenario = greedy()?;
    let outcomes = SimulatedOutcome::of(&scenario)?;
    let mut denied = Vec::new();
    let note = |attempt: &Attempt<'_>| {
        if !attempt.decision.allowed {
            denied.push(attempt.time.get() as f64 / 1e9);
        }
    };
    run(
        &scenario.rules[0],
        &scenario.clients,
        scenario.seed,
        scenario.duration,
        note,
    )?;
    let mut figure = earrrl_logs::simulate::figure(&scenario, &outcomes);
    figure.title = "An abuser sends 1.67 requests a second; the limit is 1 a second".into();
    let panel = &mut figure.panels[0];
    // Each line has its name and its final number beside it, in place of a legend.
    let names = ["attempts", "recent average", "fixed window"];
    for (series, name) in panel.series.iter_mut().zip(names) {
        series.name.clear();
        let mut points = series.points.iter().rev().copied();
        let last = points.next().map_or(0.0, |(_, last)| last);
        let height = points.find(|point| point.0 <= NAMED_AT);
        panel.notes.extend(height.map(|(_, height)| Note {
            at: (NAMED_AT, height),
            text: format!("{name}: {last}"),
        }));
    }
    let mark = |at: Option<f64>, text| Some(Mark::new(at?, text));
    figure.panels[0].marks = [
        mark(denied.first().copied(), "first denied"),
        mark(Some(150.0), "slows down"),
        mark(denied.last().copied(), "last denied"),
    ]
    .into_iter()
    .flatten()
    .collect();
    Ok(figure)
}

/// The end of the figure with the doubled window, in seconds.
const END: f64 = 200.0;

/// Returns the number of requests that a rule permitted in the last minute, at each instant. The
/// client sends five requests each second, beginning in the last second of a window.
fn within_a_minute(rule: &Rule) -> Result<Vec<(f64, f64)>, RuleError> {
    const MINUTE: f64 = 60.0;

    let client = "hasty bursty 5 every=1s from=59s".parse()?;
    let mut changes: Vec<(f64, f64)> = Vec::new();
    run(
        rule,
        &[client],
        1,
        Duration::from_secs_f64(END),
        |attempt| {
            let at = attempt.time.get() as f64 / 1e9;
            if attempt.decision.allowed {
                changes.extend([(at, 1.0), (at + MINUTE, -1.0)]);
            }
        },
    )?;
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Merges the requests that leave the minute with those that enter it at the same instant, so
    // that the curve shows no step between them.
    changes.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        kept.1 += if same { next.1 } else { 0.0 };
        same
    });
    changes.retain(|(at, _)| *at <= END);
    let mut count = 0.0;
    let mut points = vec![(0.0, 0.0)];
    for (at, change) in changes {
        points.push((at, count));
        count += change;
        points.push((at, count));
    }
    points.push((END, count));
    Ok(points)
}

/// Draws three rules of five requests a minute, and a client that sends around the edge of a
/// window.
pub(super) fn doubled_window() -> Result<Figure, RuleError> {
    let rules = [
        "fixed-window 5/1m",
        "sliding-counter 5/1m",
        "sliding-window 5/1m",
    ];
    let mut panels = Vec::new();
    for (place, rule) in rules.into_iter().enumerate() {
        let points = within_a_minute(&rule.parse()?)?;
        let most = points.iter().fold(
            (0.0, 0.0),
            |a: (f64, f64), b| if b.1 > a.1 { *b } else { a },
        );
        let quota = Series::new("", GREY, vec![(0.0, 5.0), (END, 5.0)]).with_stroke(Stroke::Dashed);
        let mut marks = [60.0, 120.0, 180.0].map(|at| Mark::new(at, ""));
        if place == 0 {
            marks[1].text = "a new window".into();
        }
        let permitted = Series::new(rule, WINDOW, points).with_stroke(Stroke::Filled);
        panels.push(Panel {
            y_label: "in the last minute".into(),
            // The invisible last series makes all panels reach up to twice the quota.
            series: vec![quota, permitted, Series::new("", GREY, vec![(0.0, 10.0)])],
            notes: vec![Note {
                at: most,
                text: most.1.to_string(),
            }],
            marks: marks.into(),
            ..Panel::default()
        });
    }
    Ok(Figure {
        title: "Permitted of a client that asks for 5 a second from 59 s on".into(),
        x: Across::seconds(END),
        panels,
        size: (640, 660),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_forgive_and_recent_average_waits() {
        let scenario = greedy().unwrap();
        let outcomes = SimulatedOutcome::of(&scenario).unwrap();
        let mut table = Vec::new();
        earrrl_logs::simulate::write_table(&mut table, &scenario, &outcomes).unwrap();
        let table = String::from_utf8(table).unwrap();
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[1][..8],
            ["400", "89", "22.2", "%", "27.000", "s", "255.000", "s"]
        );
        assert_eq!(rows[2][..2], ["400", "300"]);
        let figure = windowed_vs_recent().unwrap();
        let notes: Vec<_> = figure.panels[0]
            .notes
            .iter()
            .map(|note| note.text.as_str())
            .collect();
        let names = ["attempts: 400", "recent average: 89", "fixed window: 300"];
        assert_eq!(notes, names);
    }

    #[test]
    fn a_fixed_window_permits_twice_its_quota() {
        for (rule, most) in [
            ("fixed-window 5/1m", 10.0),
            ("sliding-log 5/1m", 5.0),
            ("sliding-window 5/1m", 5.0),
        ] {
            let points = within_a_minute(&rule.parse().unwrap()).unwrap();
            assert_eq!(
                points.iter().map(|point| point.1).fold(0.0, f64::max),
                most,
                "{rule}"
            );
        }
    }
}
