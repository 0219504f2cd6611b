//! The clients of one near rule, in a bounded table that is sharded by client.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earrrl::Nanos;
use earrrl::table::KeyHasher;

use super::client::{Client, Lease};
use super::lines::LeaseLines;
use super::shard::Shard;
pub(crate) use super::shard::{NearRule, Place, QueuedClient};

pub(crate) const SHARDS: usize = 64;
/// The number of lines with which a shard begins.
const FIRST_LINES: usize = 16;

#[derive(Debug)]
pub(crate) struct ClientTable {
    shards: Box<[Mutex<Shard>]>,
    hasher: KeyHasher,
    /// The most clients per shard.
    capacity: usize,
    /// The largest index so far. The first shard that grew uses it already, and the other shards
    /// move to it when they grow. It is one allocation for all shards, so that it can be in huge
    /// pages, which save a second cache miss.
    newest: Mutex<Option<Arc<LeaseLines>>>,
}

impl ClientTable {
    pub(crate) fn new(capacity: usize, hasher: KeyHasher) -> Self {
        Self {
            shards: (0..SHARDS)
                .map(|number| Mutex::new(Shard::new(number)))
                .collect(),
            hasher,
            capacity: capacity.div_ceil(SHARDS),
            newest: Mutex::default(),
        }
    }

    pub(crate) fn place(&self, key: &[u8]) -> Place {
        let hash = self.hasher.hash_bytes(key).bits();
        // Lines are found by the hash's highest bits, so the shard is chosen by its lowest bits.
        // The lowest bit is then set, so that no hash is 0.
        Place {
            shard: (hash >> 1) as usize % SHARDS,
            hash: hash | 1,
        }
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a request by the client's lease, or else by the client itself. Returns `None` if
    /// neither can decide.
    #[inline]
    pub(crate) fn decide<R>(
        &self,
        key: &[u8],
        by_lease: impl FnOnce(&NearRule, &mut Lease, usize) -> Option<R>,
        by_client: impl FnOnce(&NearRule, &mut Client) -> Option<R>,
    ) -> Option<R> {
        let place = self.place(key);
        self.lock(place.shard).decide(place, by_lease, by_client)
    }

    /// Replaces the rule and converts every client by `change`. While the rule is `None`, the table
    /// decides nothing.
    pub(crate) fn set_rule(&self, rule: Option<NearRule>, mut change: impl FnMut(&mut Client)) {
        let rule = rule.map(Arc::new);
        for shard in 0..SHARDS {
            self.lock(shard).set_rule(rule.clone(), &mut change);
        }
    }

    /// Drops all clients and the rule.
    pub(crate) fn clear(&self) {
        // The next index is a new allocation, so it holds none of the dropped clients.
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = None;
        (0..SHARDS).for_each(|shard| self.lock(shard).clear());
    }

    /// Returns the number of decisions that were made without a round trip to Redis.
    pub(crate) fn decided(&self) -> u64 {
        (0..SHARDS).map(|shard| self.lock(shard).decided).sum()
    }

    /// Calls `change` with a client; returns `None` if the client is not in the table.
    pub(crate) fn with<R>(&self, key: &[u8], change: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let place = self.place(key);
        self.lock(place.shard).with(place, change)
    }

    /// Calls `change` with a client, which is added if it is not in the table. Returns `None` if
    /// the table is full.
    pub(crate) fn with_new<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        let place = self.place(key);
        let mut shard = self.lock(place.shard);
        if !shard.has(place) {
            shard.insert(place, key, self.capacity, |each| self.lines(each))?;
        }
        shard.with(place, change)
    }

