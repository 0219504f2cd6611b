//! The ledger of pending changes of Redis's records: charges that this node made while Redis was
//! not reachable, and charges that Redis has stored and must take back.

use std::collections::HashMap;
use std::collections::hash_map::{self, RandomState};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earrrl::{Nanos, RuleId};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::algorithm::{self, Adjustment};
use crate::pending::{Contribution, MAX_TAKE_BACKS, Pending};
use crate::request::KeyedCharge;
use crate::rules::PreparedRule;

const SHARDS: usize = 64;

/// A client's key, and the rule that it is counted under, with the tag of its records: a rule has other
/// records under another algorithm or half-life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId {
    pub(crate) rule: RuleId,
    pub(crate) tag: u32,
    pub(crate) key: Vec<u8>,
}

/// The pending changes of a client.
#[derive(Debug)]
struct Entry {
    /// The number that distinguishes this entry from earlier entries of the same client.
    id: u64,
    /// The rule under whose parameters the charges are counted, also after it was changed.
    rule: Arc<PreparedRule>,
    /// The group of Cluster slots, with a circuit breaker of its own, to which the client belongs.
    group: usize,
    /// The time of the last charge.
    latest: Nanos,
    pending: Pending,
    take_backs: Vec<Adjustment>,
    /// The time that the caller gave, if any.
    given: Option<Nanos>,
}

/// An entry that is sent to Redis, and the rule under whose parameters its charges are counted.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The number of the entry.
    entry: u64,
    pub(crate) rule: Arc<PreparedRule>,
    group: usize,
    pub(crate) contribution: Contribution,
    /// The time that the caller gave, if any.
    pub(crate) given: Option<Nanos>,
}

/// The pending changes of all clients, in shards, so that concurrent decisions rarely wait for the
/// same lock.
#[derive(Debug)]
pub(crate) struct Ledger {
    capacity: usize,
    shards: Box<[Mutex<Shard>]>,
    /// Wakes the tasks that wait for a delivery, one for each shard.
    returned: Box<[Notify]>,
    hasher: RandomState,
    /// The number of entries, including those in flight.
    len: AtomicUsize,
    next_id: AtomicU64,
}

/// The ledger entry of a charge, and the time under which the charge was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotedAt {
    entry: u64,
    pub(crate) at: Nanos,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<ClientId, Entry>,
    /// Entries that were sent to Redis and may have arrived.
    retries: HashMap<ClientId, Delivery>,
    /// The entries in flight. A client has only one at a time, since Redis accepts a client's
    /// changes in the order of their numbers.
    in_flight: HashMap<ClientId, u64>,
}

