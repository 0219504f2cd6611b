//! What a figure consists of, and the style that its parts share.

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

/// Drawn so much larger than shown: points are placed on whole pixels, which would be too coarse.
pub(super) const GRAIN: u32 = 4;

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
    /// Instants worth a word.
    pub(crate) marks: Vec<Mark>,
    /// The lower end of a logarithmic axis, or none for one from 0.
    pub(crate) log_from: Option<f64>,
}

/// A dotted line at an instant, and its text.
pub(crate) struct Mark {
    /// Where on the horizontal axis.
    pub(crate) at: f64,
    /// How far up the text is, as a share of the axis: out of the way of what is drawn.
    pub(crate) height: f64,
    /// The text.
    pub(crate) text: &'static str,
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

/// The colour of a line.
pub(super) fn colour(series: &Series) -> RGBColor {
    COLOURS[series.colour % COLOURS.len()]
}

/// The font at a size.
pub(super) fn font(size: u32) -> FontDesc<'static> {
    ("sans-serif", size * GRAIN).into_font()
}
