//! Figures of the requests asked and permitted over time.

use crate::line::time::SECOND;
use crate::plot::{Across, Figure, GREY, Panel, Series, Stroke, Ticks, days};
use crate::replay::Timeline;
use crate::text::{per, three_digits};

/// Returns one column of the timeline's counts as a step curve: times in seconds, and requests a
/// second.
fn rates(timeline: &Timeline, column: usize) -> Vec<(f64, f64)> {
    let start = timeline.start as f64;
    let width = timeline.width as f64;
    let at = |place: usize| (start + place as f64 * width) / SECOND as f64;
    let rows = timeline.counts.iter().enumerate();
    rows.flat_map(|(place, row)| {
        let rate = row.get(column).copied().unwrap_or(0) as f64 / (width / SECOND as f64);
        [(at(place), rate), (at(place + 1), rate)]
    })
    .collect()
}

/// A column of a timeline that is drawn over the requests asked: its name, its index in the
/// timeline's rows, and the index of its colour.
pub type Column = (String, usize, usize);

/// Draws the timeline's column `asked` as a filled area, and over it each of the other columns as a
/// line in a panel of its own, since lines that coincide would hide each other. `size` is the size
/// of a panel.
///
/// ```
/// # use earrrl_logs::reading::{HeldBack, LogReader, Selection};
/// # let selection = Selection {
/// #     format: None,
/// #     hints: Default::default(),
/// #     key: "client".parse()?,
/// #     prefixes: Default::default(),
/// #     costs: Default::default(),
/// #     filter: Default::default(),
/// # };
/// # let mut reader = LogReader::new(selection);
/// # let mut held = HeldBack::default();
/// # reader.read("../../testdata/logs/abuse.log.gz".as_ref(), |source| source, &mut |_, requests| held.extend(requests))?;
/// # held.sort();
/// # use earrrl_logs::{reading::ClientNames, replay::Replay, report::{self, Summary}};
/// # let mut replay = Replay::new(["fixed-window 60/1m".parse()?]).with_timeline();
/// # held.each(|requests| { replay.judge_all(requests); Ok::<(), std::io::Error>(()) })?;
/// # let names = ClientNames::new(false);
/// use earrrl_logs::{plot, report::over_time};
/// let timeline = replay.timeline.as_ref().ok_or("no timeline")?;
/// let figure = over_time(timeline, 0, &[("fixed-window 60/1m".to_owned(), 1, 0)], (960, 300));
/// assert!(plot::svg(&figure).starts_with("<svg"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn over_time(
    timeline: &Timeline,
    asked: usize,
    columns: &[Column],
    size: (u32, u32),
) -> Figure {
    let asked = rates(timeline, asked);
    let (per, unit) = per(asked.iter().map(|point| point.1));
    let scaled = |points: Vec<(f64, f64)>| points.into_iter().map(|(x, y)| (x, y * per)).collect();
    let asked: Vec<(f64, f64)> = scaled(asked);
    let panels: Vec<Panel> = columns
        .iter()
        .map(|(name, column, colour)| {
            let asked = Series::new("asked", GREY, asked.clone()).with_stroke(Stroke::Filled);
            let line = Series::new(name, colour % GREY, scaled(rates(timeline, *column)));
            Panel {
                y_label: format!("requests {unit}"),
                series: vec![asked, line],
                ..Panel::default()
            }
        })
        .collect();
    let height = size.1 * panels.len().max(1) as u32;
    let seconds = |time: u64| time as f64 / SECOND as f64;
    let end = timeline.start + timeline.counts.len() as u64 * timeline.width;
    Figure {
        title: String::new(),
        x: Across {
            label: days((timeline.start / SECOND) as i64, (end / SECOND) as i64),
            span: (seconds(timeline.start), seconds(end)),
            ticks: Ticks::Calendar,
        },
        panels,
        size: (size.0, height),
    }
}

/// Writes a rate, given in requests a second, with three digits in a suitable unit.
pub(crate) fn written_rate(rate: f64) -> String {
    let (per, unit) = per(std::iter::once(rate));
    format!("{} {unit}", three_digits(rate * per))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits_and_a_unit() {
        for (rate, text) in [
            (0.0, "0 a day"),
            (6.2749, "6.27 a second"),
            (100.0, "100 a second"),
            (1234.5, "1234 a second"),
            (0.01, "0.6 a minute"),
            (1e-9, "0.000086 a day"),
        ] {
            assert_eq!(written_rate(rate), text);
        }
    }
}
