//! Logs to requests.
//!
//! [`input`] opens a file, [`lines`] cuts it, [`format`] takes a line apart, [`key`] and [`cost`]
//! say whose request it was and what it cost, [`order`] sorts. [`reader`] runs the first of these
//! over many files and accounts for every line: [`parsing`] makes batches of requests, [`resolve`] finds
//! their clients.

#[cfg(feature = "serve")]
mod attributes;
mod batch;
mod client;
mod clients;
#[cfg(feature = "serve")]
mod configured;
mod cost;
mod decimal;
mod envelope;
mod escape;
mod format;
mod held;
mod input;
mod key;
mod lines;
mod names;
mod order;
mod parsing;
mod read_error;
mod reader;
pub(crate) mod report;
mod request;
mod resolve;
mod run;
mod skips;
mod time;
mod timeline;
mod trial;
mod years;

pub(crate) use clients::ClientNumbers;
#[cfg(feature = "serve")]
pub(crate) use configured::Configured;
pub(crate) use cost::CostRule;
pub(crate) use escape::Escaped;
pub(crate) use format::{Field, Format, Hints, Pattern, notation};
pub(crate) use held::HeldBack;
pub(crate) use key::Key;
pub(crate) use names::Names;
pub(crate) use read_error::ReadError;
pub(crate) use reader::{LogReader, Selection};
pub(crate) use request::LoggedRequest;
pub(crate) use run::Replay;
pub(crate) use skips::Skip;
pub(crate) use time::written;
