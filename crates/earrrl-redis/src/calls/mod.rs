//! Calls of the scripts that read and change clients' records.

pub(crate) mod contribute;
pub(crate) mod convert;
pub(crate) mod decide;
pub(crate) mod deliver;
pub(crate) mod reply;
pub(crate) mod reset;
