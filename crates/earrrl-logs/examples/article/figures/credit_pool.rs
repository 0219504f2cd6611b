//! The figure of a pool of 100 credits that regains one a minute: the requests of the article's
//! table, and the minutes after them.

use earrrl::algorithm::State;
use earrrl::{Cost, Limit, Mode, Nanos, Rule, RuleError};

use super::BUCKET;
use earrrl_logs::plot::{Across, Figure, GREY, Note, Panel, Series, Stroke, Ticks};

/// The end of the figure, in minutes.
const END: u64 = 70;

/// The requests: minute, cost, and the text beside the point. The article's table ends at 20
/// minutes.
const REQUESTS: [(u64, u64, &str); 8] = [
    (10, 20, ""),
    (10, 20, ""),
    (10, 20, "3 images"),
    (20, 2, "a list"),
    (30, 20, ""),
    (30, 20, "2 images"),
    (30, 20, "1 more is denied"),
    (32, 20, "after 2 minutes"),
];

/// A request, the pool's balance before and after it, and whether it was allowed.
struct CreditStep {
    minute: u64,
    before: f64,
    after: f64,
    text: &'static str,
}

fn balance(limit: &Limit, state: &Option<State>, now: Nanos) -> f64 {
    limit
        .decide(state.clone(), now, Cost::ONE, Mode::Peek)
        .1
        .remaining as f64
}

/// Judges the article's requests under a rule. Returns the steps, and the state after the last one.
fn steps(rule: &Rule) -> (Vec<CreditStep>, Option<State>) {
    let limit = rule.limit();
    let mut state = None;
    let steps = REQUESTS.into_iter().map(|(minute, cost, text)| {
        let now = Nanos::from_secs(minute * 60);
        let before = balance(limit, &state, now);
        let (next, _) = limit.decide(state.take(), now, Cost::from_units(cost), Mode::Check);
        state = next;
        CreditStep {
            minute,
            before,
            after: balance(limit, &state, now),
            text,
        }
    });
    (steps.collect(), state)
}

pub(super) fn figure() -> Result<Figure, RuleError> {
    let rule: Rule = "credit-pool 100 refill=1/m".parse()?;
    let (steps, state) = steps(&rule);
    let mut points = vec![(0.0, 100.0)];
    for step in &steps {
        points.extend([
            (step.minute as f64, step.before),
            (step.minute as f64, step.after),
        ]);
    }
    let last = steps.last().map_or(0, |step| step.minute);
    points.extend((last..=END).map(|minute| {
        (
            minute as f64,
            balance(rule.limit(), &state, Nanos::from_secs(minute * 60)),
        )
    }));
    let notes = steps
        .iter()
        .filter(|step| !step.text.is_empty())
        .map(|step| {
            let text = format!("{}: {} left", step.text, step.after);
            Note {
                at: (step.minute as f64, step.after),
                text,
            }
        });
    let cap = Series::new("", GREY, vec![(0.0, 100.0), (END as f64, 100.0)]);
    Ok(Figure {
        title: "A pool of 100 credits that regains one a minute".into(),
        x: Across {
            label: "minutes".into(),
            span: (0.0, END as f64),
            ticks: Ticks::Numbers,
        },
        panels: vec![Panel {
            y_label: "credits left".into(),
            notes: notes.collect(),
            series: vec![
                cap.with_stroke(Stroke::Dashed),
                Series::new("", BUCKET, points).with_stroke(Stroke::Filled),
            ],
            ..Panel::default()
        }],
        size: (640, 400),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balances_are_those_of_the_article() {
        let (steps, _) = steps(&"credit-pool 100 refill=1/m".parse().unwrap());
        let found: Vec<_> = steps.iter().map(|step| (step.before, step.after)).collect();
        assert_eq!(
            found[..4],
            [(100.0, 80.0), (80.0, 60.0), (60.0, 40.0), (50.0, 48.0)]
        );
        assert_eq!(
            found[4..],
            [(58.0, 38.0), (38.0, 18.0), (18.0, 18.0), (20.0, 0.0)]
        );
    }
}
