//! The replay drawn: what was asked and permitted over time, and offenders against their limit.

use earrrl::{Cost, Mode, Nanos, Rule, State};

use crate::plot::{Figure, GREY, Panel, Series, Stroke};
use crate::replay::reader::Request;
use crate::replay::run::Replay;
use crate::replay::time::{self, SECOND};
use crate::replay::timeline::Timeline;

/// A log's time axis: in the unit that suits its length, from its start.
pub(crate) struct Axis<'a> {
    timeline: &'a Timeline,
    unit: (f64, &'static str),
}

impl<'a> Axis<'a> {
    /// The axis of a timeline.
    pub(crate) fn new(timeline: &'a Timeline) -> Self {
        let seconds = (timeline.counts.len() as u64 * timeline.width / SECOND) as f64;
        let units =
            [(31_557_600.0, "years"), (86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")];
        let unit = units.into_iter().find(|(unit, _)| seconds >= 3.0 * unit);
        Self { timeline, unit: unit.unwrap_or((1.0, "seconds")) }
    }

    fn label(&self) -> String {
        format!("{} from {} UTC", self.unit.1, time::written(self.timeline.start))
    }

    /// The place of an interval's boundary.
    fn at(&self, interval: usize) -> f64 {
        interval as f64 * self.timeline.width as f64 / SECOND as f64 / self.unit.0
    }

    fn span(&self) -> (f64, f64) {
        (0.0, self.at(self.timeline.counts.len()))
    }

    /// A column of the counts, per second, as steps.
    fn rates(&self, column: usize) -> Vec<(f64, f64)> {
        let seconds = self.timeline.width as f64 / SECOND as f64;
        let rows = self.timeline.counts.iter().enumerate();
        rows.flat_map(|(place, row)| {
            let rate = row.get(column).copied().unwrap_or(0) as f64 / seconds;
            [(self.at(place), rate), (self.at(place + 1), rate)]
        })
        .collect()
    }
}

/// Requests asked, and permitted by each of these rules.
pub(crate) fn asked_and_permitted(
    axis: &Axis<'_>,
    replay: &Replay,
    rules: &[usize],
    size: (u32, u32),
) -> Figure {
    let asked = axis.rates(0);
    let (per, unit) = per(asked.iter().map(|point| point.1));
    let scaled = |points: Vec<(f64, f64)>| points.into_iter().map(|(x, y)| (x, y * per)).collect();
    let asked = Series::new("asked", GREY, scaled(asked)).with_stroke(Stroke::Filled);
    let permitted = rules.iter().map(|&rule| {
        let name = match rules {
            [_] => "permitted".into(),
            _ => format!("permitted by {}", replay.trials[rule].rule),
        };
        // Where the colours start anew the lines are dashed.
        let again = rules.len() > 1 && rule >= GREY;
        let stroke = if again { Stroke::Dashed } else { Stroke::Solid };
        Series::new(name, rule % GREY, scaled(axis.rates(rule + 1))).with_stroke(stroke)
    });
    Figure {
        title: String::new(),
        x_label: axis.label(),
        x: axis.span(),
        panels: vec![Panel {
            y_label: format!("requests {unit}"),
            series: std::iter::once(asked).chain(permitted).collect(),
            marks: Vec::new(),
            log_from: None,
        }],
        size,
    }
}

/// A client's estimated rate under a rule; the dashes are the limit.
pub(crate) fn rate_and_limit(
    axis: &Axis<'_>,
    (rule, colour): (&Rule, usize),
    (rates, measure): (&[f64], &str),
    size: (u32, u32),
) -> Figure {
    let (_, decision) = rule.limit().decide(None, Nanos::ZERO, Cost::ZERO, Mode::Peek);
    let (per, unit) = per(rates.iter().copied().chain([decision.limit]));
    let points = rates.iter().enumerate().map(|(place, &rate)| (axis.at(place + 1), rate * per));
    let rate = Series::new("", colour % GREY, points.collect()).with_stroke(Stroke::Filled);
    let ends = [0.0, axis.span().1].map(|x| (x, decision.limit * per)).into();
    let limit = Series::new("", GREY, ends).with_stroke(Stroke::Dashed);
    Figure {
        title: String::new(),
        x_label: String::new(),
        x: axis.span(),
        panels: vec![Panel {
            y_label: format!("{measure} {unit}"),
            series: vec![rate, limit],
            marks: Vec::new(),
            log_from: None,
        }],
        size,
    }
}

/// The unit in which the greatest of some rates is no tiny number: how many seconds it has, and its
/// name.
pub(crate) fn per(rates: impl Iterator<Item = f64>) -> (f64, &'static str) {
    let greatest = rates.fold(0.0, f64::max);
    let units = [(1.0, "a second"), (60.0, "a minute"), (3600.0, "an hour")];
    let unit = units.into_iter().find(|(seconds, _)| greatest * seconds >= 0.05);
    unit.unwrap_or((86_400.0, "a day"))
}

/// The rates of some clients under a rule, a row a client: the greatest in each interval. Where the
/// rule measures none, what the client asked for.
pub(crate) fn rates(
    rule: &Rule,
    clients: &[u32],
    requests: impl Iterator<Item = Request>,
    timeline: &Timeline,
) -> Vec<Vec<f64>> {
    let rows = clients.iter().map(|_| Row::default()).collect();
    let mut watched = Watched { rule, timeline, rows };
    for request in requests {
        if let Some(place) = clients.iter().position(|&client| client == request.client) {
            watched.add(place, request);
        }
    }
    let end = timeline.counts.len();
    for place in 0..clients.len() {
        watched.close_until(place, end);
    }
    watched.rows.into_iter().map(|row| row.rates).collect()
}

/// Some clients, followed through the log.
struct Watched<'a> {
    rule: &'a Rule,
    timeline: &'a Timeline,
    rows: Vec<Row>,
}

#[derive(Default)]
struct Row {
    state: Option<State>,
    /// Of the intervals that are over.
    rates: Vec<f64>,
    /// In the interval that is not: the greatest rate, and the cost.
    greatest: f64,
    asked: f64,
}

impl Watched<'_> {
    fn add(&mut self, place: usize, request: Request) {
        let interval = (request.time.saturating_sub(self.timeline.start)) / self.timeline.width;
        self.close_until(place, interval as usize);
        let row = &mut self.rows[place];
        let (limit, now) = (self.rule.limit(), Nanos::new(request.time));
        let (state, decision) = limit.decide(row.state.take(), now, request.cost, Mode::Check);
        row.state = state;
        row.asked += request.cost.as_f64();
        row.greatest = row.greatest.max(decision.rate.unwrap_or(0.0));
    }

    /// Ends the intervals before `interval`.
    fn close_until(&mut self, place: usize, interval: usize) {
        let row = &mut self.rows[place];
        while row.rates.len() < interval {
            let end = (row.rates.len() as u64 + 1) * self.timeline.width + self.timeline.start;
            let limit = self.rule.limit();
            let (_, peek) =
                limit.decide(row.state.clone(), Nanos::new(end), Cost::ZERO, Mode::Peek);
            let asked = row.asked / (self.timeline.width as f64 / SECOND as f64);
            row.rates.push(peek.rate.map_or(asked, |rate| rate.max(row.greatest)));
            (row.greatest, row.asked) = (0.0, 0.0);
        }
    }
}
