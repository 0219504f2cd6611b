//! Draws figures as SVG: line charts in panels, one above the other.

mod calendar;
mod figure;
mod labels;
mod legend;
mod panel;
mod svg;
mod ticks;

pub(crate) use calendar::days;
pub use figure::{Across, Figure, GREY, Mark, Note, Panel, Series, Stroke};
pub use svg::{EXPECTED, is_svg, save, svg};
pub use ticks::Ticks;
