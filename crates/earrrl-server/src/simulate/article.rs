//! The figures of the article that describes recent-average, redrawn from the production code.

use std::time::Duration;

use clap::ValueEnum;
use earrrl::sim::{Client, run};
use earrrl::{Cost, Mode, Nanos, Rule, RuleError, State};

use super::{Outcome, Scenario};
use crate::plot::{Figure, GREY, Mark, Panel, Series, Stroke};

/// A figure of the article.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// The estimates of three clients that start, keep their rate, and stop; half-life 10 s
    Tracking,
    /// The same with a half-life of 1 s: it follows faster, and trembles more
    TrackingShort,
    /// Fixed windows forgive a greedy client at every window; recent-average once it slows down
    WindowedVsRecent,
}

/// When the three clients of the tracking figures send, in seconds.
const SENDS: (f64, f64) = (50.0, 200.0);

/// Where the figures end, in seconds.
const END: f64 = 300.0;

/// Points a second in the tracking figures.
const SAMPLES: u32 = 10;

/// Draws a figure.
///
/// # Errors
/// None, since its rules and clients are right; but they are text.
pub(crate) fn draw(name: Name) -> Result<Figure, RuleError> {
    match name {
        Name::Tracking => tracking(10),
        Name::TrackingShort => tracking(1),
        Name::WindowedVsRecent => windowed_vs_recent(),
    }
}

/// Three clients, a panel each: their rates are too far apart for one axis.
fn tracking(half_life: u32) -> Result<Figure, RuleError> {
    let rule: Rule = format!("recent-average 1/s half-life={half_life}s").parse()?;
    let clients = [("10/s", 10.0), ("1/s", 1.0), ("0.1/s", 0.1)];
    let mut panels = Vec::new();
    for (place, (rate, per_second)) in clients.into_iter().enumerate() {
        let client = format!("client steady {rate} from=50s until=200s").parse()?;
        let ends = [(SENDS.0, 0.0), (SENDS.0, per_second), (SENDS.1, per_second), (SENDS.1, 0.0)];
        let truth = Series::new("", GREY, ends.to_vec()).with_stroke(Stroke::Dashed);
        let estimate = Series::new(format!("sends {rate}"), place, estimates(&rule, client)?);
        let marks = match (place, half_life) {
            (0, 10) => {
                let half = |at, height| Mark { at, height, text: "half after 10 s" };
                vec![half(SENDS.0 + 10.0, 0.35), half(SENDS.1 + 10.0, 0.55)]
            }
            _ => Vec::new(),
        };
        panels.push(Panel {
            y_label: "requests a second".into(),
            series: vec![truth, estimate],
            marks,
            log_from: None,
        });
    }
    Ok(Figure {
        title: format!("Estimated rate (line) and true rate (dashes), half-life {half_life} s"),
        x_label: "seconds".into(),
        x: (0.0, END),
        panels,
        size: (900, 660),
    })
}

/// What recent-average estimates of a client: at each of its requests just before and just after,
/// and in between as it decays.
fn estimates(rule: &Rule, client: Client) -> Result<Vec<(f64, f64)>, RuleError> {
    let mut points = Vec::new();
    let mut next_sample = 0;
    let mut last: Option<State> = None;
    let rate = |state: &Option<State>, at: Nanos| {
        let (_, peek) = rule.limit().decide(state.clone(), at, Cost::ZERO, Mode::Peek);
        (at.get() as f64 / 1e9, peek.rate.unwrap_or(0.0))
    };
    let sample = |number: u32| Nanos::new(u64::from(number) * 1_000_000_000 / u64::from(SAMPLES));
    run(rule, &[client], 1, Duration::from_secs_f64(END), |attempt| {
        while sample(next_sample) < attempt.time {
            points.push(rate(&last, sample(next_sample)));
            next_sample += 1;
        }
        points.push(rate(&last, attempt.time));
        last = attempt.state.cloned();
        points.push(rate(&last, attempt.time));
    })?;
    let rest = (next_sample..=END as u32 * SAMPLES).map(sample);
    points.extend(rest.map(|at| rate(&last, at)));
    Ok(points)
}

/// A client that sends 5/3 a second for 150 s, then exactly the 1 a second that it may.
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
        ..Scenario::default()
    })
}

fn windowed_vs_recent() -> Result<Figure, RuleError> {
    let scenario = greedy()?;
    let outcomes = Outcome::of(&scenario)?;
    let mut figure = super::figure(&scenario, &outcomes);
    figure.title = "A client asks for 5/3 a second, from 150 s on for the 1 it may".into();
    let mark = |at, height, text| Mark { at, height, text };
    figure.panels[0].marks = vec![
        mark(27.0, 0.35, "first denied"),
        mark(150.0, 0.2, "slows down"),
        mark(255.0, 0.35, "last denied"),
    ];
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate of a client at a time, just before a request of that instant.
    fn estimate(half_life: u32, rate: &str, at: f64) -> f64 {
        let rule = format!("recent-average 1/s half-life={half_life}s").parse().unwrap();
        let client = format!("c steady {rate} from=50s until=200s").parse().unwrap();
        let points = estimates(&rule, client).unwrap();
        points.iter().find(|(time, _)| *time >= at).unwrap().1
    }

    #[test]
    fn rates_are_reached_and_halved_on_time() {
        // Ten half-lives on, and one half-life after start and end; the reference is exact.
        for (rate, at, expected) in [
            ("10/s", 60.0, 4.982_691_339_345_55),
            ("10/s", 100.0, 9.653_964_469_982_01),
            ("10/s", 200.0, 9.965_078_559_346_66),
            ("10/s", 210.0, 4.982_539_279_673_33),
        ] {
            let found = estimate(10, rate, at);
            assert!((found - expected).abs() < 1e-9 * expected, "{rate} at {at}: {found}");
        }
        for (rate, per_second) in [("10/s", 10.0), ("1/s", 1.0), ("0.1/s", 0.1)] {
            let lambda = f64::ln(2.0) / 10.0;
            let trembles = lambda / per_second;
            let steady = estimate(10, rate, 199.95) / per_second;
            assert!((1.0 - trembles..1.0 + trembles).contains(&steady), "{rate}: {steady}");
            let halved = estimate(10, rate, 210.0) / estimate(10, rate, 200.0);
            assert!((halved - 0.5).abs() < 1e-9, "{rate}: {halved}");
        }
        assert!(estimate(1, "10/s", 51.0) > 0.45 * 10.0);
    }

    #[test]
    fn windows_forgive_and_recent_average_waits() {
        let scenario = greedy().unwrap();
        let outcomes = Outcome::of(&scenario).unwrap();
        assert_eq!(outcomes[0].totals(), (400, 89, Some(27.0), Some(255.0)));
        let (asked, permitted, ..) = outcomes[1].totals();
        assert_eq!((asked, permitted), (400, 300));
    }

    #[test]
    fn every_figure_can_be_drawn() {
        for &name in Name::value_variants() {
            let svg = crate::plot::svg(&draw(name).unwrap(), None).unwrap();
            assert!(svg.contains("seconds"));
        }
    }
}
