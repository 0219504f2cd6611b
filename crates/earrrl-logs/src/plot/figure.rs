//! What a figure consists of, and the style that its parts share.

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

/// What is plainly there, before any rule: grey.
pub const GREY: usize = 6;

/// Drawn so much larger than shown: points are placed on whole pixels, which would be too coarse.
pub(super) const GRAIN: u32 = 4;

/// One picture.
pub struct Figure {
    /// Above all panels; may be empty.
    pub title: String,
    /// The horizontal axis.
    pub x: Across,
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// Width and height.
    pub size: (u32, u32),
}

/// A horizontal axis, which all panels share.
#[derive(Debug, Clone)]
pub struct Across {
    /// Under the lowest panel.
    pub label: String,
    /// From where to where.
    pub span: (f64, f64),
    /// What stands at its ticks.
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
    /// Beside the vertical axis, with the unit.
    pub y_label: String,
    /// What is drawn, the first at the bottom.
    pub series: Vec<Series>,
    /// Places on the horizontal axis that are worth a word.
    pub marks: Vec<Mark>,
    /// Points that are worth a word.
    pub notes: Vec<Note>,
    /// The lower end of a logarithmic axis, or none for one from 0.
    pub log_from: Option<f64>,
}

/// An upright line of dots or dashes, and its text.
pub struct Mark {
    /// Where on the horizontal axis.
    pub at: f64,
    /// How far up the text is, as a share of the axis: out of the way of what is drawn.
    pub height: f64,
    /// Its place among the colours, dashed; none for dots in the colour of the axes.
    pub colour: Option<usize>,
    /// The text.
    pub text: String,
}

impl Mark {
    /// An instant.
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
    /// Whether it ends left of the point, above it, or starts right of it.
    pub before: bool,
}

/// One line.
pub struct Series {
    /// In the legend; not there where empty.
    pub name: String,
    /// Its place among the colours.
    pub colour: usize,
    /// How it is drawn.
    pub stroke: Stroke,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// A line.
    Solid,
    /// Dashes, for what is compared with.
    Dashed,
    /// A line and what is under it.
    Filled,
}

impl Series {
    /// A solid line.
    pub fn new(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), colour, stroke: Stroke::Solid, points }
    }

    /// Drawn in another way.
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
