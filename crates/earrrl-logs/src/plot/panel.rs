//! Draws a panel of a figure: its axes, lines and labels.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{Pos, VPos};

use super::figure::{Across, GRAIN, Panel, Series, Stroke, TEXT, colour, font, shade};
use super::labels::{Labels, Rectangle, Spot};
use super::legend;
use super::ticks::{Ticked, short};

/// The width in pixels left of the vertical axis, for its numbers and its label.
const LEFT: u32 = 76;

/// The margin in pixels right of the charts.
const MARGIN_RIGHT: u32 = 36;

/// The margin in pixels above the charts.
const MARGIN: u32 = 8;

/// The least distance of ticks in pixels, on the horizontal and on the vertical axis.
const TICK: (u32, u32) = (76, 26);

/// The number of points a pixel above which lines are drawn thinner.
const DENSE: f64 = 1.5;

/// Draws a panel; only the last one of a figure has a label below its horizontal axis.
pub(super) fn draw<DB: DrawingBackend<ErrorType: 'static>>(
    area: &DrawingArea<DB, Shift>,
    panel: &Panel,
    x: &Across,
    is_last: bool,
) -> Result<(), Box<dyn Error>> {
    let points = panel.series.iter().flat_map(|series| &series.points);
    let top = points.map(|point| point.1).fold(0.0, f64::max);
    let top = match panel.log_from {
        _ if top <= 0.0 => 1.0,
        Some(_) => top * 1.5,
        None => top * 1.12,
    };
    let x_label = if is_last { &x.label } else { "" };
    let area = legend::draw(area, &panel.series, LEFT)?;
    let span = if x.span.1 > x.span.0 {
        x.span
    } else {
        (x.span.0, x.span.0 + 1.0)
    };
    let width = (area.dim_in_pixel().0 / GRAIN).saturating_sub(LEFT + MARGIN_RIGHT);
    let ticks = x.ticks.within(span, (width / TICK.0) as usize);
    let axis = Ticked::new(span, ticks);
    let mut builder = ChartBuilder::on(&area);
    builder
        .margin(MARGIN * GRAIN)
        .margin_right(MARGIN_RIGHT * GRAIN)
        .x_label_area_size(if x_label.is_empty() { 26 } else { 48 } * GRAIN)
        .y_label_area_size((LEFT - MARGIN) * GRAIN);
    match panel.log_from {
        Some(bottom) => {
            let top = top.max(bottom * 10.0);
            let chart = builder.build_cartesian_2d(axis, (bottom..top).log_scale())?;
            fill_panel(chart, panel, x_label, (bottom, top))
        }
        None => {
            let chart = builder.build_cartesian_2d(axis, 0.0..top)?;
            fill_panel(chart, panel, x_label, (0.0, top))
        }
    }
}

/// The axes of a panel: the horizontal one is linear, the vertical one linear or logarithmic.
type Axes<'a, DB, Y> = ChartContext<'a, DB, Cartesian2d<Ticked, Y>>;

fn fill_panel<'a, DB, Y>(
    mut chart: Axes<'a, DB, Y>,
    panel: &Panel,
    x_label: &str,
    ends: (f64, f64),
) -> Result<(), Box<dyn Error>>
where
    DB: DrawingBackend<ErrorType: 'static> + 'a,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let (width, height) = chart.plotting_area().dim_in_pixel();
    chart
        .configure_mesh()
        .y_labels((height / GRAIN / TICK.1) as usize)
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12).stroke_width(GRAIN))
        .axis_style(BLACK.mix(0.6).stroke_width(GRAIN))
        .set_all_tick_mark_size(4 * GRAIN)
        .label_style(font(TEXT))
        .axis_desc_style(font(TEXT))
        .x_desc(x_label)
        .y_desc(&panel.y_label)
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    let points = panel
        .series
        .iter()
        .map(|series| series.points.len())
        .max()
        .unwrap_or(0);
    let dense = points as f64 > DENSE * f64::from(width / GRAIN);
    let thickness = if dense { 3 * GRAIN / 2 } else { 2 * GRAIN };
    let mut labels = Labels::new(room(&chart));
    let widths = widths(&panel.series, thickness);
    for (series, width) in panel.series.iter().zip(widths) {
        draw_series(&mut chart, series, width, ends.0)?;
        let points = series
            .points
            .iter()
            .map(|&(x, y)| chart.backend_coord(&(x, y.max(ends.0))));
        labels.add_line(points);
    }
    for mark in &panel.marks {
        let (place, dash) = match mark.colour {
            None => (BLACK.mix(0.45).stroke_width(GRAIN), 2),
            Some(place) => (shade(place).stroke_width(2 * GRAIN), 7),
        };
        let line = [(mark.at, ends.0), (mark.at, ends.1)];
        let dashes = DashedLineSeries::new(line, dash * GRAIN, 4 * GRAIN, place);
        chart.draw_series(dashes)?;
        labels.add_line(line.iter().map(|end| chart.backend_coord(end)));
    }
    draw_labels(&chart, panel, &mut labels)
}