impl Ledger {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            returned: (0..SHARDS).map(|_| Notify::new()).collect(),
            hasher: RandomState::new(),
            len: AtomicUsize::new(0),
            next_id: AtomicU64::new(0),
        }
    }

    fn shard(&self, client: &ClientId) -> usize {
        self.hasher.hash_one(client) as usize % SHARDS
    }

    fn lock(&self, client: &ClientId) -> MutexGuard<'_, Shard> {
        self.shards[self.shard(client)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a charge, and returns its place in the ledger. Returns `None` if the ledger is full or
    /// the algorithm's counts cannot be added up. Concurrent requests may come out of order, so a
    /// charge is noted at the latest time of its client. `new_at` is the instant at which the client is
    /// as good as new, according to this node.
    pub(crate) fn add(&self, charge: &KeyedCharge, now: Nanos, new_at: Nanos) -> Option<NotedAt> {
        if !algorithm::of(charge.rule.rule.limit()).adds() {
            return None;
        }
        self.change(charge, |entry| {
            entry.latest = entry.latest.max(now);
            entry
                .pending
                .add(entry.rule.rule.limit(), entry.latest, charge.cost);
            entry.pending.note_without_redis(entry.latest, new_at);
            Some(NotedAt {
                entry: entry.id,
                at: entry.latest,
            })
        })
    }

    /// Notes that Redis must take back a charge. Returns the number of the entry, or `None` if the
    /// ledger is full. `charged_at` is a time of Redis's clock; `None` stands for the latest
    /// charge. `twice` is true if the charge is in the ledger, too.
    pub(crate) fn take_back_there(
        &self,
        charge: &KeyedCharge,
        charged_at: Option<Nanos>,
        given: Option<Nanos>,
        twice: bool,
    ) -> Option<u64> {
        self.change(charge, |entry| {
            if entry.take_backs.len() >= MAX_TAKE_BACKS {
                return None;
            }
            entry
                .take_backs
                .push(Adjustment::take_back(charged_at, charge.cost, twice));
            entry.given = entry.given.max(given);
            Some(entry.id)
        })
    }

    /// Changes the entry of a client, or adds one. Returns `None` if the ledger is full.
    fn change<R>(
        &self,
        charge: &KeyedCharge,
        change: impl FnOnce(&mut Entry) -> Option<R>,
    ) -> Option<R> {
        let client = ClientId::of(charge);
        let mut shard = self.lock(&client);
        let entry = match shard.entries.entry(client) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(entry) => {
                if self.len() >= self.capacity {
                    return None;
                }
                self.len.fetch_add(1, Ordering::AcqRel);
                entry.insert(self.entry(charge))
            }
        };
        change(entry)
    }

    fn entry(&self, charge: &KeyedCharge) -> Entry {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let rule = charge.rule.clone();
        let group = charge.group;
        let pending = Pending::default();
        let take_backs = Vec::new();
        Entry {
            id,
            rule,
            group,
            latest: Nanos::ZERO,
            pending,
            take_backs,
            given: None,
        }
    }

    /// Removes a charge that was not sent yet. Returns true if it was removed.
    pub(crate) fn take_out(&self, charge: &KeyedCharge, noted: NotedAt) -> bool {
        let client = ClientId::of(charge);
        let is_here = |entry: &Entry| entry.id == noted.entry;
        let is_here = self.lock(&client).entries.get(&client).is_some_and(is_here);
        is_here && self.take_back(charge, Some(noted.at), noted.at)
    }

    /// Takes a charge back. Returns true if it was in the ledger. If its time is `None`, the latest
    /// charge is taken back.
    pub(crate) fn take_back(
        &self,
        charge: &KeyedCharge,
        charged_at: Option<Nanos>,
        now: Nanos,
    ) -> bool {
        let client = ClientId::of(charge);
        let mut shard = self.lock(&client);
        let Some(entry) = shard.entries.get_mut(&client) else {
            return false;
        };
        let at = entry
            .pending
            .take_back(entry.rule.rule.limit(), charge.cost, charged_at, now);
        if entry.pending.is_empty() && entry.take_backs.is_empty() {
            shard.entries.remove(&client);
            self.len.fetch_sub(1, Ordering::AcqRel);
        }
        at.is_some()
    }

    /// Returns true if the client has charges that Redis lacks.
    pub(crate) fn has(&self, charge: &KeyedCharge) -> bool {
        if self.len() == 0 {
            return false;
        }
        let client = ClientId::of(charge);
        let shard = self.lock(&client);
        let Shard {
            entries,
            retries,
            in_flight,
        } = &*shard;
        entries.contains_key(&client)
            || retries.contains_key(&client)
            || in_flight.contains_key(&client)
    }

    /// Returns true if Redis may still lack the changes of an entry.
    pub(crate) fn lacks(&self, client: &ClientId, entry: u64) -> bool {
        let shard = self.lock(client);
        let waits = shard.entries.get(client).map(|waiting| waiting.id);
        let retry = shard.retries.get(client).map(|delivery| delivery.entry);
        let in_flight = shard.in_flight.get(client).copied();
        [waits, retry, in_flight].contains(&Some(entry))
    }

    /// Waits until an entry in the client's shard is delivered or put back. It may be the entry of
    /// another client.
    pub(crate) fn returned(&self, client: &ClientId) -> Notified<'_> {
        self.returned[self.shard(client)].notified()
    }

    /// Drops the entries of a client that was reset.
    pub(crate) fn forget(&self, charge: &KeyedCharge) {
        let client = ClientId::of(charge);
        let mut shard = self.lock(&client);
        let entry = shard.entries.remove(&client).is_some();
        let retry = shard.retries.remove(&client).is_some();
        self.len
            .fetch_sub(usize::from(entry) + usize::from(retry), Ordering::AcqRel);
    }

    /// Takes the entry of one client as [`Ledger::drain`] does.
    pub(crate) fn drain_client(
        &self,
        client: &ClientId,
        number: impl FnOnce() -> u64,
    ) -> Option<Delivery> {
        let mut shard = self.lock(client);
        let Shard {
            entries,
            retries,
            in_flight,
        } = &mut *shard;
        if in_flight.contains_key(client) {
            return None;
        }
        let retry = retries.remove(client);
        let new = || Some(entries.remove(client)?.deliver(number()));
        let delivery = retry.or_else(new)?;
        in_flight.insert(client.clone(), delivery.entry);
        Some(delivery)
    }

    /// Takes the entries of a breaker's group that can be sent: one for each client, a retry before
    /// charges that came later. The caller must report each entry with [`Ledger::done`] or
    /// [`Ledger::put_back`]; until then no other entry of its client is returned.
    pub(crate) fn drain(
        &self,
        group: usize,
        number: impl Fn() -> u64,
    ) -> Vec<(ClientId, Delivery)> {
        let mut drained = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let from = drained.len();
            let Shard {
                entries,
                retries,
                in_flight,
            } = &mut *shard;
            let ready = entries.extract_if(|client, entry| {
                let waits = retries.contains_key(client) || in_flight.contains_key(client);
                entry.group == group && !waits
            });
            drained.extend(ready.map(|(client, entry)| (client, entry.deliver(number()))));
            drained.extend(retries.extract_if(|_, delivery| delivery.group == group));
            let sent = drained[from..].iter();
            in_flight.extend(sent.map(|(client, delivery)| (client.clone(), delivery.entry)));
        }
        drained
    }

    /// Reports that an entry is delivered or dropped.
    pub(crate) fn done(&self, client: &ClientId) {
        self.lock(client).in_flight.remove(client);
        self.len.fetch_sub(1, Ordering::AcqRel);
        self.returned[self.shard(client)].notify_waiters();
    }

    /// Returns an entry that may not have arrived, so that it is sent again.
    pub(crate) fn put_back(&self, client: ClientId, delivery: Delivery) {
        let returned = &self.returned[self.shard(&client)];
        let mut shard = self.lock(&client);
        shard.in_flight.remove(&client);
        shard.retries.insert(client, delivery);
        returned.notify_waiters();
    }

    /// Returns the number of entries that Redis lacks.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }
}

