//! The parts of a figure, and the colours that all figures share.

use super::ticks::Ticks;

/// Colours that remain distinct under every kind of colour blindness (Okabe and Ito's palette).
const COLOURS: [&str; 7] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E6E6E",
];

/// The index of grey in the palette; grey is for requests before any rule is applied.
pub const GREY: usize = 6;

/// A picture: panels with a common horizontal axis.
pub struct Figure {
    /// The title above all panels; may be empty.
    pub title: String,
    /// The horizontal axis.
    pub x: Across,
    /// The panels, from top to bottom.
    pub panels: Vec<Panel>,
    /// The width and height of the picture, in pixels.
    pub size: (u32, u32),
}

/// The horizontal axis that all panels of a figure share.
#[derive(Debug, Clone)]
pub struct Across {
    /// The label of the axis, drawn under the lowest panel.
    pub label: String,
    /// The values at the left and right end of the axis.
    pub span: (f64, f64),
    /// The kind of values at the ticks.
    pub ticks: Ticks,
}

impl Across {
    /// Creates an axis of seconds from 0 to `end`.
    pub fn seconds(end: f64) -> Self {
        Self {
            label: "seconds".into(),
            span: (0.0, end),
            ticks: Ticks::Numbers,
        }
    }
}

/// A chart with one pair of axes.
#[derive(Default)]
pub struct Panel {
    /// The label of the vertical axis, with the unit.
    pub y_label: String,
    /// The lines of the chart; later ones are drawn over earlier ones.
    pub series: Vec<Series>,
    /// Labelled vertical lines.
    pub marks: Vec<Mark>,
    /// Texts beside points.
    pub notes: Vec<Note>,
    /// The lower end of the vertical axis if it is logarithmic; `None` for a linear axis from 0.
    pub log_from: Option<f64>,
}

/// A vertical dotted or dashed line, and the text beside it.
pub struct Mark {
    /// The position of the line on the horizontal axis.
    pub at: f64,
    /// The index in the palette of a dashed line; `None` for a dotted line in the colour of the
    /// axes.
    pub colour: Option<usize>,
    /// The text beside the marked line.
    pub text: String,
}

impl Mark {
    /// Creates a mark with a dotted line in the colour of the axes.
    pub fn new(at: f64, text: impl Into<String>) -> Self {
        Self {
            at,
            colour: None,
            text: text.into(),
        }
    }
}

/// A text beside a point of a chart.
pub struct Note {
    /// The point that the text is about.
    pub at: (f64, f64),
    /// The text beside the point.
    pub text: String,
}

/// A line of a chart.
pub struct Series {
    /// The name in the legend; a series with an empty name is not listed.
    pub name: String,
    /// The index of the line's colour in the palette.
    pub colour: usize,
    /// The style in which the line of the series is drawn.
    pub stroke: Stroke,
    /// The points that the line of the series connects, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// The style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// A solid line.
    Solid,
    /// A dashed line, for a reference such as a limit.
    Dashed,
    /// A solid line, and the filled area under it.
    Filled,
}

impl Series {
    /// Creates a series that is drawn as a solid line.
    pub fn new(name: impl Into<String>, colour: usize, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            colour,
            stroke: Stroke::Solid,
            points,
        }
    }

    /// Returns the series with another style of drawing.
    pub fn with_stroke(self, stroke: Stroke) -> Self {
        Self { stroke, ..self }
    }
}

/// Returns the colour with this index in the palette.
pub(super) fn shade(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}
