//! Reads logs: splits files into lines, parses lines into requests, and numbers the clients.
//!
//! `input` opens a file, `lines` splits it into lines, [`crate::format`] parses a line, `filter`
//! drops requests that the user did not ask for, and `key` and `cost` find the client and the cost
//! of a request. [`LogReader`] does this for many files and counts every line; [`HeldBack`] sorts
//! the requests by time.

mod batch;
mod clients;
mod cost;
mod doubt;
mod filter;
mod find_format;
mod follow;
mod held;
mod idle;
mod input;
mod key;
mod lines;
mod names;
mod order;
mod parsing;
mod read_error;
mod reader;
mod request;
mod resolve;
mod zstd;

pub use clients::ClientNumbers;
pub use cost::{CostRule, Costs};
pub use filter::{Filter, RecordCondition, RecordSink, parse_bound};
pub use find_format::fields_hint;
pub use held::HeldBack;
pub(crate) use key::KeyMaker;
pub use key::{LogKey, RecordKey};
pub use names::ClientNames;
pub use read_error::ReadError;
pub use reader::{LogReader, Selection};
pub use request::LoggedRequest;