/// Returns the area in which labels may be: the chart, and the margins above and right of it.
fn room<DB: DrawingBackend, Y: Ranged<ValueType = f64>>(chart: &Axes<'_, DB, Y>) -> Rectangle {
    let (columns, rows) = chart.plotting_area().get_pixel_range();
    Rectangle {
        left: columns.start,
        top: rows.start - (MARGIN * GRAIN) as i32,
        right: columns.end + (MARGIN_RIGHT * GRAIN) as i32,
        bottom: rows.end,
    }
}

/// Returns the width of each line. A later line is drawn over an earlier one, which is therefore
/// wider, so that both can be seen where they coincide.
fn widths(series: &[Series], thinnest: u32) -> impl Iterator<Item = u32> {
    let solid = |series: &&Series| series.stroke != Stroke::Dashed && !series.points.is_empty();
    let mut further = series.iter().filter(solid).count() as u32;
    let step = (8 * GRAIN / further.max(1)).min(GRAIN);
    series.iter().map(move |series| {
        if solid(&series) {
            further -= 1;
            thinnest + further * step
        } else {
            thinnest
        }
    })
}

fn draw_series<'a, DB, Y>(
    chart: &mut Axes<'a, DB, Y>,
    series: &Series,
    thickness: u32,
    bottom: f64,
) -> Result<(), Box<dyn Error>>
where
    DB: DrawingBackend<ErrorType: 'static> + 'a,
    Y: Ranged<ValueType = f64>,
{
    let colour = colour(series);
    let style = colour.stroke_width(thickness);
    let points = series.points.iter().map(|&(x, y)| (x, y.max(bottom)));
    match series.stroke {
        Stroke::Solid => chart.draw_series(LineSeries::new(points, style))?,
        Stroke::Dashed => {
            chart.draw_series(DashedLineSeries::new(points, 7 * GRAIN, 5 * GRAIN, style))?
        }
        Stroke::Filled => {
            let area = AreaSeries::new(points, bottom, colour.mix(0.2)).border_style(style);
            chart.draw_series(area)?
        }
    };
    Ok(())
}

/// Draws the texts of the notes beside their points, and of the marks beside their lines.
fn draw_labels<DB, Y>(
    chart: &Axes<'_, DB, Y>,
    panel: &Panel,
    labels: &mut Labels,
) -> Result<(), Box<dyn Error>>
where
    DB: DrawingBackend<ErrorType: 'static>,
    Y: Ranged<ValueType = f64>,
{
    let area = chart.plotting_area().use_screen_coord();
    let draw = |text: &str, Spot { at, edge }: Spot| {
        let style = TextStyle::from(font(TEXT)).pos(Pos::new(edge, VPos::Center));
        area.draw(&Text::new(text.to_owned(), at, style))
    };
    for note in &panel.notes {
        draw(
            &note.text,
            labels.beside_point(&note.text, chart.backend_coord(&note.at)),
        )?;
    }
    for mark in panel.marks.iter().filter(|mark| !mark.text.is_empty()) {
        let (x, _) = chart.backend_coord(&(mark.at, 1.0));
        draw(&mark.text, labels.beside_line(&mark.text, x))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_coincide_differ_in_width() {
        let line = |stroke| Series::new("", 0, vec![(0.0, 1.0)]).with_stroke(stroke);
        let series = [Stroke::Solid, Stroke::Dashed, Stroke::Filled, Stroke::Solid].map(line);
        assert_eq!(widths(&series, 8).collect::<Vec<_>>(), [16, 8, 12, 8]);
        let many: Vec<Series> = (0..64).map(|_| line(Stroke::Solid)).collect();
        assert!(widths(&many, 8).all(|width| width <= 10 * GRAIN));
    }
}
