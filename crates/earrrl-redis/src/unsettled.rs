//! Calls without an answer, and their settlement. This node decided their requests, but Redis may have executed
//! them too. Receipts show if it did, so that each request counts once, and what a call for units was to give
//! back is given back once.

use earrrl::internal::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, timeout};

use crate::algorithm::Adjustment;
use crate::batches::ReceiptPlace;
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::ledger::Ledger;
use crate::request::{KeyedCharge, Request};

/// The timeout of reading receipts.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A call that was not answered in time, or whose connection broke.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) place: ReceiptPlace,
    /// The call's charges, by their places in the request.
    pub(crate) places: Vec<usize>,
    /// The instant after which Redis no longer executes the call.
    pub(crate) ends: Instant,
}

/// A call without an answer, and the decision that this node made instead.
#[derive(Debug)]
struct Unsettled {
    call: Unanswered,
    request: Arc<Request>,
    /// The charges that were noted in the ledger, and those that are settled, one bit each.
    noted: u64,
    done: u64,
    denied: bool,
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
        lock(&self.groups[group])
    }

    /// Adds the calls of a request that this node decided by itself. `noted` are its charges in the ledger, one bit
    /// each, and `denied` is true if Redis must not keep what it has stored for a request that did not pass.
    pub(crate) fn add(
        &self,
        request: &Arc<Request>,
        calls: Vec<Unanswered>,
        noted: u64,
        denied: bool,
    ) {
        for call in calls {
            let group = request.charges[call.places[0]].group;
            self.len.fetch_add(1, Ordering::AcqRel);
            self.lock(group).push(Unsettled {
                call,
                request: request.clone(),
                noted,
                denied,
                done: 0,
            });
        }
    }

    /// Drops the charges of a client that was reset.
    pub(crate) fn forget(&self, charge: &KeyedCharge) {
        for unsettled in &mut *self.lock(charge.group) {
            for &place in &unsettled.call.places {
                let is_same = unsettled.request.charges[place].key == charge.key;
                unsettled.done |= u64::from(is_same) << place;
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
}

/// Settles a group's calls that Redis can no longer execute.
pub(crate) async fn settle(
    calls: &UnsettledCalls,
    ledger: &Ledger,
    link: &Link,
    group: usize,
) -> Result<(), Fault> {
    let now = Instant::now();
    let ended: Vec<_> = calls
        .lock(group)
        .extract_if(.., |unsettled| unsettled.call.ends <= now)
        .collect();
    let mut by_key = BTreeMap::<Arc<str>, Vec<Unsettled>>::new();
    for unsettled in ended {
        let key = unsettled.call.place.receipt.key.clone();
        by_key.entry(key).or_default().push(unsettled);
    }
    let mut outcome = Ok(());
    for (key, mut same) in by_key {
        if outcome.is_ok() {
            let receipts = timeout(TIMEOUT, read(link.clone(), &key)).await;
            match receipts.unwrap_or(Err(Fault::Late)) {
                Ok(receipts) => {
                    let settled = same.extract_if(.., |call| call.conclude(ledger, &receipts));
                    calls.len.fetch_sub(settled.count(), Ordering::AcqRel);
                }
                Err(fault) => outcome = Err(fault),
            }
        }
        calls.lock(group).extend(same);
    }
    outcome
}

/// Reads a node's receipts. Returns an empty list if there are none, or if the key has another
/// type.
async fn read(mut link: Link, key: &str) -> Result<Vec<u8>, Fault> {
    match link
        .send(redis::cmd("GET").arg(key))
        .await
        .map_err(Fault::from)
    {
        Ok(Value::BulkString(receipts)) => Ok(receipts),
        Ok(_) | Err(Fault::Record(_)) => Ok(Vec::new()),
        Err(fault) => Err(fault),
    }
}

impl Unsettled {
    /// Notes what Redis must take back: charges that it has stored and that the ledger has too, or whose request did
    /// not pass, and what a call for units was to give back and did not. Returns true if nothing is left to do.
    fn conclude(&mut self, ledger: &Ledger, receipts: &[u8]) -> bool {
        let receipt = self.call.place.receipt.stored(receipts);
        let mut is_all = true;
        for (bit, &place) in (self.call.place.bit..).zip(&self.call.places) {
            if self.done >> place & 1 == 1 {
                continue;
            }
            let charge = &self.request.charges[place];
            let back = match receipt.filter(|(charges, _)| bit < 16 && charges >> bit & 1 == 1) {
                Some((_, at)) => {
                    let twice = self.noted >> place & 1 == 1;
                    // A call for units counts its request only by its answer.
                    let counts = self.request.units.is_none() && self.request.is_strict(place);
                    let is_unwanted = twice || self.denied && !counts;
                    is_unwanted.then(|| Adjustment::take_back(Some(at), charge.cost, twice))
                }
                None => {
                    let unspent = self.request.units.map(|units| units.unspent);
                    unspent.filter(|back| !back.cost.is_zero())
                }
            };
            let noted = back.is_none_or(|back| {
                let given = self.request.now;
                ledger.take_back_there(charge, back, given).is_some()
            });
            self.done |= u64::from(noted) << place;
            is_all &= noted;
        }
        is_all
    }
}
