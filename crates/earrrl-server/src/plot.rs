//! Figures: line charts in panels one above the other, as SVG or PNG.

mod figure;
mod legend;

use std::error::Error;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use resvg::{tiny_skia, usvg};

use crate::text::plain;
pub(crate) use figure::{Figure, GREY, Mark, Panel, Series, Stroke};
use figure::{GRAIN, colour, font};

/// Where the axes start, with their numbers and labels to the left.
const LEFT: u32 = 70;

/// Right of the axes.
const MARGIN_RIGHT: u32 = 20;

/// Room for a number on the axis across, and on the one upwards.
const TICK: (u32, u32) = (64, 22);

/// Points a pixel from which on lines are drawn thin.
const DENSE: f64 = 1.5;

/// The font of all figures.
const FONT: &[u8] = include_bytes!("../assets/roboto-subset.ttf");

/// Writes a figure to a file; its ending says as what.
///
/// # Errors
/// In one line.
pub(crate) fn save(figure: &Figure, path: &Path) -> Result<(), String> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let content = match extension {
        Some("svg") => svg(figure, Some(&WHITE))?.into_bytes(),
        Some("png") => png(figure)?,
        _ => return Err(format!("{}: expected a name that ends in .svg or .png", path.display())),
    };
    std::fs::write(path, content).map_err(|error| format!("{}: {}", path.display(), plain(&error)))
}

/// A figure as SVG; without a background the page's shines through.
///
/// # Errors
/// In one line.
pub(crate) fn svg(figure: &Figure, background: Option<&RGBColor>) -> Result<String, String> {
    let (width, height) = figure.size;
    let fine = (width * GRAIN, height * GRAIN);
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, fine).into_drawing_area();
    draw(&area, figure, background).map_err(|error| format!("the figure: {error}"))?;
    drop(area);
    // The view box stays large, the picture is shown in its size.
    let drawn = format!(r#"width="{}" height="{}""#, fine.0, fine.1);
    let shown = format!(r#"width="{width}" height="{height}" stroke-linejoin="round""#);
    Ok(text.replacen(&drawn, &shown, 1))
}

/// A figure as PNG: its SVG, painted at twice the size, for screens as sharp as paper.
fn png(figure: &Figure) -> Result<Vec<u8>, String> {
    const SCALE: u32 = 2;

    let told = |error: &dyn std::fmt::Display| format!("the figure: {error}");
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family("Roboto");
    let tree = usvg::Tree::from_str(&svg(figure, Some(&WHITE))?, &options);
    let tree = tree.map_err(|error| told(&error))?;
    let (width, height) = (figure.size.0 * SCALE, figure.size.1 * SCALE);
    let mut pixels = tiny_skia::Pixmap::new(width, height).ok_or_else(|| told(&"no size"))?;
    let scale = tiny_skia::Transform::from_scale(SCALE as f32, SCALE as f32);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| told(&error))
}

