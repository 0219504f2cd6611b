//! Calls of the scripts that read and change clients' records.

pub(crate) mod batch;
pub(crate) mod contribute;
pub(crate) mod decide;
pub(crate) mod deliver;
pub(crate) mod figures;
pub(crate) mod reset;
