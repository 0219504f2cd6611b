//! The work that an outage leaves behind: counts that Redis lacks, and calls of which it is not known whether Redis has
//! executed them.

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
        Self { ledger: Ledger::new(capacity), unsettled: UnsettledCalls::new(groups) }
    }
}
