//! Measures the rates of the clients that a rule denied most, around their denials and their peak.

use earrrl::algorithm::State;
use earrrl::{Cost, Decision, Limit, Mode, Nanos, Rule};

use super::axis::across;
use super::measured::MeasuredRule;
use crate::line::time::SECOND;
use crate::plot::{Figure, GREY, Panel, Series, Stroke};
use crate::reading::LoggedRequest;
use crate::text::per;

/// The approximate number of points of a client's curve.
const POINTS: u64 = 240;

/// The least share of a client's denials that its figure shows, so that a single denial days before
/// the others can be left out.
const SHOWN: f64 = 0.9;

/// The least time that a figure shows before and after the denials, in nanoseconds.
const AROUND: u64 = 5 * SECOND;

/// The denials of one client by one rule, and its rate around them.
pub(super) struct Incident {
    /// The times of the client's first and last denial, in nanoseconds since the epoch.
    pub denied: (u64, u64),
    /// The start and the end of the client's figure, in nanoseconds since the epoch.
    shown: (u64, u64),
    /// The client's greatest rate a second in each step of the figure, as the rule measures it if
    /// it denies nothing.
    rates: Vec<f64>,
    /// The client's greatest rate a second.
    peak: f64,
    /// The number of steps whose rates are final.
    closed: usize,
    /// The length of a step, in nanoseconds.
    step: u64,
}

/// Computes the incident of each of these clients under a rule, which includes the client's
/// measured peak. It iterates over the requests twice.
pub(super) fn incidents<I: Iterator<Item = LoggedRequest>>(
    rule: &Rule,
    measured: &MeasuredRule,
    clients: &[u32],
    requests: impl Fn() -> I,
) -> Vec<Incident> {
    let mut denials = vec![Vec::new(); clients.len()];
    each(
        (rule.limit(), Mode::Check),
        clients,
        requests(),
        |place, request, _, decision| {
            if !decision.allowed {
                denials[place].push(request.time);
            }
        },
    );
    let peaks = clients.iter().map(|&client| measured.client(client).peak);
    let mut incidents: Vec<Incident> = denials
        .iter()
        .zip(peaks)
        .map(|(times, peak)| Incident::new(times, peak))
        .collect();
    let limit = &measured.limit;
    let states = each(
        (limit, Mode::Charge),
        clients,
        requests(),
        |place, request, before, decision| {
            incidents[place].add(limit, request, before, decision.rate.unwrap_or(0.0));
        },
    );
    for (incident, state) in incidents.iter_mut().zip(&states) {
        incident.close_until(incident.rates.len(), limit, state.as_ref());
    }
    incidents
}

/// Judges all requests of these clients under the limit. Passes to `take` the client's index in
/// `clients`, the request, the state before it and the decision. Returns the clients' last states.
fn each(
    (limit, mode): (&Limit, Mode),
    clients: &[u32],
    requests: impl Iterator<Item = LoggedRequest>,
    mut take: impl FnMut(usize, LoggedRequest, Option<&State>, Decision),
) -> Vec<Option<State>> {
    let mut states: Vec<Option<State>> = vec![None; clients.len()];
    for request in requests {
        let Some(place) = clients.iter().position(|&client| client == request.client) else {
            continue;
        };
        let before = states[place].take();
        let now = Nanos::new(request.time);
        let (after, decision) = limit.decide(before.clone(), now, request.cost, mode);
        take(place, request, before.as_ref(), decision);
        states[place] = after;
    }
    states
}

impl Incident {
    /// Creates an incident with rates still to be added; `denials` are its times in ascending
    /// order, and `peak` is the client's greatest rate and the time of it.
    fn new(denials: &[u64], peak: (f64, u64)) -> Self {
        let (from, to) = densest(denials);
        let from = from.min(peak.1);
        let to = to.max(peak.1);
        let around = ((to - from) / 8).max(AROUND);
        let shown = (from.saturating_sub(around), to.saturating_add(around));
        let step = ((shown.1 - shown.0) / POINTS).max(SECOND / 100);
        let ends = |times: &[u64]| Some((*times.first()?, *times.last()?));
        let rates = vec![0.0; ((shown.1 - shown.0).div_ceil(step)) as usize];
        Self {
            denied: ends(denials).unwrap_or_default(),
            shown,
            rates,
            peak: peak.0,
            closed: 0,
            step,
        }
    }

    fn add(&mut self, limit: &Limit, request: LoggedRequest, before: Option<&State>, rate: f64) {
        let Some(since) = request.time.checked_sub(self.shown.0) else {
            return;
        };
        let place = (since / self.step) as usize;
        self.close_until(place, limit, before);
        if let Some(greatest) = self.rates.get_mut(place) {
            *greatest = greatest.max(rate);
        }
    }

