//! The parts of a figure, and the style that they share.

use plotters::prelude::*;

use super::ticks::Ticks;

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

/// The place of grey among the colours, for requests before any rule is applied.
pub const GREY: usize = 6;

/// The scale of drawing: points are placed on whole pixels, too coarse at the size that is shown.
pub(super) const GRAIN: u32 = 4;

/// One picture.
pub struct Figure {
    /// The title above all panels; may be empty.
    pub title: String,
    /// The horizontal axis.
    pub x: Across,
    /// The panels, from top to bottom.
    pub panels: Vec<Panel>,
    /// Width and height.
    pub size: (u32, u32),
}

/// A horizontal axis, which all panels share.
#[derive(Debug, Clone)]
pub struct Across {
    /// The label under the lowest panel.
    pub label: String,
    /// The ends of the axis.
    pub span: (f64, f64),
    /// The kind of its ticks.
    pub ticks: Ticks,
}

impl Across {
    /// Seconds from 0.
    pub fn seconds(end: f64) -> Self {
        Self { label: "seconds".into(), span: (0.0, end), ticks: Ticks::Numbers }
    }
}

/// One pair of axes.
#[derive(Default)]
pub struct Panel {
    /// The label of the vertical axis, with the unit.
    pub y_label: String,
    /// The lines, the first at the bottom.
    pub series: Vec<Series>,
    /// Labelled positions on the horizontal axis.
    pub marks: Vec<Mark>,
    /// Labelled points.
    pub notes: Vec<Note>,
    /// The lower end of a logarithmic axis, or none for one from 0.
    pub log_from: Option<f64>,
}

/// An upright line of dots or dashes, and its text.
pub struct Mark {
    /// The position on the horizontal axis.
    pub at: f64,
    /// The height of the text, as a share of the vertical axis.
    pub height: f64,
    /// Its place among the colours, dashed; none for dots in the colour of the axes.
    pub colour: Option<usize>,
    /// The text.
    pub text: String,
}

impl Mark {
    /// Creates a mark of dots in the colour of the axes.
    pub fn new(at: f64, height: f64, text: impl Into<String>) -> Self {
        Self { at, height, colour: None, text: text.into() }
    }
}

/// Text beside a point.
pub struct Note {
    /// The point.
    pub at: (f64, f64),
    /// The text.
    pub text: String,
    /// True if the text ends left of the point and above it; otherwise it starts right of it.
    pub before: bool,
}

/// One line.
pub struct Series {
    /// The name in the legend; a series with an empty name is not listed.
    pub name: String,
    /// Its place among the colours.
    pub colour: usize,
    /// The style of drawing.
    pub stroke: Stroke,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// The style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// A line.
    Solid,
    /// Dashes, for a reference.
    Dashed,
    /// A line and the filled area under it.
    Filled,
}

impl Series {
    /// Creates a solid line.
    pub fn new(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), colour, stroke: Stroke::Solid, points }
    }

    /// Sets the style of drawing.
    pub fn with_stroke(self, stroke: Stroke) -> Self {
        Self { stroke, ..self }
    }
}

/// The colour of a line.
pub(super) fn colour(series: &Series) -> RGBColor {
    shade(series.colour)
}

/// The colour at a place.
pub(super) fn shade(place: usize) -> RGBColor {
    COLOURS[place % COLOURS.len()]
}

/// The font at a size.
pub(super) fn font(size: u32) -> FontDesc<'static> {
    ("sans-serif", size * GRAIN).into_font()
}
