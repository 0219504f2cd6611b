//! From a log to a limit: every client's peak rate, which stand out, and which a limit would affect.

mod candidates;
mod gap;
mod peaks;
mod report;

pub(crate) use candidates::{ClientShare, JudgedLimit, judge};
pub(crate) use gap::{Gap, HALF_LIVES, Sweep};
pub(crate) use peaks::Peaks;
pub(crate) use report::{Advice, figure, write_json, write_table, write_toml};
