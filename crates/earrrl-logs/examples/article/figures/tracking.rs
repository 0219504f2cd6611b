//! Figures that compare the rates which recent-average estimates with the true ones.

use std::time::Duration;

use earrrl::algorithm::State;
use earrrl::{Cost, Mode, Nanos, Rule, RuleError};

use super::AVERAGE;
use earrrl_logs::plot::{Across, Figure, GREY, Mark, Panel, Series, Stroke};
use earrrl_logs::simulate::{Client, run};

/// The times from which and until which the three clients send, in seconds.
const SENDS: (f64, f64) = (50.0, 200.0);

/// The end of the time axis, in seconds.
const END: f64 = 300.0;

/// The number of points of a curve for each second.
const SAMPLES: u32 = 10;

/// Draws the estimates of three clients. Each has a panel of its own, since their rates are too
/// different for a common axis.
pub(super) fn figure(half_life: u32) -> Result<Figure, RuleError> {
    let rule: Rule = format!("recent-average 1/s half-life={half_life}s").parse()?;
    let clients = [("10/s", 10.0), ("1/s", 1.0), ("0.1/s", 0.1)];
    let mut panels = Vec::new();
    for (place, (rate, per_second)) in clients.into_iter().enumerate() {
        let client = format!("client steady {rate} from=50s until=200s").parse()?;
        let ends = [
            (SENDS.0, 0.0),
            (SENDS.0, per_second),
            (SENDS.1, per_second),
            (SENDS.1, 0.0),
        ];
        let truth = Series::new("", GREY, ends.to_vec()).with_stroke(Stroke::Dashed);
        let points = estimates(&rule, client, (END, SAMPLES))?;
        let mut name = format!("sends {rate}");
        // The estimate of 1/s swings so fast that its line would be an area.
        let lines = match (place, half_life) {
            (1, 1) => {
                name += ": the estimate swings between these lines";
                envelope(&points).into()
            }
            _ => vec![points],
        };
        let names = [name, String::new()].into_iter();
        let estimate = names
            .zip(lines)
            .map(|(name, points)| Series::new(name, AVERAGE, points));
        let marks = match (place, half_life) {
            (0, 10) => [SENDS.0, SENDS.1]
                .map(|at| Mark::new(at + 10.0, "half after 10 s"))
                .into(),
            _ => Vec::new(),
        };
        panels.push(Panel {
            y_label: "requests a second".into(),
            series: std::iter::once(truth).chain(estimate).collect(),
            marks,
            ..Panel::default()
        });
    }
    Ok(Figure {
        title: format!("Estimated rate (line) and true rate (dashes), half-life {half_life} s"),
        x: Across::seconds(END),
        panels,
        size: (640, 660),
    })
}

/// Returns the rates just after requests, with all after the last one, and those just before requests.
fn envelope(points: &[(f64, f64)]) -> [Vec<(f64, f64)>; 2] {
    let is_request = |pair: &&[(f64, f64)]| pair[0].0 == pair[1].0 && pair[0].1 < pair[1].1;
    let requests = points.windows(2).filter(is_request);
    let (before, mut after): (Vec<_>, Vec<_>) = requests.map(|pair| (pair[0], pair[1])).unzip();
    let last = after.last().map_or(0.0, |point: &(f64, f64)| point.0);
    after.extend(points.iter().filter(|point| point.0 > last));
    [after, before]
}

/// Returns the rates that a rule measures of a client until `end`, in seconds: just before and just
/// after each request, and `samples` times a second in between.
pub(super) fn estimates(
    rule: &Rule,
    client: Client,
    (end, samples): (f64, u32),
) -> Result<Vec<(f64, f64)>, RuleError> {
    let mut points = Vec::new();
    let mut next_sample = 0;
    let mut last: Option<State> = None;
    let rate = |state: &Option<State>, at: Nanos| {
        let (_, peek) = rule
            .limit()
            .decide(state.clone(), at, Cost::ZERO, Mode::Peek);
        (at.get() as f64 / 1e9, peek.rate.unwrap_or(0.0))
    };
    let sample = |number: u32| Nanos::new(u64::from(number) * 1_000_000_000 / u64::from(samples));
    run(
        rule,
        &[client],
        1,
        Duration::from_secs_f64(end),
        |attempt| {
            while sample(next_sample) < attempt.time {
                points.push(rate(&last, sample(next_sample)));
                next_sample += 1;
            }
            points.push(rate(&last, attempt.time));
            last = attempt.state.cloned();
            points.push(rate(&last, attempt.time));
        },
    )?;
    let rest = (next_sample..=end as u32 * samples).map(sample);
    points.extend(rest.map(|at| rate(&last, at)));
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a client's estimated rate at the second `at`, just before a request at that time.
    fn estimate(half_life: u32, rate: &str, at: f64) -> f64 {
        let rule = format!("recent-average 1/s half-life={half_life}s")
            .parse()
            .unwrap();
        let client = format!("c steady {rate} from=50s until=200s")
            .parse()
            .unwrap();
        let points = estimates(&rule, client, (END, SAMPLES)).unwrap();
        points.iter().find(|(time, _)| *time >= at).unwrap().1
    }

    #[test]
    fn an_envelope_has_the_rates_after_and_before_requests() {
        let points = [
            (0.0, 0.0),
            (1.0, 0.0),
            (1.0, 0.7),
            (1.0, 0.7),
            (2.0, 0.3),
            (2.0, 1.0),
            (3.0, 0.5),
        ];
        let [after, before] = envelope(&points);
        assert_eq!(after, [(1.0, 0.7), (2.0, 1.0), (3.0, 0.5)]);
        assert_eq!(before, [(1.0, 0.0), (2.0, 0.3)]);
    }

    #[test]
    fn rates_are_reached_and_halved_on_time() {
        // Tested after ten half-lives, and one half-life after the start and the end; the expected
        // values are exact.
        for (rate, at, expected) in [
            ("10/s", 60.0, 4.982_691_339_345_55),
            ("10/s", 100.0, 9.653_964_469_982_01),
            ("10/s", 200.0, 9.965_078_559_346_66),
            ("10/s", 210.0, 4.982_539_279_673_33),
        ] {
            let found = estimate(10, rate, at);
            assert!(
                (found - expected).abs() < 1e-9 * expected,
                "{rate} at {at}: {found}"
            );
        }
        for (rate, per_second) in [("10/s", 10.0), ("1/s", 1.0), ("0.1/s", 0.1)] {
            let lambda = f64::ln(2.0) / 10.0;
            let trembles = lambda / per_second;
            let steady = estimate(10, rate, 199.95) / per_second;
            assert!(
                (1.0 - trembles..1.0 + trembles).contains(&steady),
                "{rate}: {steady}"
            );
            let halved = estimate(10, rate, 210.0) / estimate(10, rate, 200.0);
            assert!((halved - 0.5).abs() < 1e-9, "{rate}: {halved}");
        }
        assert!(estimate(1, "10/s", 51.0) > 0.45 * 10.0);
    }
}
