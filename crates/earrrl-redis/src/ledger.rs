//! What was counted here while Redis was gone, to be added to its records when it is back.
//!
//! It keeps a state of this node's own charges alone, by the pure functions. States of recent-average
//! and of windows add up. A bucket's follow from two figures, the sum of what was charged and the time
//! at which a pool would be full that had seen nothing else: `full = max(full + sum, alone)`, exactly
//! as if all had been charged in one place. An exponential average does not add, and is not kept.

use std::collections::hash_map::{self, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use earrrl::{Cost, Mode, Nanos, RuleId, State};

use crate::algorithm;
use crate::request::AskedCharge;

const SHARDS: usize = 64;

/// Whose an entry is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId {
    pub(crate) rule: RuleId,
    pub(crate) key: Vec<u8>,
}

/// What a client was charged here.
#[derive(Clone, Debug)]
pub(crate) struct Contribution {
    pub(crate) tag: u32,
    /// The breaker's group.
    group: usize,
    /// What it is sent under, so that Redis adds it once however often it is sent; once it has one, it
    /// changes no more.
    pub(crate) number: u64,
    pub(crate) state: Option<State>,
    pub(crate) sum: Cost,
    /// Tells it from others of its client.
    entry: u64,
    /// When the last of it was charged.
    latest: Nanos,
}

/// Sharded by client, so that nodes that decide alone do not queue for one lock.
#[derive(Debug)]
pub(crate) struct Ledger {
    capacity: usize,
    shards: Box<[Mutex<Owed>]>,
    hasher: RandomState,
    /// Entries, with those on their way.
    owed: AtomicUsize,
    /// How many there ever were.
    entries: AtomicU64,
}

/// Where a charge was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotedAt {
    entry: u64,
    pub(crate) at: Nanos,
}

#[derive(Debug, Default)]
struct Owed {
    entries: HashMap<ClientId, Contribution>,
    /// Those that were sent, and may have arrived.
    returned: HashMap<ClientId, Contribution>,
    /// Whose entries are on their way. One at a time: Redis takes a client's numbers in their order.
    under_way: HashSet<ClientId>,
}

impl Ledger {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            owed: AtomicUsize::new(0),
            entries: AtomicU64::new(0),
        }
    }

    fn lock(&self, client: &ClientId) -> MutexGuard<'_, Owed> {
        let shard = self.hasher.hash_one(client) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a charge, and answers where and at what time, if there was room and sense for it: requests that are
    /// decided at once may come in another order.
    pub(crate) fn add(&self, asked: &AskedCharge, now: Nanos) -> Option<NotedAt> {
        let (rule, client) = (&asked.rule, ClientId::of(asked));
        if !algorithm::of(rule.rule.limit()).adds() {
            return None;
        }
        let mut owed = self.lock(&client);
        let fresh = || {
            let entry = self.entries.fetch_add(1, Ordering::Relaxed);
            Contribution::new(rule.tag, asked.group, entry)
        };
        let entry = match owed.entries.entry(client) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(entry) => {
                if self.owed() >= self.capacity {
                    return None;
                }
                self.owed.fetch_add(1, Ordering::AcqRel);
                entry.insert(fresh())
            }
        };
        if entry.tag != rule.tag {
            *entry = fresh();
        }
        entry.latest = entry.latest.max(now);
        let (limit, state) = (rule.rule.limit(), entry.state.take());
        entry.state = limit.step(state, entry.latest, asked.cost, Mode::Charge).0;
        entry.sum = entry.sum + asked.cost;
        Some(NotedAt { entry: entry.entry, at: entry.latest })
    }

    /// Takes a charge out again, unless it is no longer here: handed over, or on its way. Answers whether it was.
    pub(crate) fn take_out(&self, asked: &AskedCharge, noted: NotedAt) -> bool {
        let client = ClientId::of(asked);
        let is_here = |entry: &Contribution| entry.entry == noted.entry;
        let is_here = self.lock(&client).entries.get(&client).is_some_and(is_here);
        is_here && self.take_back(asked, Some(noted.at), noted.at)
    }

    /// Takes a charge out again; answers whether it was there.
    /// Without its time, the last one.
    pub(crate) fn take_back(
        &self,
        asked: &AskedCharge,
        charged_at: Option<Nanos>,
        now: Nanos,
    ) -> bool {
        let (rule, client) = (&asked.rule, ClientId::of(asked));
        let mut owed = self.lock(&client);
        let Some(entry) = owed.entries.get_mut(&client).filter(|entry| entry.tag == rule.tag)
        else {
            return false;
        };
        let (limit, state) = (rule.rule.limit(), entry.state.take());
        let at = charged_at.or_else(|| limit.last_charge(state.as_ref())).unwrap_or(now);
        entry.state = limit.refund(state, now, at, asked.cost);
        let left = entry.sum.billionths().saturating_sub(asked.cost.billionths());
        entry.sum = Cost::from_billionths(left);
        if entry.state.is_none() {
            owed.entries.remove(&client);
            self.owed.fetch_sub(1, Ordering::AcqRel);
        }
        true
    }

    /// Whether a client has counts that Redis lacks.
    pub(crate) fn owes(&self, asked: &AskedCharge) -> bool {
        if self.owed() == 0 {
            return false;
        }
        let client = ClientId::of(asked);
        let owed = self.lock(&client);
        let Owed { entries, returned, under_way } = &*owed;
        entries.contains_key(&client)
            || returned.contains_key(&client)
            || under_way.contains(&client)
    }

    /// Forgets a client.
    pub(crate) fn forget(&self, asked: &AskedCharge) {
        let client = ClientId::of(asked);
        let mut owed = self.lock(&client);
        for gone in [owed.entries.remove(&client), owed.returned.remove(&client)] {
            self.owed.fetch_sub(usize::from(gone.is_some()), Ordering::AcqRel);
        }
    }

    /// What is to be handed over of a group, one entry a client; each is then [`Ledger::done`] or comes back,
    /// and no other of its client is drained before that. What came back goes before what was charged since.
    pub(crate) fn drain(
        &self,
        group: usize,
        number: impl Fn() -> u64,
    ) -> Vec<(ClientId, Contribution)> {
        let mut drained = Vec::new();
        for shard in &self.shards {
            let mut owed = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let (from, Owed { entries, returned, under_way }) = (drained.len(), &mut *owed);
            let ready = |client: &ClientId, entry: &mut Contribution| {
                let waits = returned.contains_key(client) || under_way.contains(client);
                entry.group == group && !waits
            };
            drained.extend(entries.extract_if(ready));
            drained.extend(returned.extract_if(|_, entry| entry.group == group));
            for (client, entry) in &mut drained[from..] {
                under_way.insert(client.clone());
                if entry.number == 0 {
                    entry.number = number();
                }
            }
        }
        drained
    }

    /// A drained entry needs no more care.
    pub(crate) fn done(&self, client: &ClientId) {
        self.lock(client).under_way.remove(client);
        self.owed.fetch_sub(1, Ordering::AcqRel);
    }

    /// A drained entry could not be handed over, as far as is known.
    pub(crate) fn put_back(&self, client: ClientId, entry: Contribution) {
        let mut owed = self.lock(&client);
        owed.under_way.remove(&client);
        owed.returned.insert(client, entry);
    }

    /// Clients whose counts Redis does not have yet.
    pub(crate) fn owed(&self) -> usize {
        self.owed.load(Ordering::Acquire)
    }
}

