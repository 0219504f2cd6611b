//! What came out, in the form that was asked for.

mod axis;
#[cfg(feature = "serve")]
pub(crate) mod configured;
#[cfg(feature = "serve")]
pub(crate) mod configured_html;
mod html;
mod incident;
mod json;
mod jsonl;
mod measured;
mod page;
mod table;

use super::names::Names;
use super::reader::LogReader;
use super::run::Replay;

/// How many of a rule's worst clients are named.
pub(crate) const TOP: usize = 10;

/// Everything that there is to report.
pub(crate) struct Summary<'a> {
    /// The lines.
    pub(crate) reader: &'a LogReader,
    /// The decisions.
    pub(crate) replay: &'a Replay,
    /// The clients' names.
    pub(crate) names: &'a Names,
}

pub(crate) use axis::{over_time, per};
pub(crate) use html::write as write_html;
pub(crate) use json::write as write_json;
pub(crate) use jsonl::write as write_jsonl;
pub(crate) use table::write as write_table;
