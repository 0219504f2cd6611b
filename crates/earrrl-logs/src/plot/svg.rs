//! Writes figures as SVG files, and as parts of pages.

use std::error::Error;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::figure::{Figure, GRAIN, Panel, Series, Stroke, TITLE, font};
use super::panel;
use super::ticks::short;
use crate::text::{Html, plain};

/// The font file of all figures.
const FONT: &[u8] = include_bytes!("../../assets/roboto-subset.ttf");

/// The style of files on dark pages: the colours of the background, of texts and axes, and of lines
/// that would be too dark.
const DARK: &str = "@media (prefers-color-scheme: dark) { \
    [fill='#FFFFFF'] { fill: #0d1117 } text { fill: #e6edf3 } \
    [stroke='#000000'] { stroke: #e6edf3 } [stroke='#6E6E6E'] { stroke: #9198a1 } \
    [fill='#6E6E6E'] { fill: #9198a1 } [stroke='#0072B2'] { stroke: #56b4e9 } \
    [fill='#0072B2'] { fill: #56b4e9 } }";

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
    let content = with_dark_mode(&svg(figure, Some(&WHITE))?);
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
    let shown = format!(r#"role="img" width="{width}" height="{height}" stroke-linejoin="round""#);
    let text = text.replacen(&drawn, &shown, 1);
    let start = text.find(">\n").map_or(0, |end| end + 2);
    Ok(format!(
        "{}{}{}",
        &text[..start],
        described(figure),
        &text[start..]
    ))
}

/// Returns the title of a figure, and as its description the peaks of its lines and its notes, for
/// programs that read pages aloud.
fn described(figure: &Figure) -> String {
    let axes = figure.panels.iter().map(|panel| panel.y_label.clone());
    let mut titles: Vec<String> = match figure.title.is_empty() {
        true => axes.filter(|label| !label.is_empty()).collect(),
        false => vec![figure.title.clone()],
    };
    titles.dedup();
    let mut facts: Vec<String> = figure.panels.iter().flat_map(peaks).collect();
    let notes = figure.panels.iter().flat_map(|panel| &panel.notes);
    facts.extend(notes.map(|note| note.text.clone()));
    facts.dedup();
    let title = Html(titles.join("; "));
    let facts = Html(facts.join("; "));
    format!("<title>{title}</title>\n<desc>{facts}</desc>\n")
}

/// Returns the greatest value of each line of a panel. A line without a name is the one that the
/// label of the axis is about, unless it is dashed.
fn peaks(panel: &Panel) -> impl Iterator<Item = String> {
    let lines = panel.series.iter().filter(|series| series.points.len() > 1);
    lines.filter_map(
        |Series {
             name,
             stroke,
             points,
             ..
         }| {
            let name = match name.is_empty() {
                true if *stroke == Stroke::Dashed => return None,
                true => &panel.y_label,
                false => name,
            };
            let peak = points.iter().map(|point| point.1).fold(0.0, f64::max);
            Some(format!("{name}: at most {}", short(peak)))
        },
    )
}

/// Returns a figure with a style for readers that prefer dark pages.
fn with_dark_mode(svg: &str) -> String {
    svg.replacen("<title>", &format!("<style>{DARK}</style>\n<title>"), 1)
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
        area.margin(8 * GRAIN, 0, 0, 0)
            .titled(&figure.title, font(TITLE))?
    };
    let panels = area.split_evenly((figure.panels.len().max(1), 1));
    for (place, (panel, area)) in figure.panels.iter().zip(&panels).enumerate() {
        panel::draw(area, panel, &figure.x, place + 1 == figure.panels.len())?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Across, Mark, Note, Ticks};

    fn figure() -> Figure {
        let line =
            |stroke| Series::new("rate", 1, vec![(0.0, 1.0), (5.0, 3.0)]).with_stroke(stroke);
        let series = [Stroke::Solid, Stroke::Dashed, Stroke::Filled]
            .map(line)
            .into();
        let marks = vec![Mark::new(2.0, "here")];
        let notes = vec![Note {
            at: (5.0, 3.0),
            text: "most".into(),
        }];
        let y_label = "requests a second".to_owned();
        let panel = Panel {
            y_label,
            series,
            marks,
            notes,
            log_from: Some(0.1),
        };
        Figure {
            title: "A & B".into(),
            x: Across {
                label: "s".into(),
                span: (0.0, 5.0),
                ticks: Ticks::Numbers,
            },
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
        assert!(svg.starts_with("<svg role=\"img\" width=\"400\" height=\"300\""));
        assert!(
            svg.contains("<title>A &amp; B</title>\n<desc>rate: at most 3; most</desc>"),
            "{svg}"
        );
        assert!(svg.contains("prefers-color-scheme: dark"));
        for name in ["a.png", "a.gif", "svg"] {
            assert!(save(name).unwrap_err().contains("ends in .svg"), "{name}");
        }
    }
}
