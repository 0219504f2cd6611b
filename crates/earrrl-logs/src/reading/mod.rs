//! Reads logs: splits files into lines, parses lines into requests, and numbers the clients.
//!
//! `input` opens a file, `lines` splits it into lines, [`crate::format`] parses a line, `filter`
//! drops requests that the user did not ask for, and `key` and `cost` find the client and the cost
//! of a request. [`LogReader`] does this for many files and counts every line; [`HeldBack`] sorts
//! the requests by time.

mod batch;
mod clients;
mod doubt;
mod find_format;
mod follow;
mod held;
mod input;
mod key;
mod lines;
mod parsing;
mod reader;
mod select;

pub use batch::{LoggedRequest, Requests};
pub use clients::ClientNames;
pub use clients::ClientNumbers;
pub use find_format::fields_hint;
pub use held::HeldBack;
pub(crate) use held::{sort_by_time, too_many};
#[cfg(test)]
pub(crate) use key::KeyMaker;
pub use key::{LogKey, RecordKey};
pub use parsing::ReadError;
pub use reader::{LogReader, Selection};
pub use select::{CostRule, Costs};
pub use select::{Filter, RecordCondition, parse_bound};