    /// Completes the steps before `place` with the rate at the end of each: without a request in
    /// it, the decayed rate is the only one in the step. No step exceeds the client's peak, which is
    /// measured at requests only.
    fn close_until(&mut self, place: usize, limit: &Limit, state: Option<&State>) {
        for place in self.closed..place.min(self.rates.len()) {
            let end = Nanos::new(self.shown.0 + (place as u64 + 1) * self.step);
            let (_, peek) = limit.decide(state.cloned(), end, Cost::ZERO, Mode::Peek);
            self.rates[place] = self.rates[place].max(peek.rate.unwrap_or(0.0).min(self.peak));
        }
        self.closed = self.closed.max(place);
    }

    /// Draws the client's rate, and the rule's limit as a dashed line.
    pub(super) fn figure(
        &self,
        rule: &Rule,
        colour: usize,
        measure: &str,
        size: (u32, u32),
    ) -> Figure {
        let limit = rule.limit().per_second();
        let (per, unit) = per(self.rates.iter().copied().chain([limit]));
        let seconds = |time: u64| time as f64 / SECOND as f64;
        let points = self.rates.iter().enumerate().flat_map(|(place, rate)| {
            let start = self.shown.0 + place as u64 * self.step;
            [
                (seconds(start), rate * per),
                (seconds(start + self.step), rate * per),
            ]
        });
        let ends = [self.shown.0, self.shown.1].map(|time| (seconds(time), limit * per));
        Figure {
            title: String::new(),
            x: across(self.shown),
            panels: vec![Panel {
                y_label: format!("{measure} {unit}"),
                series: vec![
                    Series::new("", colour % GREY, points.collect()).with_stroke(Stroke::Filled),
                    Series::new("", GREY, ends.into()).with_stroke(Stroke::Dashed),
                ],
                ..Panel::default()
            }],
            size,
        }
    }
}

/// Returns the shortest span that contains the share [`SHOWN`] of the times, which must be
/// ascending.
fn densest(times: &[u64]) -> (u64, u64) {
    let many = ((times.len() as f64 * SHOWN).ceil() as usize).max(1);
    let stretches = times.windows(many).map(|times| (times[0], times[many - 1]));
    stretches
        .min_by_key(|(from, to)| to - from)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_shows_when_most_was_denied() {
        let rule: Rule = "fixed-window 2/1m".parse().unwrap();
        // Three requests at the start; two days later five a second for twenty seconds.
        let times = [0, 1, 2]
            .into_iter()
            .chain((0..100).map(|nth| 172_800 + nth / 5));
        let requests: Vec<LoggedRequest> = times
            .map(|secs| LoggedRequest {
                time: (1_700_000_000 + secs) * SECOND,
                client: 7,
                cost: Cost::ONE,
            })
            .collect();
        let measured = MeasuredRule::of(&rule, requests.iter().copied());
        let found = incidents(&rule, &measured, &[7], || requests.iter().copied());
        let start = 1_700_000_000 * SECOND;
        let incident = &found[0];
        assert_eq!(
            incident.denied,
            (start + 2 * SECOND, start + 172_819 * SECOND)
        );
        let day = start + 172_800 * SECOND;
        assert!(incident.shown.0 <= day && incident.shown.0 > day - 10 * SECOND);
        assert!(incident.shown.1 > day + 17 * SECOND && incident.shown.1 < day + 30 * SECOND);
    }

    #[test]
    fn the_peak_of_the_figure_is_the_measured_one() {
        // The peak of the burst is a day before most of the denials.
        let burst = (0..30).map(|_| 0);
        let times = burst.chain((0..900).map(|nth| 86_400 + nth));
        let requests: Vec<LoggedRequest> = times
            .map(|secs| LoggedRequest {
                time: (1_700_000_000 + secs) * SECOND,
                client: 0,
                cost: Cost::ONE,
            })
            .collect();
        for rule in [
            "gcra 1/m burst=5",
            "recent-average 1/m half-life=30s leaky",
            "fixed-window 2/1m",
            "token-bucket 3 refill=1/m",
        ] {
            let rule: Rule = rule.parse().unwrap();
            let measured = MeasuredRule::of(&rule, requests.iter().copied());
            let found = incidents(&rule, &measured, &[0], || requests.iter().copied());
            let greatest = found[0].rates.iter().copied().fold(0.0, f64::max);
            assert_eq!(greatest, measured.client(0).peak.0, "{rule}");
        }
    }

    #[test]
    fn the_densest_stretch() {
        assert_eq!(densest(&[]), (0, 0));
        assert_eq!(densest(&[5]), (5, 5));
        assert_eq!(
            densest(&[0, 100, 101, 102, 103, 104, 105, 106, 107, 108]),
            (100, 108)
        );
    }
}
