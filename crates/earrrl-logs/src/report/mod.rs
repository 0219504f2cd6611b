//! Writes the results of a replay as a table, JSON, HTML, figures and lists of clients.

pub mod axis;
mod blocklist;
mod html;
pub mod jsonl;
mod limited;
mod measured;
pub mod page;
mod summary;

use crate::reading::ClientNames;
use crate::reading::LogReader;
use crate::replay::Replay;

/// The number of clients that are named for each rule, the most denied first.
pub const TOP: usize = 10;

/// The results of a replay that reports are written from.
///
/// ```
/// # use earrrl_logs::reading::{HeldBack, LogReader, Selection};
/// # let selection = Selection {
/// #     format: None,
/// #     hints: Default::default(),
/// #     key: "client".parse()?,
/// #     prefixes: Default::default(),
/// #     costs: Default::default(),
/// #     filter: Default::default(),
/// # };
/// # let mut reader = LogReader::new(selection);
/// # let mut held = HeldBack::default();
/// # reader.read("../../testdata/logs/abuse.log.gz".as_ref(), |source| source, &mut |_, requests| held.extend(requests))?;
/// # held.sort();
/// # use earrrl_logs::{reading::ClientNames, replay::Replay, report::{self, Summary}};
/// # let mut replay = Replay::new(["fixed-window 60/1m".parse()?]).with_timeline();
/// # held.each(|requests| { replay.judge_all(requests); Ok::<(), std::io::Error>(()) })?;
/// # let names = ClientNames::new(false);
/// let summary = Summary { reader: &reader, replay: &replay, names: &names };
/// let mut text = Vec::new();
/// report::write_table(&mut text, &summary)?;
/// assert!(String::from_utf8(text)?.contains("fixed-window 60/1m: most denied"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Summary<'a> {
    /// The reader of the log, with its counts of lines.
    pub reader: &'a LogReader,
    /// The rules, with the counts of their decisions.
    pub replay: &'a Replay,
    /// The names of the clients in the output.
    pub names: &'a ClientNames,
}

pub use axis::over_time;
pub use blocklist::{BlockTerms, Blocker, Blocklist};
pub use blocklist::{busiest, proxies};
pub use html::{Context as HtmlContext, write as write_html};
pub use jsonl::write as write_jsonl;
pub use limited::limited;
pub use summary::write_json;
pub use summary::write_table;
