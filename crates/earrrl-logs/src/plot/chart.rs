//! Draws a panel of a figure: its legend, its axes, its lines, and its labels where they cross no line and no other
//! label.

use std::fmt::Write as _;

use super::figure::{Figure, Panel, Series, Stroke, shade};
use super::ticks::Ticks;
use crate::text::Html;

/// The size of texts in pixels.
const TEXT: u32 = 14;

/// An upper bound of the average width of a character of this size, in pixels.
const CHARACTER: f64 = 8.0;

/// The height of a label with the space around it, and of a row of the legend.
const ROW: f64 = 20.0;

/// The distance between a label and the point or the line that it is about.
const GAP: f64 = 5.0;

/// The width left of a chart, for the numbers and the label of the vertical axis; and the width right of it.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 36.0;

/// The width of the coloured line before a name in the legend.
const SAMPLE: f64 = 22.0;

/// The least distance of ticks on the horizontal and on the vertical axis.
const TICKS: (f64, f64) = (76.0, 26.0);

/// The lines of a limit, and of a mark that no limit is at.
const DASHED: &str = " stroke-dasharray=\"7 5\"";
const DOTTED: &str = " stroke-dasharray=\"2 4\" opacity=\"0.45\"";

/// A point of the drawing, in pixels from its left and upper edge.
type Point = (f64, f64);

/// The area of a chart in pixels, the values at its edges, and the lines and labels in it.
struct Chart {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// The values at the left and right edge.
    across: (f64, f64),
    /// The values at the lower and upper edge, or their decimal logarithms.
    up: (f64, f64),
    is_log: bool,
    lines: Vec<[Point; 2]>,
    labels: Vec<Area>,
}

/// The left, upper, right and lower end of a label.
struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

/// Draws a panel between two heights of its figure, with a label under the horizontal axis if it is not empty.
pub(super) fn draw(
    out: &mut String,
    panel: &Panel,
    figure: &Figure,
    label: &str,
    (top, bottom): (f64, f64),
) {
    let right = f64::from(figure.size.0) - RIGHT;
    let top = top + draw_legend(out, &panel.series, top, right + RIGHT);
    let margin = if label.is_empty() { 26.0 } else { 48.0 };
    let points = panel.series.iter().flat_map(|series| &series.points);
    let greatest = points.map(|point| point.1).fold(0.0, f64::max);
    let (from, to) = figure.x.span;
    let mut chart = Chart {
        left: LEFT,
        right,
        top: top + 8.0,
        bottom: bottom - margin,
        across: (from, if to > from { to } else { from + 1.0 }),
        up: match panel.log_from {
            Some(low) => (low.log10(), (greatest * 1.5).max(low * 10.0).log10()),
            None if greatest > 0.0 => (0.0, greatest * 1.12),
            None => (0.0, 1.0),
        },
        is_log: panel.log_from.is_some(),
        lines: Vec::new(),
        labels: Vec::new(),
    };
    chart.draw_axes(out, figure.x.ticks);
    let middle = (chart.top + chart.bottom) / 2.0;
    let centre = (chart.left + chart.right) / 2.0;
    text(out, label, (centre, bottom - 12.0), "middle", TEXT);
    let upright = format!("middle\" transform=\"rotate(270 14 {middle:.1})");
    text(out, &panel.y_label, (14.0, middle), &upright, TEXT);
    chart.draw_lines(out, panel);
    chart.draw_labels(out, panel);
}

/// Writes a text whose middle is at a height, and whose start, middle or end is at a column.
pub(super) fn text(out: &mut String, text: &str, (x, y): Point, anchor: &str, size: u32) {
    if !text.is_empty() {
        let text = Html(text.to_owned());
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" dy=\"0.5ex\" font-size=\"{size}\" text-anchor=\"{anchor}\">\n{text}\n</text>"
        );
    }
}

/// Draws the names of the series that have one in rows, and returns the height of these.
fn draw_legend(out: &mut String, series: &[Series], top: f64, right: f64) -> f64 {
    let mut at = (LEFT, top);
    let longest = ((right - LEFT - SAMPLE - GAP) / CHARACTER) as usize;
    for series in series.iter().filter(|series| !series.name.is_empty()) {
        for (part, name) in broken(&series.name, longest).iter().enumerate() {
            let width = SAMPLE + GAP + name.chars().count() as f64 * CHARACTER;
            if at.1 == top || part > 0 || at.0 + width > right {
                at = (LEFT, at.1 + ROW);
            }
            let (x, y) = at;
            if part == 0 {
                draw_line(out, &[(x, y), (x + SAMPLE, y)], &style(series, 2.0));
            }
            text(out, name, (x + SAMPLE + GAP, y), "start", TEXT);
            at.0 += width + 2.0 * GAP;
        }
    }
    at.1 - top + GAP
}

