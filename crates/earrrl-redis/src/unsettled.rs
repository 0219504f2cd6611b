//! Calls without an answer, and what was decided without them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earrrl::Nanos;
use tokio::time::Instant;

use crate::ledger::NotedAt;
use crate::receipt::Receipt;
use crate::request::{AskedCharge, Request};

/// A call that was not answered in time, or whose connection broke.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) receipt: Receipt,
    /// The charges that it is about, by their places in the request.
    pub(crate) places: Vec<usize>,
    pub(crate) sent: Nanos,
    /// From when on Redis executes it no more.
    pub(crate) ends: Instant,
}

/// The charges of a request that were noted in the ledger, by their places.
pub(crate) type Noted = Vec<(usize, NotedAt)>;

/// Such a call, and what was decided without it.
#[derive(Debug)]
pub(crate) struct Unsettled {
    pub(crate) call: Unanswered,
    pub(crate) request: Arc<Request>,
    pub(crate) noted: Noted,
    pub(crate) denied: bool,
    /// Charges that need no more care, one bit each.
    pub(crate) done: u64,
}

/// Those of each breaker's group. They are no more than there are places for receipts.
#[derive(Debug)]
pub(crate) struct Unsettleds {
    groups: Vec<Mutex<Vec<Unsettled>>>,
    /// With those that are being settled.
    count: AtomicUsize,
}

impl Unsettleds {
    pub(crate) fn new(groups: usize) -> Self {
        let groups = (0..groups).map(|_| Mutex::default()).collect();
        Self { groups, count: AtomicUsize::new(0) }
    }

    fn lock(&self, group: usize) -> MutexGuard<'_, Vec<Unsettled>> {
        self.groups[group].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, unsettled: Unsettled) {
        let (group, _) = unsettled.request.group_and_slot(&unsettled.call.places);
        self.count.fetch_add(1, Ordering::AcqRel);
        self.lock(group).push(unsettled);
    }

    /// Forgets a client's, which is reset.
    pub(crate) fn forget(&self, asked: &AskedCharge) {
        let of =
            |other: &AskedCharge| other.rule.id == asked.rule.id && other.client == asked.client;
        for unsettled in &mut *self.lock(asked.group) {
            for &place in &unsettled.call.places {
                unsettled.done |= u64::from(of(&unsettled.request.asked[place])) << place;
            }
        }
    }

    pub(crate) fn is_empty(&self, group: usize) -> bool {
        self.lock(group).is_empty()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// One is settled.
    pub(crate) fn one_less(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// They could not be settled yet.
    pub(crate) fn put_back(&self, group: usize, unsettled: Vec<Unsettled>) {
        self.lock(group).extend(unsettled);
    }

    /// Those that Redis executes no more, to be settled or put back.
    pub(crate) fn ended(&self, group: usize) -> Vec<Unsettled> {
        let now = Instant::now();
        self.lock(group).extract_if(.., |unsettled| unsettled.call.ends <= now).collect()
    }
}
