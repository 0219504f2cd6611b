//! Replays the requests of a log under a server's configuration, with the code that serves
//! requests.

mod attributes;
mod condition;
mod decisions;
pub(crate) mod page;
pub(crate) mod report;

pub(crate) use attributes::fields;
pub(crate) use condition::{LogCondition, LogConditions};
pub(crate) use decisions::Configured;
