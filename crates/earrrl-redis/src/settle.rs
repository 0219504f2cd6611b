//! Calls without an answer. What they asked was decided here, and Redis may have stored it, too: its receipts
//! tell, and it counts once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use earrrl::Nanos;
use redis::Value;
use tokio::time::timeout;

use crate::algorithm::{self, Answers};
use crate::exchange::take_back;
use crate::link::{Fault, Link};
use crate::near::offset::later;
use crate::shared::Shared;
use crate::unsettled::Unsettled;

/// How long receipts are waited for.
const PATIENCE: Duration = Duration::from_secs(2);

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
                        shared.unsettled.one_less();
                    } else {
                        shared.unsettled.put_back(group, vec![call]);
                    }
                }
            }
            Err(fault) => {
                failed.get_or_insert(fault);
                shared.unsettled.put_back(group, calls);
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
