//! What came out, in the form that was asked for.

mod json;
mod jsonl;
mod table;

use super::names::Names;
use super::reader::Reader;
use super::run::Replay;

/// How many of a rule's worst clients are named.
pub(crate) const TOP: usize = 10;

/// Everything that there is to report.
pub(crate) struct Summary<'a> {
    /// The lines.
    pub(crate) reader: &'a Reader,
    /// The decisions.
    pub(crate) replay: &'a Replay,
    /// The clients' names.
    pub(crate) names: &'a Names,
}

pub(crate) use json::write as write_json;
pub(crate) use jsonl::write as write_jsonl;
pub(crate) use table::write as write_table;

/// A share in percent, with as many digits as tell it from nothing and from all.
fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    match share {
        _ if part == 0 || part == whole => format!("{share:.0} %"),
        0.05..99.95 => format!("{share:.1} %"),
        ..0.05 => format!("{share:.2e} %"),
        _ => "> 99.9 %".into(),
    }
}
