//! Draws figures as SVG: line charts in panels, one above the other.

mod calendar;
mod figure;
mod legend;
mod ticks;

use std::error::Error;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::text::plain;
pub use calendar::days;
pub use figure::{Across, Figure, GREY, Mark, Note, Panel, Series, Stroke};
use figure::{GRAIN, colour, font, shade};
pub use ticks::Ticks;
use ticks::{Ticked, short};

/// The width in pixels left of the vertical axis, for its numbers and its label.
const LEFT: u32 = 70;

/// The margin in pixels right of the charts.
const MARGIN_RIGHT: u32 = 20;

/// The least distance of ticks in pixels, on the horizontal and on the vertical axis.
const TICK: (u32, u32) = (64, 22);

/// An upper bound of the average width of a character, in pixels.
const CHARACTER: u32 = 7;

/// The number of points a pixel above which lines are drawn thinner.
const DENSE: f64 = 1.5;

/// The font file of all figures.
const FONT: &[u8] = include_bytes!("../../assets/roboto-subset.ttf");

/// Writes a figure to an SVG file.
///
/// # Errors
/// Returns one line with the reason if the name does not end in `.svg`, or if the file cannot be
/// written.
pub fn save(figure: &Figure, path: &Path) -> Result<(), String> {
    let problem_of = |problem: &str| format!("{}: {problem}", path.display());
    if !is_svg(path) {
        return Err(problem_of(EXPECTED));
    }
    let content = svg(figure, Some(&WHITE))?;
    std::fs::write(path, content).map_err(|error| problem_of(&plain(&error)))
}

/// The error message for a file name that does not end in `.svg`.
pub const EXPECTED: &str =
    "expected a name that ends in .svg; for PNG, convert the SVG, with rsvg-convert for example";

/// Returns true if a file name ends in `.svg`.
///
/// ```
/// # use earrrl_logs::plot::is_svg;
/// assert!(is_svg("rates.svg".as_ref()) && !is_svg("rates.png".as_ref()));
/// ```
pub fn is_svg(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "svg")
}

