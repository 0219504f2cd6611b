//! From a log to a limit: every client's peak rate, which stand out, and which a limit would affect.

mod candidates;
mod gap;
mod peaks;
mod report;

pub use candidates::{ClientShare, JudgedLimit, judge, most_touched};
pub use gap::{Gap, HALF_LIVES, Sweep};
pub use peaks::Peaks;
pub use report::{Advice, figure, write_json, write_table, write_toml};