fn draw<DB: DrawingBackend<ErrorType: 'static>>(
    area: &DrawingArea<DB, Shift>,
    figure: &Figure,
    background: Option<&RGBColor>,
) -> Result<(), Box<dyn Error>> {
    static FONTS: Once = Once::new();
    FONTS.call_once(|| {
        // It is a font: the file comes with the program.
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
        let x_label = if place + 1 == figure.panels.len() { &figure.x_label } else { "" };
        draw_panel(area, panel, figure.x, x_label)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel<DB: DrawingBackend<ErrorType: 'static>>(
    area: &DrawingArea<DB, Shift>,
    panel: &Panel,
    x: (f64, f64),
    x_label: &str,
) -> Result<(), Box<dyn Error>> {
    let points = panel.series.iter().flat_map(|series| &series.points);
    let top = points.map(|point| point.1).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.12 } else { 1.0 };
    let x_range = x.0..x.1.max(x.0 + 1.0);
    let area = legend::draw(area, &panel.series, LEFT)?;
    let mut builder = ChartBuilder::on(&area);
    builder
        .margin(8 * GRAIN)
        .margin_right(MARGIN_RIGHT * GRAIN)
        .x_label_area_size(if x_label.is_empty() { 24 } else { 42 } * GRAIN)
        .y_label_area_size((LEFT - 8) * GRAIN);
    match panel.log_from {
        Some(bottom) => {
            let range = (bottom..top.max(bottom * 10.0)).log_scale();
            fill_panel(builder.build_cartesian_2d(x_range, range)?, panel, x_label, (bottom, top))
        }
        None => {
            fill_panel(builder.build_cartesian_2d(x_range, 0.0..top)?, panel, x_label, (0.0, top))
        }
    }
}

/// A panel's axes, linear across; linear or logarithmic upwards.
type Axes<'a, DB, Y> = ChartContext<'a, DB, Cartesian2d<RangedCoordf64, Y>>;

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
        .x_labels((width / GRAIN / TICK.0) as usize)
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
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    let points = panel.series.iter().map(|series| series.points.len()).max().unwrap_or(0);
    let dense = points as f64 > DENSE * f64::from(width / GRAIN);
    let thickness = if dense { 3 * GRAIN / 2 } else { 2 * GRAIN };
    for series in &panel.series {
        draw_series(&mut chart, series, thickness, ends.0)?;
    }
    draw_marks(&mut chart, &panel.marks, ends)
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

fn draw_marks<'a, DB, Y>(
    chart: &mut Axes<'a, DB, Y>,
    marks: &[Mark],
    (bottom, top): (f64, f64),
) -> Result<(), Box<dyn Error>>
where
    DB: DrawingBackend<ErrorType: 'static> + 'a,
    Y: Ranged<ValueType = f64>,
{
    for &Mark { at, height, text } in marks {
        let style = BLACK.mix(0.45).stroke_width(GRAIN);
        let line = [(at, bottom), (at, top)].into_iter();
        chart.draw_series(DashedLineSeries::new(line, 2 * GRAIN, 3 * GRAIN, style))?;
        let beside = (5 * GRAIN as i32, 0);
        let text = EmptyElement::at((at, top * height)) + Text::new(text, beside, font(14));
        chart.draw_series(std::iter::once(text))?;
    }
    Ok(())
}

/// A tick's number without digits that say nothing.
fn short(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let line =
            |stroke| Series::new("rate", 1, vec![(0.0, 1.0), (5.0, 3.0)]).with_stroke(stroke);
        let series = [Stroke::Solid, Stroke::Dashed, Stroke::Filled].map(line).into();
        let marks = vec![Mark { at: 2.0, height: 0.5, text: "here" }];
        let label = "requests a second".to_owned();
        let panel = Panel { y_label: label, series, marks, log_from: Some(0.1) };
        let empty = Panel { y_label: String::new(), series: vec![], marks: vec![], log_from: None };
        let panels = vec![panel, empty];
        Figure {
            title: "A & B".into(),
            x_label: "s".into(),
            x: (0.0, 0.0),
            panels,
            size: (400, 300),
        }
    }

    #[test]
    fn a_figure_is_written_as_its_name_says() {
        let directory = tempfile::tempdir().unwrap();
        let save = |name: &str| {
            let path = directory.path().join(name);
            save(&figure(), &path).map(|()| std::fs::read(path).unwrap())
        };
        let svg = String::from_utf8(save("a.svg").unwrap()).unwrap();
        assert!(svg.contains("A &amp; B") && svg.contains("requests a second"));
        let png = save("a.png").unwrap();
        assert!(png.starts_with(b"\x89PNG"));
        assert_eq!(png, save("b.png").unwrap());
        assert!(save("a.gif").unwrap_err().contains(".svg or .png"));
    }

    #[test]
    fn ticks_are_short() {
        for (value, text) in
            [(0.0, "0"), (-0.0, "0"), (0.25, "0.25"), (100.0, "100"), (1e-9, "1e-9")]
        {
            assert_eq!(short(value), text);
        }
    }
}