/// Renders a figure as SVG. Without a background colour the picture is transparent.
///
/// # Errors
/// Returns one line with the reason if the figure cannot be drawn.
pub fn svg(figure: &Figure, background: Option<&RGBColor>) -> Result<String, String> {
    let (width, height) = figure.size;
    let fine = (width * GRAIN, height * GRAIN);
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, fine).into_drawing_area();
    draw(&area, figure, background).map_err(|error| format!("the figure: {error}"))?;
    drop(area);
    // The view box keeps the large size of the drawing; only the shown width and height are
    // reduced.
    let drawn = format!(r#"width="{}" height="{}""#, fine.0, fine.1);
    let shown = format!(r#"width="{width}" height="{height}" stroke-linejoin="round""#);
    Ok(text.replacen(&drawn, &shown, 1))
}

fn draw<DB: DrawingBackend<ErrorType: 'static>>(
    area: &DrawingArea<DB, Shift>,
    figure: &Figure,
    background: Option<&RGBColor>,
) -> Result<(), Box<dyn Error>> {
    static FONTS: Once = Once::new();
    FONTS.call_once(|| {
        // Registering fails only for a file that is no font, and this one is compiled in.
        let _ = plotters::style::register_font("sans-serif", FontStyle::Normal, FONT);
    });
    if let Some(background) = background {
        area.fill(background)?;
    }
    let area = if figure.title.is_empty() {
        area.clone()
    } else {
        area.margin(8 * GRAIN, 0, 0, 0).titled(&figure.title, font(20))?
    };
    let panels = area.split_evenly((figure.panels.len().max(1), 1));
    for (place, (panel, area)) in figure.panels.iter().zip(&panels).enumerate() {
        draw_panel(area, panel, &figure.x, place + 1 == figure.panels.len())?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel<DB: DrawingBackend<ErrorType: 'static>>(
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
    let span = if x.span.1 > x.span.0 { x.span } else { (x.span.0, x.span.0 + 1.0) };
    let width = (area.dim_in_pixel().0 / GRAIN).saturating_sub(LEFT + MARGIN_RIGHT);
    let ticks = x.ticks.within(span, (width / TICK.0) as usize);
    let axis = Ticked::new(span, ticks);
    let mut builder = ChartBuilder::on(&area);
    builder
        .margin(8 * GRAIN)
        .margin_right(MARGIN_RIGHT * GRAIN)
        .x_label_area_size(if x_label.is_empty() { 24 } else { 42 } * GRAIN)
        .y_label_area_size((LEFT - 8) * GRAIN);
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
        .label_style(font(14))
        .axis_desc_style(font(15))
        .x_desc(x_label)
        .y_desc(&panel.y_label)
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    let points = panel.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
    let dense = points as f64 > DENSE * f64::from(width / GRAIN);
    let thickness = if dense { 3 * GRAIN / 2 } else { 2 * GRAIN };
    for series in &panel.series {
        draw_series(&mut chart, series, thickness, ends.0)?;
    }
    draw_notes(&mut chart, &panel.notes)?;
    let height = |share: f64| match panel.log_from {
        Some(_) => ends.0 * (ends.1 / ends.0).powf(share),
        None => ends.1 * share,
    };
    panel.marks.iter().try_for_each(|mark| draw_mark(&mut chart, mark, ends, height(mark.height)))
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

/// Draws texts beside their points: above and to the left, or to the right.
fn draw_notes<'a, DB, Y>(chart: &mut Axes<'a, DB, Y>, notes: &[Note]) -> Result<(), Box<dyn Error>>
where
    DB: DrawingBackend<ErrorType: 'static> + 'a,
    Y: Ranged<ValueType = f64>,
{
    for Note { at, text, before } in notes {
        let grain = GRAIN as i32;
        let (side, beside) = match before {
            true => (Pos::new(HPos::Right, VPos::Bottom), (-2 * grain, -3 * grain)),
            false => (Pos::new(HPos::Left, VPos::Center), (6 * grain, 0)),
        };
        let style = TextStyle::from(font(14)).pos(side);
        let text = EmptyElement::at(*at) + Text::new(text.clone(), beside, style);
        chart.draw_series(std::iter::once(text))?;
    }
    Ok(())
}

fn draw_mark<'a, DB, Y>(
    chart: &mut Axes<'a, DB, Y>,
    Mark { at, colour, text, .. }: &Mark,
    (bottom, top): (f64, f64),
    height: f64,
) -> Result<(), Box<dyn Error>>
where
    DB: DrawingBackend<ErrorType: 'static> + 'a,
    Y: Ranged<ValueType = f64>,
{
    let (style, dash) = match colour {
        None => (BLACK.mix(0.45).stroke_width(GRAIN), 2),
        Some(place) => (shade(*place).stroke_width(2 * GRAIN), 7),
    };
    let line = [(*at, bottom), (*at, top)].into_iter();
    chart.draw_series(DashedLineSeries::new(line, dash * GRAIN, 4 * GRAIN, style))?;
    // Text that would extend beyond the right edge of the picture is drawn left of the line.
    let (place, _) = chart.backend_coord(&(*at, height));
    let (columns, _) = chart.plotting_area().get_pixel_range();
    let fits = place + (text.chars().count() as u32 * CHARACTER * GRAIN) as i32 <= columns.end;
    let (side, beside) = if fits { (HPos::Left, 5) } else { (HPos::Right, -5) };
    let style = TextStyle::from(font(14)).pos(Pos::new(side, VPos::Center));
    let beside = (beside * GRAIN as i32, 0);
    let text = EmptyElement::at((*at, height)) + Text::new(text.clone(), beside, style);
    chart.draw_series(std::iter::once(text))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let line =
            |stroke| Series::new("rate", 1, vec![(0.0, 1.0), (5.0, 3.0)]).with_stroke(stroke);
        let series = [Stroke::Solid, Stroke::Dashed, Stroke::Filled].map(line).into();
        let marks = vec![Mark::new(2.0, 0.5, "here")];
        let notes = vec![Note { at: (5.0, 3.0), text: "most".into(), before: true }];
        let y_label = "requests a second".to_owned();
        let panel = Panel { y_label, series, marks, notes, log_from: Some(0.1) };
        Figure {
            title: "A & B".into(),
            x: Across { label: "s".into(), span: (0.0, 5.0), ticks: Ticks::Numbers },
            panels: vec![panel, Panel::default()],
            size: (400, 300),
        }
    }

    #[test]
    fn figures_are_written_as_svg() {
        let directory = tempfile::tempdir().unwrap();
        let save = |name: &str| {
            let path = directory.path().join(name);
            save(&figure(), &path).map(|()| std::fs::read(path).unwrap())
        };
        let svg = String::from_utf8(save("a.svg").unwrap()).unwrap();
        assert!(svg.contains("A &amp; B") && svg.contains("requests a second"));
        assert!(svg.contains("here") && svg.contains("most"));
        for name in ["a.png", "a.gif", "svg"] {
            assert!(save(name).unwrap_err().contains("ends in .svg"), "{name}");
        }
    }
}
