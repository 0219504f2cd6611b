//! Writes the results of a replay as a table, JSON, HTML, figures and lists of clients.

pub mod axis;
mod blocklist;
mod html;
mod incident;
mod json;
pub mod jsonl;
mod measured;
pub mod page;
mod table;

use crate::reading::ClientNames;
use crate::reading::LogReader;
use crate::replay::Replay;

/// The number of clients that are named for each rule, the most denied first.
pub const TOP: usize = 10;

/// The results of a replay that reports are written from.
pub struct Summary<'a> {
    /// The reader of the log, with its counts of lines.
    pub reader: &'a LogReader,
    /// The rules, with the counts of their decisions.
    pub replay: &'a Replay,
    /// The names of the clients in the output.
    pub names: &'a ClientNames,
}

pub use axis::{over_time, per};
pub use blocklist::{Blocker, write_blocklist, write_limited_csv};
pub use html::write as write_html;
pub use json::write as write_json;
pub use jsonl::write as write_jsonl;
pub use table::write as write_table;
