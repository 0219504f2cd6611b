//! Calls without an answer. What they asked was decided here, and Redis may have stored it, too: its receipts
//! tell, and it counts once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use earrrl::Nanos;
use redis::Value;
use tokio::time::{Instant, timeout};

use crate::algorithm::{self, Answers};
use crate::exchange::take_back;
use crate::ledger::NotedAt;
use crate::link::{Fault, Link};
use crate::near::offset::later;
use crate::receipt::Receipt;
use crate::request::{AskedCharge, Request};
use crate::shared::Shared;

/// How long receipts are waited for.
const PATIENCE: Duration = Duration::from_secs(2);

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

    /// Those that Redis executes no more.
    fn ended(&self, group: usize) -> Vec<Unsettled> {
        let now = Instant::now();
        self.lock(group).extract_if(.., |unsettled| unsettled.call.ends <= now).collect()
    }
}

/// Finds out what became of a group's calls.
pub(crate) async fn settle(shared: &Arc<Shared>, link: &Link, group: usize) -> Result<(), Fault> {
    let mut by_key = BTreeMap::<Arc<str>, Vec<Unsettled>>::new();
    for unsettled in shared.unsettled.ended(group) {
        by_key.entry(unsettled.call.receipt.key.clone()).or_default().push(unsettled);
    }
    let mut failed = None;
    for (key, calls) in by_key {
        let receipts = match &failed {
            None => timeout(PATIENCE, read(link.clone(), &key)).await.unwrap_or(Err(Fault::Late)),
            Some(_) => Err(Fault::Left),
        };
        match receipts {
            Ok(receipts) => {
                for mut call in calls {
                    if call.conclude(shared, &receipts).await {
                        shared.unsettled.count.fetch_sub(1, Ordering::AcqRel);
                    } else {
                        shared.unsettled.lock(group).push(call);
                    }
                }
            }
            Err(fault) => {
                failed.get_or_insert(fault);
                shared.unsettled.lock(group).extend(calls);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// A node's receipts; none where there are none, or what is not ours.
async fn read(mut link: Link, key: &str) -> Result<Vec<u8>, Fault> {
    match link.send(redis::cmd("GET").arg(key)).await.map_err(Fault::from) {
        Ok(Value::BulkString(receipts)) => Ok(receipts),
        Ok(_) | Err(Fault::Record(_)) => Ok(Vec::new()),
        Err(fault) => Err(fault),
    }
}

impl Unsettled {
    /// When a charge was stored, about; a tally is told none, since it finds by the exact one only, and takes its
    /// newest then.
    fn at(&self, shared: &Shared, place: usize) -> Option<Nanos> {
        let asked = &self.request.asked[place];
        let is_tally = algorithm::of(asked.rule.rule.limit()).answers() == Answers::After;
        let sent = || later(self.call.sent, shared.near.offsets[asked.group].get());
        self.request.now.or_else(|| (!is_tally).then(sent))
    }

    /// What Redis has stored is not handed over as well, or else taken back; and so it is where the request was denied
    /// here under a leaky rule. Answers whether that is all.
    async fn conclude(&mut self, shared: &Arc<Shared>, receipts: &[u8]) -> bool {
        let bits = u64::from(self.call.receipt.stored(receipts));
        let mut is_all = true;
        for (bit, &place) in self.call.places.iter().enumerate() {
            if self.done >> place & 1 == 1 {
                continue;
            }
            let stored = bit < 16 && bits >> bit & 1 == 1;
            if self.unwanted(shared, place, stored) {
                let (request, at) = (self.request.clone(), self.at(shared, place));
                let taken_back = take_back(shared.clone(), request, place, at).await;
                if let Err(Fault::Left | Fault::Refused(_)) = taken_back {
                    is_all = false;
                    continue;
                }
            }
            self.done |= 1 << place;
        }
        is_all
    }

    /// Whether Redis has a charge that it should not have.
    fn unwanted(&self, shared: &Shared, place: usize, stored: bool) -> bool {
        let asked = &self.request.asked[place];
        match self.noted.iter().find(|(noted, _)| *noted == place) {
            Some((_, at)) => stored && !shared.ledger.take_out(asked, *at),
            None => stored && self.denied && !self.request.is_strict(place),
        }
    }
}
