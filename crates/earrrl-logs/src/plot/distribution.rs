//! Figures of the rates that clients reach.

use super::{Across, Figure, Mark, Panel, Series, Stroke, Ticks};
use crate::text::per;

/// The greatest rates of the clients under one limit, in descending order.
pub(crate) struct Reached {
    /// The name in the legend.
    pub name: String,
    /// The greatest rate a second of each client.
    pub peaks: Vec<f64>,
    /// The name of the limit, beside its line.
    pub label: String,
    /// The limit a second.
    pub limit: f64,
    /// The number of clients that are above the limit.
    pub above: usize,
}

/// The least rate on the axis, as a share of the least limit. Clients with lower rates are far
/// below every limit.
const DEEPEST: f64 = 1e-3;

/// The least width of a figure in which the lines of limits have names; in others the colours tell.
const NAMING: u32 = 500;

/// The lower end of the axis of clients, so far below one client that the area of a single one is seen.
const LOWEST: f64 = 0.4;

/// Draws how many clients reach each rate under each limit, with a dashed line at the limit, and the area of the clients
/// above it.
pub(crate) fn distribution(all: &[Reached], measure: &str, size: (u32, u32)) -> Figure {
    let limits = || all.iter().map(|reached| reached.limit);
    let rates = || {
        let peaks = all.iter().flat_map(|reached| reached.peaks.iter().copied());
        peaks.chain(limits()).filter(|rate| *rate > 0.0)
    };
    let (per, unit) = per(limits());
    let greatest = rates().fold(f64::MIN_POSITIVE, f64::max);
    let lowest = limits().fold(greatest, f64::min);
    let least = rates().fold(greatest, f64::min).max(lowest * DEEPEST);
    let span = ((least * per / 1.5).log10(), (greatest * per * 2.0).log10());
    let series = all.iter().enumerate().flat_map(|(place, reached)| {
        let from = (reached.limit * per).log10().max(span.0);
        let above = &reached.peaks[..reached.peaks.partition_point(|&peak| peak > reached.limit)];
        let area = match above {
            [] => Vec::new(),
            above => curve(above, per, (from, span.1)),
        };
        [
            Series::new("", place, area).with_stroke(Stroke::Filled),
            Series::new(&reached.name, place, curve(&reached.peaks, per, span)),
        ]
    });
    let marks = all.iter().enumerate().map(|(place, reached)| Mark {
        at: (reached.limit * per).log10(),
        colour: Some(place),
        text: match size.0 {
            NAMING.. => format!("{}: {} above", reached.label, reached.above),
            _ => format!("{} above", reached.above),
        },
    });
    Figure {
        title: String::new(),
        x: Across {
            label: format!("peak rate, {measure} {unit}"),
            span,
            ticks: Ticks::Powers,
        },
        panels: vec![Panel {
            y_label: "clients that reach it".into(),
            marks: marks.collect(),
            series: series.collect(),
            log_from: Some(LOWEST),
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
