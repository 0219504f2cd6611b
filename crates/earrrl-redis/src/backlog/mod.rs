//! The work that remains after an outage: charges that Redis lacks, and calls that Redis may or may
//! not have executed.

pub(crate) mod ledger;
pub(crate) mod unsettled;

use ledger::Ledger;
use unsettled::UnsettledCalls;

#[derive(Debug)]
pub(crate) struct Backlog {
    pub(crate) ledger: Ledger,
    pub(crate) unsettled: UnsettledCalls,
}

impl Backlog {
    pub(crate) fn new(capacity: usize, groups: usize) -> Self {
        Self {
            ledger: Ledger::new(capacity),
            unsettled: UnsettledCalls::new(groups),
        }
    }
}
