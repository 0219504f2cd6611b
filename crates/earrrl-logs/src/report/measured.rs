//! Measures every client's rates as a rule would if it denied no request: the greatest rate, and
//! when the client was seen.

use earrrl::algorithm::{RecentAverage, State};
use earrrl::{Limit, Mode, Nanos, Policy, Rule};

use crate::plot::{Across, Figure, Mark, Panel, Series, Ticks};
use crate::reading::LoggedRequest;
use crate::replay::Replay;
use crate::text::per;

/// The least rate on the axis, as a share of the least limit. Clients with lower rates are far
/// below every limit.
const DEEPEST: f64 = 1e-3;

/// The rates of all clients, as one rule measures them when it denies nothing.
pub(super) struct MeasuredRule {
    /// The limit that measures the rates: the rule's own, or an average that stands for it.
    pub limit: Limit,
    /// The history of each client, indexed by client number.
    clients: Vec<History>,
}

/// The greatest rate of a client, and when it was seen.
#[derive(Clone, Default)]
pub(super) struct History {
    state: Option<State>,
    /// The client's greatest rate a second, and the time of it in nanoseconds since the epoch.
    pub peak: (f64, u64),
    /// The time of the client's first request, in nanoseconds since the epoch.
    pub first: u64,
    /// The time of the client's last request, in nanoseconds since the epoch.
    pub last: u64,
}

impl MeasuredRule {
    /// Measures the rates of all requests under a rule.
    pub(super) fn of(rule: &Rule, requests: impl Iterator<Item = LoggedRequest>) -> Self {
        let mut measured = Self {
            limit: measuring(rule.limit()),
            clients: Vec::new(),
        };
        requests.for_each(|request| measured.add(request));
        measured
    }

    fn add(&mut self, request: LoggedRequest) {
        let place = request.client as usize;
        if place >= self.clients.len() {
            self.clients.resize(place + 1, History::default());
        }
        let client = &mut self.clients[place];
        let now = Nanos::new(request.time);
        let (state, decision) =
            self.limit
                .decide(client.state.take(), now, request.cost, Mode::Charge);
        client.state = state;
        if client.last == 0 {
            client.first = request.time;
        }
        client.last = request.time;
        let rate = decision.rate.unwrap_or(0.0);
        if rate > client.peak.0 || client.peak.1 == 0 {
            client.peak = (rate, request.time);
        }
    }

