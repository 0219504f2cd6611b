//! Writes the results of a replay in several forms.

pub mod axis;
mod blocklist;
mod html;
mod incident;
mod json;
pub mod jsonl;
mod measured;
pub mod page;
mod table;

use crate::reading::LogReader;
use crate::reading::Names;
use crate::replay::Replay;

/// The number of clients named for each rule, the most denied first.
pub const TOP: usize = 10;

/// Everything that there is to report.
pub struct Summary<'a> {
    /// The lines.
    pub reader: &'a LogReader,
    /// The decisions.
    pub replay: &'a Replay,
    /// The clients' names.
    pub names: &'a Names,
}

pub use axis::{over_time, per};
pub use blocklist::{Blocker, write_blocklist, write_limited_csv};
pub use html::write as write_html;
pub use json::write as write_json;
pub use jsonl::write as write_jsonl;
pub use table::write as write_table;
