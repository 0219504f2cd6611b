//! Draws figures as SVG: line charts in panels, one above the other.

mod chart;
mod distribution;
mod figure;
mod svg;
mod ticks;

pub(crate) use distribution::{Reached, distribution};
pub use figure::{Across, Figure, GREY, Mark, Note, Panel, Series, Stroke};
pub use svg::{EXPECTED, is_svg, save, svg};
pub use ticks::Ticks;
pub(crate) use ticks::days;
