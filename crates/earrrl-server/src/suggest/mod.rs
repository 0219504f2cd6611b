//! From a log to a limit: every client's peak rate, and whom a limit would touch.

mod candidates;
mod peaks;
mod report;

pub(crate) use candidates::{Judged, Share, judge};
pub(crate) use peaks::Peaks;
pub(crate) use report::{figure, write};