    /// Returns the history of the client with this number.
    pub(super) fn client(&self, number: u32) -> History {
        self.clients
            .get(number as usize)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the greatest rates of all clients that were seen, in descending order.
    fn peaks(&self) -> Vec<f64> {
        let seen = self.clients.iter().filter(|client| client.last > 0);
        let mut peaks: Vec<f64> = seen.map(|client| client.peak.0).collect();
        peaks.sort_by(|a, b| b.total_cmp(a));
        peaks
    }
}

/// Returns a limit that measures a rate: for a token bucket, which measures none, a recent average
/// with the same refill rate and the bucket's fill time as its period.
fn measuring(limit: &Limit) -> Limit {
    let Limit::TokenBucket(bucket) = limit else {
        return *limit;
    };
    let fill = std::time::Duration::try_from_secs_f64(bucket.fill_secs()).unwrap_or_default();
    RecentAverage::with_period(bucket.refill(), fill)
        .map_or(*limit, |average| average.with_policy(Policy::Strict).into())
}

/// Draws how many clients reach each rate under each rule, with a dashed line at the rule's limit.
pub(super) fn distribution(replay: &Replay, measured: &[MeasuredRule], size: (u32, u32)) -> Figure {
    let peaks: Vec<Vec<f64>> = measured.iter().map(MeasuredRule::peaks).collect();
    let limits = replay
        .trials
        .iter()
        .map(|trial| trial.rule.limit().per_second());
    let limits: Vec<f64> = limits.collect();
    let all = || {
        peaks
            .iter()
            .flatten()
            .chain(&limits)
            .copied()
            .filter(|rate| *rate > 0.0)
    };
    let (per, unit) = per(limits.iter().copied());
    let greatest = all().fold(f64::MIN_POSITIVE, f64::max);
    let lowest = limits.iter().copied().fold(greatest, f64::min);
    let least = all().fold(greatest, f64::min).max(lowest * DEEPEST);
    let span = ((least * per / 1.5).log10(), (greatest * per * 2.0).log10());
    let series = peaks
        .iter()
        .zip(&replay.trials)
        .enumerate()
        .map(|(place, (peaks, trial))| {
            Series::new(trial.rule.to_string(), place, curve(peaks, per, span))
        });
    let marks = replay
        .trials
        .iter()
        .zip(&limits)
        .enumerate()
        .map(|(place, (trial, limit))| {
            let above = trial.clients_limited();
            Mark {
                at: (limit * per).log10(),
                colour: Some(place),
                text: format!("limit {place}: {above} above", place = place + 1),
            }
        });
    Figure {
        title: String::new(),
        x: Across {
            label: format!("peak rate, {unit}"),
            span,
            ticks: Ticks::Powers,
        },
        panels: vec![Panel {
            y_label: "clients that reach it".into(),
            marks: marks.collect(),
            series: series.collect(),
            log_from: Some(0.8),
            ..Panel::default()
        }],
        size,
    }
}

/// Returns a step curve with the number of peaks that are at least as great as each rate. `peaks`
/// are descending; rates are shown as decimal logarithms.
fn curve(peaks: &[f64], per: f64, (from, to): (f64, f64)) -> Vec<(f64, f64)> {
    let mut points = vec![(from, peaks.len() as f64)];
    for (above, peak) in peaks.iter().enumerate().rev() {
        let at = (peak * per).log10().max(from);
        let last = points.last().copied().unwrap_or_default();
        // Clients that are closer than a pixel are drawn as one step, to keep the picture small.
        if above > 20 && at - last.0 < (to - from) / 2000.0 {
            continue;
        }
        points.extend([(at, last.1), (at, above as f64)]);
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use earrrl::Cost;

    fn requests(times: &[f64]) -> impl Iterator<Item = LoggedRequest> {
        times.iter().map(|secs| LoggedRequest {
            time: (1e18 + secs * 1e9) as u64,
            client: 0,
            cost: Cost::ONE,
        })
    }

    #[test]
    fn a_peak_is_above_the_limit_where_a_request_would_be_denied() {
        for rule in [
            "fixed-window 3/1m",
            "sliding-log 3/1m",
            "recent-average 1/m period=3m",
            "gcra 1/m burst=3",
        ] {
            let rule: Rule = rule.parse().unwrap();
            let limit = rule.limit().per_second() * (1.0 + 1e-9);
            for (times, over) in [(&[10.0, 10.0, 10.0][..], false), (&[10.0; 5], true)] {
                let client = MeasuredRule::of(&rule, requests(times)).client(0);
                assert_eq!(client.peak.0 > limit, over, "{rule}, {}", times.len());
            }
        }
        let rule: Rule = "fixed-window 3/1m".parse().unwrap();
        let client = MeasuredRule::of(&rule, requests(&[1.0, 2.0, 300.0])).client(0);
        let second = |time: u64| (time - 1_000_000_000_000_000_000) / 1_000_000_000;
        assert_eq!(
            [client.first, client.peak.1, client.last].map(second),
            [1, 2, 300]
        );
    }

    #[test]
    fn a_curve_descends_from_all_clients_to_none() {
        let points = curve(&[10.0, 1.0, 0.0], 1.0, (-1.0, 2.0));
        let steps = [
            (-1.0, 3.0),
            (-1.0, 3.0),
            (-1.0, 2.0),
            (0.0, 2.0),
            (0.0, 1.0),
            (1.0, 1.0),
        ];
        assert_eq!(points, [&steps[..], &[(1.0, 0.0)]].concat());
    }
}
