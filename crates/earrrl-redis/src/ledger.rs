//! What was counted here while Redis was gone, to be added to its records when it is back.
//!
//! It keeps a state of this node's own charges alone, by the pure functions. States of recent-average
//! and of windows add up. A bucket's follow from two figures, the sum of what was charged and the time
//! at which a pool would be full that had seen nothing else: `full = max(full + sum, alone)`, exactly
//! as if all had been charged in one place. An exponential average does not add, and is not kept.

use std::collections::HashMap;
use std::collections::hash_map::{self, RandomState};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use earrrl::{Cost, Limit, Mode, Nanos, RuleId, State};

use crate::algorithm::{self, Adjustment};
use crate::request::Asked;

const SHARDS: usize = 64;

/// Whose an entry is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) rule: RuleId,
    pub(crate) key: Vec<u8>,
}

/// What a client was charged here.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) tag: u32,
    /// The breaker's group.
    group: usize,
    state: Option<State>,
    sum: Cost,
}

/// Sharded by client, so that nodes that decide alone do not queue for one lock.
#[derive(Debug)]
pub(crate) struct Ledger {
    capacity: usize,
    shards: Box<[Mutex<Owed>]>,
    hasher: RandomState,
    /// Entries, with those on their way.
    owed: AtomicUsize,
    under_way: AtomicUsize,
}

#[derive(Debug, Default)]
struct Owed {
    entries: HashMap<Client, Entry>,
    /// Those that came back when their clients had been charged again.
    returned: Vec<(Client, Entry)>,
}

impl Ledger {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            owed: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
        }
    }

    fn lock(&self, client: &Client) -> MutexGuard<'_, Owed> {
        let shard = self.hasher.hash_one(client) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a charge; answers whether there was room and sense for it.
    pub(crate) fn add(&self, asked: &Asked, now: Nanos) -> bool {
        let (rule, client) = (&asked.rule, Client::of(asked));
        if !algorithm::of(rule.rule.limit()).adds() {
            return false;
        }
        let mut owed = self.lock(&client);
        let fresh = || Entry { tag: rule.tag, group: asked.group, state: None, sum: Cost::ZERO };
        let entry = match owed.entries.entry(client) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(entry) => {
                if self.owed() >= self.capacity {
                    return false;
                }
                self.owed.fetch_add(1, Ordering::AcqRel);
                entry.insert(fresh())
            }
        };
        if entry.tag != rule.tag {
            *entry = fresh();
        }
        entry.state = rule.rule.limit().step(entry.state.take(), now, asked.cost, Mode::Charge).0;
        entry.sum = entry.sum + asked.cost;
        true
    }

    /// Takes a charge out again, which Redis turned out to have stored; answers whether it was there.
    /// Without its time, the last one.
    pub(crate) fn take_back(&self, asked: &Asked, charged_at: Option<Nanos>, now: Nanos) -> bool {
        let (rule, client) = (&asked.rule, Client::of(asked));
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

    /// Whether a client has counts that Redis lacks. Those on their way are not told apart.
    pub(crate) fn owes(&self, asked: &Asked) -> bool {
        if self.owed() == 0 {
            return false;
        }
        let client = Client::of(asked);
        self.under_way.load(Ordering::Acquire) > 0
            || self.lock(&client).entries.contains_key(&client)
    }

    /// Forgets a client.
    pub(crate) fn forget(&self, asked: &Asked) {
        let client = Client::of(asked);
        if self.lock(&client).entries.remove(&client).is_some() {
            self.owed.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Everything of a group, to be handed over; each entry is then [`Ledger::done`] or comes back.
    pub(crate) fn drain(&self, group: usize) -> Vec<(Client, Entry)> {
        let mut drained = Vec::new();
        for shard in &self.shards {
            let mut owed = shard.lock().unwrap_or_else(PoisonError::into_inner);
            drained.extend(owed.returned.extract_if(.., |(_, entry)| entry.group == group));
            drained.extend(owed.entries.extract_if(|_, entry| entry.group == group));
        }
        self.under_way.fetch_add(drained.len(), Ordering::AcqRel);
        drained
    }

    /// One of the drained entries needs no more care.
    pub(crate) fn done(&self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        self.owed.fetch_sub(1, Ordering::AcqRel);
    }

    /// One of the drained entries could not be handed over yet.
    pub(crate) fn put_back(&self, client: Client, entry: Entry) {
        let mut owed = self.lock(&client);
        match owed.entries.entry(client) {
            hash_map::Entry::Vacant(place) => drop(place.insert(entry)),
            hash_map::Entry::Occupied(place) => {
                let client = place.key().clone();
                owed.returned.push((client, entry));
            }
        }
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Clients whose counts Redis does not have yet.
    pub(crate) fn owed(&self) -> usize {
        self.owed.load(Ordering::Acquire)
    }
}

impl Client {
    fn of(asked: &Asked) -> Self {
        Self { rule: asked.rule.id, key: asked.client.clone() }
    }
}

impl Entry {
    /// The calls that add this to the client's record.
    pub(crate) fn adjustments(&self, limit: &Limit, now: Nanos) -> Vec<Adjustment> {
        let calls = |state| algorithm::of(limit).adjustments(state, self.sum, now);
        self.state.as_ref().map_or_else(Vec::new, calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rules;

    #[test]
    fn what_comes_back_counts_and_no_client_has_two_entries_without_need() {
        let rules = Rules::default();
        let rule = "fixed-window 9/1h".parse().unwrap();
        let id = rules.prepare("window", &rule, Nanos::ZERO, None, || Ok(RuleId(0))).unwrap();
        let (rule, ledger) = (rules.get(id).unwrap(), Ledger::new(3));
        let add = |client: &str| {
            let (client, key) = (client.into(), Vec::new());
            let asked = Asked {
                rule: rule.clone(),
                client,
                cost: Cost::ONE,
                place: 0,
                key,
                slot: 0,
                group: 0,
            };
            ledger.add(&asked, Nanos::ZERO)
        };
        assert!(add("a") && add("a") && add("b"));
        assert!(ledger.drain(1).is_empty(), "another group has nothing");
        let mut drained = ledger.drain(0);
        assert!(add("b") && !add("c"), "entries under way take room");
        while let Some((client, entry)) = drained.pop() {
            ledger.put_back(client, entry);
        }
        assert_eq!((ledger.owed(), add("c")), (3, false), "what came back takes room");
        assert!(add("a") && ledger.owed() == 3, "and goes on");
        let drained = ledger.drain(0);
        let limit = rule.rule.limit();
        let adjustments =
            drained.iter().flat_map(|(_, entry)| entry.adjustments(limit, Nanos::ZERO));
        assert_eq!(adjustments.map(|adjustment| adjustment.cost.as_f64()).sum::<f64>(), 5.0);
    }
}
