//! Figures: line charts in panels one above the other, as SVG or PNG.

use std::error::Error;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;

/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];

/// What is plainly there, before any rule: grey.
pub(crate) const GREY: usize = 6;

/// The font of all figures.
const FONT: &[u8] = include_bytes!("../assets/roboto-subset.ttf");

/// One picture.
pub(crate) struct Figure {
    /// Above all panels; may be empty.
    pub(crate) title: String,
    /// Under the lowest panel.
    pub(crate) x_label: String,
    /// What the horizontal axis spans.
    pub(crate) x: (f64, f64),
    /// From top to bottom.
    pub(crate) panels: Vec<Panel>,
    /// Width and height.
    pub(crate) size: (u32, u32),
}

/// One pair of axes.
pub(crate) struct Panel {
    /// Beside the vertical axis, with the unit.
    pub(crate) y_label: String,
    /// What is drawn, the first at the bottom.
    pub(crate) series: Vec<Series>,
    /// Instants worth a word: a dotted line and its text.
    pub(crate) marks: Vec<(f64, String)>,
}

/// One line.
pub(crate) struct Series {
    /// In the legend; not there where empty.
    pub(crate) name: String,
    /// Its place among the colours.
    pub(crate) colour: usize,
    /// How it is drawn.
    pub(crate) stroke: Stroke,
    /// Its points, from left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    /// A line.
    Solid,
    /// Dashes, for what is compared with.
    Dashed,
    /// A line and what is under it.
    Filled,
}

impl Series {
    /// A solid line.
    pub(crate) fn new(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), colour, stroke: Stroke::Solid, points }
    }

    /// Drawn in another way.
    pub(crate) fn with_stroke(self, stroke: Stroke) -> Self {
        Self { stroke, ..self }
    }
}

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
    std::fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))
}

/// A figure as SVG; without a background the page's shines through.
pub(crate) fn svg(figure: &Figure, background: Option<&RGBColor>) -> Result<String, String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, figure.size).into_drawing_area();
    draw(&area, figure, background).map_err(|error| format!("the figure: {error}"))?;
    drop(area);
    Ok(text)
}

fn png(figure: &Figure) -> Result<Vec<u8>, String> {
    let (width, height) = figure.size;
    let mut pixels = vec![255; width as usize * height as usize * 3];
    let area = BitMapBackend::with_buffer(&mut pixels, figure.size).into_drawing_area();
    draw(&area, figure, Some(&WHITE)).map_err(|error| format!("the figure: {error}"))?;
    drop(area);
    let mut content = Vec::new();
    let mut encoder = png::Encoder::new(&mut content, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder.write_header().and_then(|mut image| image.write_image_data(&pixels));
    written.map_err(|error| format!("the figure: {error}"))?;
    Ok(content)
}

fn draw<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    figure: &Figure,
    background: Option<&RGBColor>,
) -> Result<(), Box<dyn Error>>
where
    DB::ErrorType: 'static,
{
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
        area.titled(&figure.title, ("sans-serif", 20).into_font())?
    };
    let panels = area.split_evenly((figure.panels.len().max(1), 1));
    for (place, (panel, area)) in figure.panels.iter().zip(&panels).enumerate() {
        let x_label = if place + 1 == figure.panels.len() { &figure.x_label } else { "" };
        draw_panel(area, panel, figure.x, x_label)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    panel: &Panel,
    x: (f64, f64),
    x_label: &str,
) -> Result<(), Box<dyn Error>>
where
    DB::ErrorType: 'static,
{
    let points = panel.series.iter().flat_map(|series| &series.points);
    let top = points.map(|point| point.1).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.12 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(20)
        .x_label_area_size(if x_label.is_empty() { 24 } else { 42 })
        .y_label_area_size(62)
        .build_cartesian_2d(x.0..x.1.max(x.0 + 1e-9), 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .axis_style(BLACK.mix(0.6))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .x_desc(x_label)
        .y_desc(&panel.y_label)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for series in &panel.series {
        let colour = COLOURS[series.colour % COLOURS.len()];
        let style = colour.stroke_width(2);
        let points = series.points.iter().copied();
        let drawn = match series.stroke {
            Stroke::Solid => chart.draw_series(LineSeries::new(points, style))?,
            Stroke::Dashed => chart.draw_series(DashedLineSeries::new(points, 7, 5, style))?,
            Stroke::Filled => {
                let area = AreaSeries::new(points, 0.0, colour.mix(0.2)).border_style(style);
                chart.draw_series(area)?
            }
        };
        if !series.name.is_empty() {
            let dashed = series.stroke == Stroke::Dashed;
            drawn.label(&series.name).legend(move |(x, y)| {
                let ends = if dashed { [(x, y), (x + 8, y)] } else { [(x, y), (x + 20, y)] };
                let rest = if dashed { [(x + 12, y), (x + 20, y)] } else { [(x, y), (x, y)] };
                let path = |points: [(i32, i32); 2]| PathElement::new(points.to_vec(), style);
                EmptyElement::at((0, 0)) + path(ends) + path(rest)
            });
        }
    }
    for (place, (at, text)) in panel.marks.iter().enumerate() {
        let style = BLACK.mix(0.45).stroke_width(1);
        let line = [(*at, 0.0), (*at, top)].into_iter();
        chart.draw_series(DashedLineSeries::new(line, 2, 3, style))?;
        // Neighbours stand at different heights, so that they don't run into each other.
        let height = top * (0.97 - 0.09 * (place % 2) as f64);
        let text = Text::new(format!(" {text}"), (*at, height), ("sans-serif", 14));
        chart.draw_series(std::iter::once(text))?;
    }
    if panel.series.iter().any(|series| !series.name.is_empty()) {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(("sans-serif", 14))
            .legend_area_size(26)
            .margin(6)
            .draw()?;
    }
    Ok(())
}

/// A tick's number without digits that say nothing.
fn short(value: f64) -> String {
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
        let marks = vec![(2.0, "here".to_owned())];
        let panel = Panel { y_label: "requests a second".into(), series, marks };
        let empty = Panel { y_label: String::new(), series: vec![], marks: vec![] };
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
        for (value, text) in [(0.0, "0"), (-0.0, "0"), (0.25, "0.25"), (100.0, "100"), (1e-9, "0")]
        {
            assert_eq!(short(value), text);
        }
    }
}
