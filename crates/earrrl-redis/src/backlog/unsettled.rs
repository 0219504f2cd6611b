//! Calls without an answer, and the decisions that this node made instead.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::backlog::ledger::NotedAt;
use crate::batches::ReceiptPlace;
use crate::request::{KeyedCharge, Request};

/// A call that was not answered in time, or whose connection broke.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) place: ReceiptPlace,
    /// The call's charges, by their places in the request.
    pub(crate) places: Vec<usize>,
    /// The instant after which Redis no longer executes the call.
    pub(crate) ends: Instant,
}

/// The charges of a request that were noted in the ledger, with their places in the request.
pub(crate) type Noted = Vec<(usize, NotedAt)>;

/// A call without an answer, and the decision that this node made instead.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) call: Unanswered,
    pub(crate) request: Arc<Request>,
    pub(crate) noted: Noted,
    pub(crate) denied: bool,
    /// The charges that are settled, one bit each.
    pub(crate) done: u64,
}

/// The unsettled calls of each breaker's group. The number of receipts bounds them.
#[derive(Debug)]
pub(crate) struct UnsettledCalls {
    groups: Vec<Mutex<Vec<Unsettled>>>,
    /// The number of calls, including those that are being settled.
    len: AtomicUsize,
}

impl UnsettledCalls {
    pub(crate) fn new(groups: usize) -> Self {
        let groups = (0..groups).map(|_| Mutex::default()).collect();
        Self {
            groups,
            len: AtomicUsize::new(0),
        }
    }

    fn lock(&self, group: usize) -> MutexGuard<'_, Vec<Unsettled>> {
        self.groups[group]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, unsettled: Unsettled) {
        let (group, _) = unsettled.request.group_and_slot(&unsettled.call.places);
        self.len.fetch_add(1, Ordering::AcqRel);
        self.lock(group).push(unsettled);
    }

    /// Drops the charges of a client that was reset.
    pub(crate) fn forget(&self, charge: &KeyedCharge) {
        let is_same =
            |other: &KeyedCharge| other.rule.id == charge.rule.id && other.client == charge.client;
        for unsettled in &mut *self.lock(charge.group) {
            for &place in &unsettled.call.places {
                unsettled.done |= u64::from(is_same(&unsettled.request.charges[place])) << place;
            }
        }
    }

    /// Returns true if a group has no calls, apart from those that are being settled.
    pub(crate) fn is_empty(&self, group: usize) -> bool {
        self.lock(group).is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Reports that a call which [`UnsettledCalls::take_ended`] returned is settled.
    pub(crate) fn settled(&self) {
        self.len.fetch_sub(1, Ordering::AcqRel);
    }

    /// Puts back calls that could not be settled yet.
    pub(crate) fn put_back(&self, group: usize, unsettled: Vec<Unsettled>) {
        self.lock(group).extend(unsettled);
    }

    /// Removes and returns the calls that Redis can no longer execute. The caller must settle each
    /// call or put it back.
    pub(crate) fn take_ended(&self, group: usize) -> Vec<Unsettled> {
        let now = Instant::now();
        self.lock(group)
            .extract_if(.., |unsettled| unsettled.call.ends <= now)
            .collect()
    }
}
