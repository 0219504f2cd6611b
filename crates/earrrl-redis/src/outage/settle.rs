//! Settlement of calls without an answer. This node decided their requests, but Redis may have
//! stored them too. Receipts show if it did, so that each request counts once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::timeout;

use crate::backlog::ledger::NotedAt;
use crate::backlog::unsettled::Unsettled;
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::shared::Shared;

/// The timeout of reading receipts.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Settles a group's calls that Redis can no longer execute.
pub(crate) async fn settle(shared: &Arc<Shared>, link: &Link, group: usize) -> Result<(), Fault> {
    let mut by_key = BTreeMap::<Arc<str>, Vec<Unsettled>>::new();
    for unsettled in shared.backlog.unsettled.take_ended(group) {
        by_key
            .entry(unsettled.call.place.receipt.key.clone())
            .or_default()
            .push(unsettled);
    }
    let mut failed = None;
    for (key, calls) in by_key {
        let receipts = match &failed {
            None => timeout(TIMEOUT, read(link.clone(), &key))
                .await
                .unwrap_or(Err(Fault::Late)),
            Some(_) => Err(Fault::Skipped),
        };
        match receipts {
            Ok(receipts) => {
                for mut call in calls {
                    if call.conclude(shared, &receipts) {
                        shared.backlog.unsettled.settled();
                    } else {
                        shared.backlog.unsettled.put_back(group, vec![call]);
                    }
                }
            }
            Err(fault) => {
                failed.get_or_insert(fault);
                shared.backlog.unsettled.put_back(group, calls);
            }
        }
    }
    failed.map_or(Ok(()), Err)
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
    /// Removes charges from this node's ledger that Redis has stored. Notes charges that Redis must
    /// take back: those that are no longer in the ledger, and charges to leaky rules of a request
    /// that this node denied. Returns true if nothing is left to do.
    fn conclude(&mut self, shared: &Shared, receipts: &[u8]) -> bool {
        let receipt = self.call.place.receipt.stored(receipts);
        let mut is_all = true;
        for (bit, &place) in (self.call.place.bit..).zip(&self.call.places) {
            if self.done >> place & 1 == 1 {
                continue;
            }
            let stored = receipt.filter(|stored| bit < 16 && stored.charges >> bit & 1 == 1);
            if let Some(stored) = stored.filter(|_| self.unwanted(shared, place)) {
                let charge = &self.request.charges[place];
                let given = self.request.now;
                let at = Some(stored.at);
                if shared
                    .backlog
                    .ledger
                    .take_back_there(charge, at, given, self.noted(place).is_some())
                    .is_none()
                {
                    is_all = false;
                    continue;
                }
            }
            self.done |= 1 << place;
        }
        is_all
    }

    /// Returns true if Redis has stored a charge that it should not have.
    fn unwanted(&self, shared: &Shared, place: usize) -> bool {
        let charge = &self.request.charges[place];
        match self.noted(place) {
            Some(at) => !shared.backlog.ledger.take_out(charge, at),
            None => self.denied && !self.request.is_strict(place),
        }
    }

    /// Returns the place of a charge in this node's ledger, if it was noted there.
    fn noted(&self, place: usize) -> Option<NotedAt> {
        let noted = self.noted.iter().find(|(noted, _)| *noted == place);
        noted.map(|(_, at)| *at)
    }
}
