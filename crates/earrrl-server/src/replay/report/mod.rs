//! What came out, in the form that was asked for.

#[cfg(feature = "plot")]
mod figures;
#[cfg(feature = "plot")]
mod html;
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

#[cfg(feature = "plot")]
pub(crate) use figures::{Axis, asked_and_permitted};
#[cfg(feature = "plot")]
pub(crate) use html::write as write_html;
pub(crate) use json::write as write_json;
pub(crate) use jsonl::write as write_jsonl;
pub(crate) use table::write as write_table;

/// A share in percent, with more digits where it is close to nothing or to all.
fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    match share {
        _ if part == 0 || part == whole => format!("{share:.0} %"),
        0.1..99.9 => format!("{share:.1} %"),
        _ if share < 0.1 => format!("{share:.4} %"),
        _ => format!("{share:.3} %"),
    }
}