impl Entry {
    fn deliver(self, number: u64) -> Delivery {
        let Self {
            id: entry,
            rule,
            group,
            latest: _,
            pending,
            take_backs,
            given,
        } = self;
        let contribution = Contribution {
            number,
            pending,
            take_backs,
        };
        Delivery {
            entry,
            rule,
            group,
            contribution,
            given,
        }
    }
}

impl ClientId {
    pub(crate) fn of(charge: &KeyedCharge) -> Self {
        let PreparedRule { id: rule, tag, .. } = *charge.rule;
        Self {
            rule,
            tag,
            key: charge.client.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use earrrl::{Cost, Mode};

    use super::*;
    use crate::rules::{RuleSpec, Rules};

    fn asked(rule: &str, client: &str) -> KeyedCharge {
        let rules = Rules::default();
        let rule = rule.parse().unwrap();
        let local = || Ok(vec![RuleId(0)]);
        let wanted = RuleSpec {
            name: "rule",
            rule: &rule,
            near: None,
        };
        let id = rules.prepare(&[wanted], local).unwrap()[0];
        let rule = rules.get(id).unwrap();
        let client = client.into();
        let key = Vec::new();
        KeyedCharge {
            rule,
            client,
            cost: Cost::ONE,
            place: 0,
            key,
            slot: 0,
            group: 0,
        }
    }

    #[test]
    fn charges_that_redis_has_are_taken_out_while_they_are_here() {
        let charge = asked("sliding-log 9/1h", "a");
        let ledger = Ledger::new(4);
        let add = |at| ledger.add(&charge, Nanos::new(at), Nanos::ZERO).unwrap();
        let _ = add(2_000_000);
        let other = add(1_000_000);
        let last = add(3_000_000);
        assert!(ledger.take_out(&charge, other), "noted after a later one");
        let (_, entry) = ledger.drain(0, || 7).pop().unwrap();
        let limit = charge.rule.rule.limit();
        let figures = limit
            .step(
                entry.contribution.pending.state,
                Nanos::new(3_000_000),
                Cost::ZERO,
                Mode::Peek,
            )
            .2;
        assert_eq!(
            (entry.contribution.pending.sum, figures.remaining),
            (Cost::from_units(2), 7)
        );
        add(3_000_000);
        assert!(
            !ledger.take_out(&charge, last),
            "it is on its way, and this is another"
        );
    }

    #[test]
    fn what_comes_back_is_as_it_was_and_goes_first() {
        let ledger = Ledger::new(4);
        let add = |client: &str| {
            let charge = asked("fixed-window 9/1h", client);
            ledger.add(&charge, Nanos::ZERO, Nanos::ZERO).is_some()
        };
        assert!(add("a") && add("a") && add("b"));
        assert!(
            ledger.drain(1, || 9).is_empty(),
            "another group has nothing"
        );
        let drained = ledger.drain(0, || 7);
        assert_eq!(drained.len(), 2);
        assert!(
            add("b") && add("c") && !add("d"),
            "entries under way take room"
        );
        let mut other = ledger.drain(0, || 8);
        let (client, entry) = other.pop().unwrap();
        assert_eq!(
            (client.key[0], other.len()),
            (b'c', 0),
            "b has a lower number under way"
        );
        ledger.put_back(client, entry);
        drained
            .into_iter()
            .for_each(|(client, entry)| ledger.put_back(client, entry));
        assert_eq!(
            (ledger.len(), add("d")),
            (4, false),
            "what came back takes room"
        );
        let summed = |drained: Vec<(ClientId, Delivery)>| {
            let mut all: Vec<_> = drained
                .into_iter()
                .map(|(client, entry)| {
                    ledger.done(&client);
                    let Contribution {
                        number, pending, ..
                    } = entry.contribution;
                    (client.key[0] as char, number, pending.sum.as_f64())
                })
                .collect();
            all.sort_by_key(|(client, ..)| *client);
            all
        };
        assert_eq!(
            summed(ledger.drain(0, || 8)),
            [('a', 7, 2.0), ('b', 7, 1.0), ('c', 8, 1.0)]
        );
        assert_eq!(summed(ledger.drain(0, || 9)), [('b', 9, 1.0)]);
        assert_eq!(ledger.len(), 0);
    }
}
