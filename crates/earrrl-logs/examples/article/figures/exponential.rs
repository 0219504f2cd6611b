//! The figure of three clients whose rates an exponential average measures.

use std::time::Duration;

use earrrl::{Rule, RuleError};

use super::tracking::estimates;
use earrrl_logs::plot::{Across, Figure, GREY, Mark, Panel, Series, Stroke};
use earrrl_logs::simulate::run;

/// The end of the figure, in seconds.
const END: f64 = 420.0;

/// The number of points of a curve for each second.
const SAMPLES: u32 = 2;

/// The rule of the figure. It is strict, so that it measures all requests and not only allowed
/// ones.
const RULE: &str = "exponential 60/1m strict";

/// The names of the clients, and the rates at which they send.
const CLIENTS: [(&str, &str); 3] = [
    ("a burst, 20 a second", "c steady 20/s from=30s until=40s"),
    ("2 a second", "c steady 2/s from=30s until=270s"),
    ("1 in two minutes", "c steady 1/2m from=30s"),
];

/// Returns the number of a client's first denied request, and its time in seconds.
fn first_denied(rule: &Rule, client: &str) -> Result<Option<(u64, f64)>, RuleError> {
    let mut sent = 0;
    let mut first = None;
    run(
        rule,
        &[client.parse()?],
        1,
        Duration::from_secs_f64(END),
        |attempt| {
            sent += 1;
            if !attempt.decision.allowed && first.is_none() {
                first = Some((sent, attempt.time.get() as f64 / 1e9));
            }
        },
    )?;
    Ok(first)
}

pub(super) fn figure() -> Result<Figure, RuleError> {
    let rule: Rule = RULE.parse()?;
    let limit = Series::new("60 a minute", GREY, vec![(0.0, 60.0), (END, 60.0)]);
    let mut series = vec![limit.with_stroke(Stroke::Dashed)];
    let mut marks = Vec::new();
    for (place, (name, client)) in CLIENTS.into_iter().enumerate() {
        let points = estimates(&rule, client.parse()?, (END, SAMPLES))?;
        let by_minute = points.into_iter().map(|(at, rate)| (at, rate * 60.0));
        let mut name = name.to_owned();
        if let Some((sent, at)) = first_denied(&rule, client)? {
            name += &format!(": over the limit with request {sent}");
            marks.push(Mark::new(at, ""));
        }
        series.push(Series::new(name, place, by_minute.collect()));
    }
    Ok(Figure {
        title: "First measured, then judged: exponential 60/1m".into(),
        x: Across::seconds(END),
        panels: vec![Panel {
            y_label: "requests a minute".into(),
            series,
            marks,
            log_from: Some(0.2),
            ..Panel::default()
        }],
        size: (640, 440),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_counted_whole_and_a_rare_client_not_less_than_once() {
        let rule: Rule = RULE.parse().unwrap();
        let denied = CLIENTS.map(|(_, client)| first_denied(&rule, client).unwrap());
        // During the 3 s in which the client sends 60 requests, the average decays a little, so it
        // takes slightly more than 60 to exceed the limit.
        assert_eq!(denied[0].map(|(sent, _)| sent), Some(62));
        // The average of 120 requests a minute is 120 (1 - exp(-t/60)), which reaches 60 after ln 2
        // minutes.
        assert_eq!(denied[1].map(|(_, at)| at), Some(71.5));
        assert_eq!(denied[2], None);
        let client = CLIENTS[2].1.parse().unwrap();
        let points = estimates(&rule, client, (END, SAMPLES)).unwrap();
        let most = points
            .iter()
            .map(|point| point.1 * 60.0)
            .fold(0.0, f64::max);
        assert!((0.99..1.2).contains(&most), "{most}");
    }
}