/// Breaks a text at its spaces into lines of at most so many characters, where there are spaces.
fn broken(text: &str, longest: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= longest => {
                *line += " ";
                *line += word;
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns the attributes of a series' line.
fn style(series: &Series, width: f64) -> String {
    let dashes = match series.stroke {
        Stroke::Dashed => DASHED,
        Stroke::Solid | Stroke::Filled => "",
    };
    let colour = shade(series.colour);
    format!("stroke=\"{colour}\" stroke-width=\"{width:.1}\"{dashes}")
}

fn draw_line(out: &mut String, points: &[Point], style: &str) {
    let points = written(points);
    let _ = writeln!(out, "<polyline fill=\"none\" {style} points=\"{points}\"/>");
}

fn written(points: &[Point]) -> String {
    points.iter().fold(String::new(), |mut text, (x, y)| {
        let _ = write!(text, "{x:.1},{y:.1} ");
        text
    })
}

impl Chart {
    /// Returns the pixel of a value. Values below the lower edge are drawn at it.
    fn at(&self, (x, y): (f64, f64)) -> Point {
        let y = if self.is_log { y.log10() } else { y };
        (self.column(x), self.row(y.max(self.up.0)))
    }

    fn column(&self, x: f64) -> f64 {
        let (from, to) = self.across;
        self.left + (x - from) / (to - from) * (self.right - self.left)
    }

    fn row(&self, y: f64) -> f64 {
        let (from, to) = self.up;
        self.bottom - (y - from) / (to - from) * (self.bottom - self.top)
    }

    fn draw_axes(&self, out: &mut String, across: Ticks) {
        let Self {
            left,
            right,
            top,
            bottom,
            ..
        } = *self;
        let line = |out: &mut String, from: Point, to: Point, opacity: f64| {
            let _ = writeln!(
                out,
                "<line stroke=\"#000000\" opacity=\"{opacity}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
                from.0, from.1, to.0, to.1
            );
        };
        line(out, (left, bottom), (right, bottom), 0.6);
        line(out, (left, top), (left, bottom), 0.6);
        let up = match self.is_log {
            true => Ticks::Powers,
            false => Ticks::Numbers,
        };
        for (at, number) in up.within(self.up, ((bottom - top) / TICKS.1) as usize) {
            let y = self.row(at);
            line(out, (left, y), (right, y), 0.12);
            text(out, &number, (left - 8.0, y), "end", TEXT);
        }
        for (at, number) in across.within(self.across, ((right - left) / TICKS.0) as usize) {
            let x = self.column(at);
            line(out, (x, bottom), (x, bottom + 4.0), 0.6);
            text(out, &number, (x, bottom + 14.0), "middle", TEXT);
        }
    }

    /// Draws the series and the marks. A later line is drawn over an earlier one, which is therefore
    /// wider, so that both can be seen where they coincide.
    fn draw_lines(&mut self, out: &mut String, panel: &Panel) {
        let is_solid = |series: &&Series| series.stroke != Stroke::Dashed;
        let mut further = panel.series.iter().filter(is_solid).count() as f64;
        let step = (8.0 / further.max(1.0)).min(1.0);
        for series in panel
            .series
            .iter()
            .filter(|series| !series.points.is_empty())
        {
            let points: Vec<Point> = series.points.iter().map(|&point| self.at(point)).collect();
            further -= f64::from(u8::from(is_solid(&series)));
            let width = match series.stroke {
                Stroke::Dashed => 2.0,
                Stroke::Solid | Stroke::Filled => 2.0 + further * step,
            };
            if series.stroke == Stroke::Filled {
                let ends = [points[0].0, points[points.len() - 1].0];
                let [start, end] = ends.map(|x| (x, self.bottom));
                let area = [&[start], &points[..], &[end]].concat();
                let colour = shade(series.colour);
                let _ = writeln!(
                    out,
                    "<polygon fill=\"{colour}\" opacity=\"0.2\" points=\"{}\"/>",
                    written(&area)
                );
            }
            draw_line(out, &points, &style(series, width));
            self.lines
                .extend(points.windows(2).map(|pair| [pair[0], pair[1]]));
        }
        for mark in &panel.marks {
            let x = self.column(mark.at);
            let line = [(x, self.top), (x, self.bottom)];
            let style = match mark.colour {
                None => format!("stroke=\"#000000\"{DOTTED}"),
                Some(place) => format!("stroke=\"{}\" stroke-width=\"2\"{DASHED}", shade(place)),
            };
            draw_line(out, &line, &style);
            self.lines.push(line);
        }
    }

    /// Draws the texts of the notes beside their points, and of the marks beside their lines.
    fn draw_labels(&mut self, out: &mut String, panel: &Panel) {
        for note in &panel.notes {
            let (x, y) = self.at(note.at);
            // The places above and below go first, then those farther away.
            let heights = (1..12).map(|nth| {
                let away = f64::from(nth / 2) * ROW + ROW / 2.0;
                if nth % 2 == 1 { y - away } else { y + away }
            });
            self.draw_label(out, &note.text, x, heights.chain([y]));
        }
        for mark in &panel.marks {
            let rows = ((self.bottom - self.top) / ROW * 2.0) as u32;
            let top = self.top + ROW / 2.0;
            let heights = (0..rows).map(|nth| top + f64::from(nth) * ROW / 2.0);
            self.draw_label(out, &mark.text, self.column(mark.at), heights);
        }
    }

    /// Draws a label left or right of a column, at the first of the heights at which it crosses the fewest
    /// lines and labels.
    fn draw_label(
        &mut self,
        out: &mut String,
        label: &str,
        x: f64,
        heights: impl Iterator<Item = f64>,
    ) {
        let width = label.chars().count() as f64 * CHARACTER;
        let half = f64::from(TEXT) / 2.0;
        let areas = heights.flat_map(|y| {
            [x - GAP - width, x + GAP].map(|left| Area {
                left,
                top: y - half,
                right: left + width,
                bottom: y + half,
            })
        });
        let Some(area) = areas.min_by_key(|area| self.crossings(area)) else {
            return;
        };
        let middle = (area.top + area.bottom) / 2.0;
        match area.left < x {
            true => text(out, label, (x - GAP, middle), "end", TEXT),
            false => text(out, label, (x + GAP, middle), "start", TEXT),
        }
        self.labels.push(area);
    }

    /// Counts the lines and labels that a label crosses. To be cut off counts more than any.
    fn crossings(&self, area: &Area) -> usize {
        let is_inside = area.left >= self.left
            && area.right <= self.right + RIGHT
            && area.top >= self.top
            && area.bottom <= self.bottom;
        let outside = if is_inside { 0 } else { self.lines.len() + 1 };
        let lines = self.lines.iter().filter(|line| area.meets(line)).count();
        let is_under =
            |other: &&Area| area.overlaps((other.left, other.right), (other.top, other.bottom));
        outside + lines + self.labels.iter().filter(is_under).count()
    }
}

impl Area {
    /// Returns true if a rectangle between these columns and heights overlaps the area.
    fn overlaps(&self, across: (f64, f64), up: (f64, f64)) -> bool {
        self.left <= across.1 && across.0 <= self.right && self.top <= up.1 && up.0 <= self.bottom
    }

    /// Returns true if a line passes through the area: its corners are not all on one side of the line.
    fn meets(&self, [from, to]: &[Point; 2]) -> bool {
        let side = |x: f64, y: f64| (to.0 - from.0) * (y - from.1) - (to.1 - from.1) * (x - from.0);
        let sides = [
            side(self.left, self.top),
            side(self.right, self.top),
            side(self.left, self.bottom),
            side(self.right, self.bottom),
        ];
        let columns = (from.0.min(to.0), from.0.max(to.0));
        let rows = (from.1.min(to.1), from.1.max(to.1));
        self.overlaps(columns, rows)
            && sides.iter().any(|side| *side >= 0.0)
            && sides.iter().any(|side| *side <= 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_meets_an_area_that_it_passes_through() {
        let area = Area {
            left: 10.0,
            top: 10.0,
            right: 20.0,
            bottom: 20.0,
        };
        for (line, meets) in [
            ([(0.0, 0.0), (30.0, 30.0)], true),
            ([(30.0, 30.0), (0.0, 0.0)], true),
            ([(15.0, 0.0), (15.0, 30.0)], true),
            ([(12.0, 12.0), (14.0, 14.0)], true),
            ([(0.0, 15.0), (9.0, 15.0)], false),
            ([(0.0, 15.0), (30.0, 60.0)], false),
            ([(0.0, 25.0), (30.0, 25.0)], false),
        ] {
            assert_eq!(area.meets(&line), meets, "{line:?}");
        }
    }
}
