//! What was found, as a table and as a figure.

use std::io::{self, Write};

use super::candidates::written;
use super::{Judged, Peaks, Share};
use crate::text::{counted, percent, write_rows};

/// Shares of the clients whose greatest peak is told.
const QUANTILES: [(f64, &str); 7] = [
    (0.5, "50 %"),
    (0.75, "75 %"),
    (0.9, "90 %"),
    (0.95, "95 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (1.0, "all"),
];

/// Writes the quantiles, the limits and the suggestion, which is the last of `judged`.
pub(crate) fn write(
    out: &mut impl Write,
    peaks: &Peaks,
    judged: &[Judged],
    share: Share,
) -> io::Result<()> {
    let descending = peaks.descending();
    let clients = descending.len();
    let requests = counted(peaks.requests, "request");
    writeln!(out, "{}, {requests}\n", counted(clients as u64, "client"))?;
    let mut rows = vec![["clients", "recent average rate at its peak, at most"].map(str::to_owned)];
    for (quantile, name) in QUANTILES {
        // The least peak that so many don't exceed.
        let above = clients - ((quantile * clients as f64).ceil() as usize).clamp(1, clients);
        rows.push([name.to_owned(), written(descending[above])]);
    }
    write_rows(out, "", &rows)?;
    writeln!(out)?;
    let header = ["limit", "passes at once", "clients touched", "", "requests denied", ""];
    let mut rows = vec![header.map(str::to_owned)];
    let Some((suggested, candidates)) = judged.split_last() else { return Ok(()) };
    rows.extend(candidates.iter().map(|judged| {
        [
            judged.rate.to_string(),
            judged.at_once.to_string(),
            judged.clients.to_string(),
            percent(judged.clients as u64, clients as u64),
            judged.requests.to_string(),
            percent(judged.requests, peaks.requests),
        ]
    }));
    write_rows(out, "", &rows)?;
    writeln!(
        out,
        "\nAt most {}% of the clients ({}) are touched by this limit: {} of them, and {} of the \
         requests.\n\n    --rule '{}'",
        share.percent(),
        share.of(clients),
        suggested.clients,
        percent(suggested.requests, peaks.requests),
        suggested.rule,
    )
}

/// The peaks of all clients, and of the worst.
pub(crate) fn figure(peaks: &Peaks, judged: &[Judged], measure: &str) -> crate::plot::Figure {
    use crate::plot::{Figure, GREY, Panel, Series, Stroke};

    /// Points of the curve of all clients.
    const POINTS: usize = 500;

    let descending = peaks.descending();
    let last = descending.len().saturating_sub(1);
    let (per, unit) = crate::replay::report::per(descending.iter().copied());
    let at = |point: usize| {
        let share = point as f64 / POINTS as f64;
        let peak = descending.get(last - (share * last as f64) as usize);
        (share * 100.0, peak.copied().unwrap_or(0.0) * per)
    };
    // A client with one request has no rate; the axis starts a little below those with two.
    let floor = peaks.of_one_request() / 10.0 * per;
    let limit = judged.last();
    let dashes = limit.map(|judged| {
        let ends = [0.0, 100.0].map(|x| (x, judged.limit * per)).into();
        let name = format!("suggested limit, {}", judged.rate);
        Series::new(name, GREY, ends).with_stroke(Stroke::Dashed)
    });
    let curve = Series::new("peak rate", 0, (0..=POINTS).map(at).collect());
    Figure {
        title: "Clients by the peak of their recent average rate".into(),
        x_label: "clients, from the calmest to the worst, in %".into(),
        x: (0.0, 100.0),
        panels: vec![Panel {
            y_label: format!("{measure} {unit}"),
            series: std::iter::once(curve.with_stroke(Stroke::Filled)).chain(dashes).collect(),
            marks: Vec::new(),
            log_from: Some(floor),
        }],
        size: (800, 420),
    }
}
