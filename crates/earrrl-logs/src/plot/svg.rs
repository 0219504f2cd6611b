//! Writes figures as SVG files, and as parts of pages.

use std::path::Path;

use super::chart;
use super::figure::{Figure, Panel, Series, Stroke};
use super::ticks::short;
use crate::text::{Html, plain};

/// The height of a title with the space around it, in pixels.
const TITLE: f64 = 34.0;

/// The style of files on dark pages: the colours of the background, of texts and axes, and of lines
/// that would be too dark.
const DARK: &str = "@media (prefers-color-scheme: dark) { \
    [fill='#FFFFFF'] { fill: #0d1117 } text { fill: #e6edf3 } \
    [stroke='#000000'] { stroke: #e6edf3 } [stroke='#6E6E6E'] { stroke: #9198a1 } \
    [fill='#6E6E6E'] { fill: #9198a1 } [stroke='#0072B2'] { stroke: #56b4e9 } \
    [fill='#0072B2'] { fill: #56b4e9 } }";

/// Writes a figure to an SVG file, with a white background, or a dark one for readers that prefer it.
///
/// # Errors
/// Returns one line with the reason if the name does not end in `.svg`, or if the file cannot be
/// written.
pub fn save(figure: &Figure, path: &Path) -> Result<(), String> {
    let problem_of = |problem: &str| format!("{}: {problem}", path.display());
    if !is_svg(path) {
        return Err(problem_of(EXPECTED));
    }
    let background = format!(
        "<style>{DARK}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>\n<title>"
    );
    let content = svg(figure).replacen("<title>", &background, 1);
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

/// Renders a figure as SVG with a transparent background.
pub fn svg(figure: &Figure) -> String {
    let (width, height) = figure.size;
    let mut out = format!(
        "<svg role=\"img\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" stroke-linejoin=\"round\" xmlns=\"http://www.w3.org/2000/svg\">\n{}",
        described(figure)
    );
    let mut top = 0.0;
    if !figure.title.is_empty() {
        let middle = (f64::from(width) / 2.0, TITLE / 2.0);
        chart::text(&mut out, &figure.title, middle, "middle", 16);
        top = TITLE;
    }
    let part = (f64::from(height) - top) / figure.panels.len().max(1) as f64;
    for (place, panel) in (1..).zip(&figure.panels) {
        let bottom = top + part;
        let label = match place == figure.panels.len() {
            true => &figure.x.label,
            false => "",
        };
        chart::draw(&mut out, panel, figure, label, (top, bottom));
        top = bottom;
    }
    out + "</svg>\n"
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
    let is_line = |series: &&Series| {
        series.points.len() > 1 && !(series.name.is_empty() && series.stroke == Stroke::Dashed)
    };
    panel.series.iter().filter(is_line).map(|series| {
        let name = match series.name.is_empty() {
            true => &panel.y_label,
            false => &series.name,
        };
        let peak = series
            .points
            .iter()
            .map(|point| point.1)
            .fold(0.0, f64::max);
        format!("{name}: at most {}", short(peak))
    })
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