    /// Returns an index with more than `each` lines per shard; `None` if there is not enough
    /// memory.
    fn lines(&self, each: usize) -> Option<Arc<LeaseLines>> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.as_ref().is_none_or(|newest| newest.each() <= each) {
            *newest = Some(Arc::new(LeaseLines::new(
                SHARDS,
                FIRST_LINES.max(each + each / 2),
            )?));
        }
        newest.clone()
    }

    /// Takes the clients that are due for an exchange at `now`, and up to `early` others of each
    /// shard that is almost full.
    pub(crate) fn take_due(&self, now: Nanos, early: usize) -> Vec<QueuedClient> {
        let mut taken = Vec::new();
        for shard in 0..SHARDS {
            self.lock(shard)
                .take_due(now, early, self.capacity, &mut taken);
        }
        taken
    }

    /// Returns the number of clients with charges that Redis lacks.
    pub(crate) fn pending(&self) -> usize {
        (0..SHARDS).map(|shard| self.lock(shard).pending()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clients::client::{Authority, LocalTime, Snapshot};
    use earrrl::{Cost, Mode, Rule};

    fn table(capacity: usize) -> ClientTable {
        ClientTable::new(SHARDS * capacity, KeyHasher::with_key(&[7; 16]))
    }

    fn time(secs: u64) -> LocalTime {
        LocalTime {
            local: Nanos::from_secs(secs),
            offset: 0,
        }
    }

    #[test]
    fn only_clients_without_pending_charges_are_evicted() {
        let table = table(4);
        let rule: Rule = "fixed-window 9/1h".parse().unwrap();
        let charge = |key: &str| {
            table.with_new(key.as_bytes(), |client| {
                client
                    .decide(&rule, Cost::ONE, Mode::Check, time(1), Authority::StateOnly)
                    .is_some()
            })
        };
        let kept = (0..1000)
            .filter(|number| charge(&format!("k{number}")) == Some(true))
            .count();
        let due = table.take_due(Nanos::MAX, 0).len();
        assert_eq!((kept, table.pending(), due), (256, 256, 256));
        assert_eq!(charge("another"), None, "counts are never dropped");
        let rule = NearRule {
            rule,
            lag: Duration::ZERO,
        };
        table.set_rule(Some(rule), |client| client.forget());
        for number in 0..1000 {
            let key = format!("n{number}");
            assert_eq!(
                table.with_new(key.as_bytes(), |client| client.has_pending()),
                Some(false)
            );
            assert!(
                table.with(key.as_bytes(), |_| ()).is_some(),
                "{key} is found again"
            );
        }
    }

    /// Gives a client a share of ten requests, which must be claimed again after 10 s.
    fn learn(table: &ClientTable, rule: &Rule, key: &str) {
        let share = 10.0 * 100_000.0;
        let others = 0;
        let missing = 0.0;
        let part = 1.0;
        let renew = Nanos::from_secs(10);
        let until = Nanos::from_secs(20);
        let fresh = until;
        let snapshot = Snapshot {
            state: None,
            share,
            renew,
            until,
            fresh,
            others,
            missing,
            part,
        };
        table.with_new(key.as_bytes(), |client| {
            let ttl = Duration::from_secs(20);
            let call = client.call(rule.limit(), Cost::ZERO, time(1), ttl, || 1);
            client.apply(rule.limit(), &call, snapshot, time(1))
        });
    }

    /// Decides requests at a time, all of which are allowed.
    fn decide(table: &ClientTable, rule: &Rule, key: &str, at: u64, times: usize) {
        table.with_new(key.as_bytes(), |client| {
            for _ in 0..times {
                let decided =
                    client.decide(rule, Cost::ONE, Mode::Check, time(at), Authority::Share);
                assert!(decided.unwrap().allowed);
            }
        });
    }

    /// Returns the keys of the clients that are due, in alphabetical order.
    fn due(table: &ClientTable, now: u64, early: usize) -> String {
        let queued = table.take_due(Nanos::from_secs(now), early);
        let mut keys: Vec<_> = queued
            .iter()
            .map(|one| String::from_utf8_lossy(&one.key))
            .collect();
        keys.sort_unstable();
        keys.join(" ")
    }

    #[test]
    fn clients_wait_until_their_share_must_be_claimed_again() {
        let (table, rule): (_, Rule) = (table(100), "gcra 10/s burst=100".parse().unwrap());
        for key in ["little", "much", "late", "later"] {
            learn(&table, &rule, key);
        }
        decide(&table, &rule, "little", 2, 1);
        decide(&table, &rule, "much", 3, 6);
        decide(&table, &rule, "late", 11, 1);
        decide(&table, &rule, "later", 4, 1);
        assert_eq!(
            due(&table, 9, 5),
            "late much",
            "half the share is spent, or it must be renewed"
        );
        assert_eq!(due(&table, 10, 0), "later little");
        assert_eq!(due(&table, 100, 100), "");
    }

    #[test]
    fn an_almost_full_shard_exchanges_clients_early() {
        let rule: Rule = "gcra 10/s burst=100".parse().unwrap();
        for (capacity, early) in [(6, [2, 0, 3]), (100, [0, 0, 5])] {
            let table = table(capacity);
            let shard = |key: &String| table.place(key.as_bytes()).shard == 7;
            for key in (0..).map(|n| format!("k{n}")).filter(shard).take(5) {
                learn(&table, &rule, &key);
                decide(&table, &rule, &key, 2, 1);
            }
            let due = |now, early| table.take_due(Nanos::from_secs(now), early).len();
            assert_eq!([due(9, 2), due(9, 0), due(10, 0)], early, "{capacity}");
        }
    }
}
