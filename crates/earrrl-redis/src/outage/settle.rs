//! Settlement of calls without an answer. Their requests were decided here, and Redis may have stored them, too.
//! Receipts show whether it did, so that each counts once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use earrrl::Nanos;
use redis::Value;
use tokio::time::timeout;

use crate::algorithm::{self, Answers};
use crate::backlog::unsettled::Unsettled;
use crate::calls::adjust::take_back;
use crate::connection::fault::Fault;
use crate::connection::link::Link;
use crate::shared::Shared;

/// The timeout of reading receipts.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Settles a group's calls that Redis no longer executes.
pub(crate) async fn settle(shared: &Arc<Shared>, link: &Link, group: usize) -> Result<(), Fault> {
    let mut by_key = BTreeMap::<Arc<str>, Vec<Unsettled>>::new();
    for unsettled in shared.backlog.unsettled.take_ended(group) {
        by_key.entry(unsettled.call.receipt.key.clone()).or_default().push(unsettled);
    }
    let mut failed = None;
    for (key, calls) in by_key {
        let receipts = match &failed {
            None => timeout(TIMEOUT, read(link.clone(), &key)).await.unwrap_or(Err(Fault::Late)),
            Some(_) => Err(Fault::Skipped),
        };
        match receipts {
            Ok(receipts) => {
                for mut call in calls {
                    if call.conclude(shared, &receipts).await {
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

/// Reads a node's receipts; returns none if there are none, or if the key is not ours.
async fn read(mut link: Link, key: &str) -> Result<Vec<u8>, Fault> {
    match link.send(redis::cmd("GET").arg(key)).await.map_err(Fault::from) {
        Ok(Value::BulkString(receipts)) => Ok(receipts),
        Ok(_) | Err(Fault::Record(_)) => Ok(Vec::new()),
        Err(fault) => Err(fault),
    }
}

impl Unsettled {
    /// Returns about when a charge was stored; `None` for a tally, which finds an entry only by its exact time and
    /// otherwise takes its newest.
    fn at(&self, shared: &Shared, place: usize) -> Option<Nanos> {
        let charge = &self.request.charges[place];
        let is_tally = algorithm::of(charge.rule.rule.limit()).answers() == Answers::After;
        let sent = || shared.clocks.redis(charge.group, self.call.sent);
        self.request.now.or_else(|| (!is_tally).then(sent))
    }

    /// Takes charges out of this node's ledger that Redis has stored, or else takes them back in Redis, and so those
    /// of leaky rules whose request was denied here. Returns true if nothing is left to do.
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
                if let Err(Fault::Skipped | Fault::Refused(_)) = taken_back {
                    is_all = false;
                    continue;
                }
            }
            self.done |= 1 << place;
        }
        is_all
    }

    /// Returns true if Redis has a charge that it should not have.
    fn unwanted(&self, shared: &Shared, place: usize, stored: bool) -> bool {
        let charge = &self.request.charges[place];
        match self.noted.iter().find(|(noted, _)| *noted == place) {
            Some((_, at)) => stored && !shared.backlog.ledger.take_out(charge, *at),
            None => stored && self.denied && !self.request.is_strict(place),
        }
    }
}