impl Contribution {
    fn new(tag: u32, group: usize, entry: u64) -> Self {
        let (sum, latest) = (Cost::ZERO, Nanos::ZERO);
        Self { tag, group, number: 0, state: None, sum, entry, latest }
    }
}

impl ClientId {
    fn of(asked: &AskedCharge) -> Self {
        Self { rule: asked.rule.id, key: asked.client.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use earrrl::table::KeyHasher;

    use super::*;
    use crate::rules::Rules;

    fn asked(rule: &str, client: &str) -> AskedCharge {
        let rules = Rules::new(KeyHasher::with_key(&[7; 16]), Duration::ZERO);
        let (rule, local) = (rule.parse().unwrap(), || Ok(vec![RuleId(0)]));
        let id = rules.prepare(&[("rule", &rule, None)], Nanos::ZERO, local).unwrap()[0];
        let (rule, client, key) = (rules.get(id).unwrap(), client.into(), Vec::new());
        AskedCharge { rule, client, cost: Cost::ONE, place: 0, key, slot: 0, group: 0 }
    }

    /// Of a log, whose charges are found by their times.
    #[test]
    fn charges_that_redis_has_are_taken_out_while_they_are_here() {
        let (asked, ledger) = (asked("sliding-log 9/1h", "a"), Ledger::new(4));
        let add = |at| ledger.add(&asked, Nanos::new(at)).unwrap();
        let (_, other, last) = (add(2_000_000), add(1_000_000), add(3_000_000));
        assert!(ledger.take_out(&asked, other), "noted after a later one");
        let (_, entry) = ledger.drain(0, || 7).pop().unwrap();
        let limit = asked.rule.rule.limit();
        let figures = limit.step(entry.state, Nanos::new(3_000_000), Cost::ZERO, Mode::Peek).2;
        assert_eq!((entry.sum, figures.remaining), (Cost::from_units(2), 7));
        add(3_000_000);
        assert!(!ledger.take_out(&asked, last), "it is on its way, and this is another");
    }

    #[test]
    fn what_comes_back_is_as_it_was_and_goes_first() {
        let ledger = Ledger::new(4);
        let add =
            |client: &str| ledger.add(&asked("fixed-window 9/1h", client), Nanos::ZERO).is_some();
        assert!(add("a") && add("a") && add("b"));
        assert!(ledger.drain(1, || 9).is_empty(), "another group has nothing");
        let drained = ledger.drain(0, || 7);
        assert_eq!(drained.len(), 2);
        assert!(add("b") && add("c") && !add("d"), "entries under way take room");
        let mut other = ledger.drain(0, || 8);
        let (client, entry) = other.pop().unwrap();
        assert_eq!((client.key[0], other.len()), (b'c', 0), "b has a lower number under way");
        ledger.put_back(client, entry);
        drained.into_iter().for_each(|(client, entry)| ledger.put_back(client, entry));
        assert_eq!((ledger.owed(), add("d")), (4, false), "what came back takes room");
        let summed = |drained: Vec<(ClientId, Contribution)>| {
            let mut all: Vec<_> = drained
                .into_iter()
                .map(|(client, entry)| {
                    ledger.done(&client);
                    (client.key[0] as char, entry.number, entry.sum.as_f64())
                })
                .collect();
            all.sort_by_key(|(client, ..)| *client);
            all
        };
        assert_eq!(summed(ledger.drain(0, || 8)), [('a', 7, 2.0), ('b', 7, 1.0), ('c', 8, 1.0)]);
        assert_eq!(summed(ledger.drain(0, || 9)), [('b', 9, 1.0)]);
        assert_eq!(ledger.owed(), 0);
    }
}
