//! What was counted here while Redis was gone, to be added to its records when it is back.
//!
//! It keeps a state of this node's own charges alone, by the pure functions. States of recent-average
//! and of windows add up. A bucket's follow from two figures, the sum of what was charged and the time
//! at which a pool would be full that had seen nothing else: `full = max(full + sum, alone)`, exactly
//! as if all had been charged in one place. An exponential average does not add, and is not kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use earrrl::{Cost, Limit, Mode, Nanos, RuleId, State};

use crate::algorithm::{self, Adjustment};
use crate::rules::Prepared;

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
    state: Option<State>,
    sum: Cost,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    capacity: usize,
    owed: Mutex<Owed>,
    /// Entries on their way.
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
        Self { capacity, owed: Mutex::default(), under_way: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a charge; answers whether there was room and sense for it.
    pub(crate) fn add(&self, rule: &Prepared, client: &[u8], cost: Cost, now: Nanos) -> bool {
        let mut owed = self.lock();
        let client = Client { rule: rule.id, key: client.to_vec() };
        let is_full = owed.len() + self.under_way() >= self.capacity;
        if !algorithm::of(rule.rule.limit()).adds()
            || is_full && !owed.entries.contains_key(&client)
        {
            return false;
        }
        let fresh = Entry { tag: rule.tag, state: None, sum: Cost::ZERO };
        let entry = owed.entries.entry(client).or_insert_with(|| fresh.clone());
        if entry.tag != rule.tag {
            *entry = fresh;
        }
        entry.state = rule.rule.limit().step(entry.state.take(), now, cost, Mode::Charge).0;
        entry.sum = entry.sum + cost;
        true
    }

    /// Takes a charge out again, which Redis turned out to have stored; answers whether it was there.
    pub(crate) fn take_back(&self, rule: &Prepared, client: &[u8], cost: Cost, at: Nanos) -> bool {
        let entries = &mut self.lock().entries;
        let client = Client { rule: rule.id, key: client.to_vec() };
        let Some(entry) = entries.get_mut(&client).filter(|entry| entry.tag == rule.tag) else {
            return false;
        };
        entry.state = rule.rule.limit().refund(entry.state.take(), at, at, cost);
        let left = entry.sum.billionths().saturating_sub(cost.billionths());
        entry.sum = Cost::from_billionths(left);
        if entry.state.is_none() {
            entries.remove(&client);
        }
        true
    }

    /// Whether a client has counts that Redis lacks. Those on their way are no longer told apart.
    pub(crate) fn owes(&self, rule: RuleId, client: &[u8]) -> bool {
        if self.owed() == 0 {
            return false;
        }
        let client = Client { rule, key: client.to_vec() };
        self.under_way() > 0 || self.lock().entries.contains_key(&client)
    }

    /// Forgets a client.
    pub(crate) fn forget(&self, rule: RuleId, client: &[u8]) {
        self.lock().entries.remove(&Client { rule, key: client.to_vec() });
    }

    /// Everything, to be handed over; each entry is then [`Ledger::done`] or comes back.
    pub(crate) fn drain(&self) -> Vec<(Client, Entry)> {
        let mut owed = self.lock();
        let Owed { entries, mut returned } = std::mem::take(&mut *owed);
        returned.extend(entries);
        self.under_way.fetch_add(returned.len(), Ordering::AcqRel);
        returned
    }

    /// One of the drained entries needs no more care.
    pub(crate) fn done(&self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// One of the drained entries could not be handed over yet.
    pub(crate) fn put_back(&self, client: Client, entry: Entry) {
        let mut owed = self.lock();
        let was_charged = owed.entries.contains_key(&client);
        if was_charged {
            owed.returned.push((client, entry));
        } else {
            owed.entries.insert(client, entry);
        }
        self.done();
    }

    /// Clients whose counts Redis does not have yet.
    pub(crate) fn owed(&self) -> usize {
        let owed = self.lock();
        owed.len() + self.under_way()
    }

    fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Acquire)
    }
}

impl Owed {
    fn len(&self) -> usize {
        self.entries.len() + self.returned.len()
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
        let id = rules.prepare("window", &rule, Nanos::ZERO, || Ok(RuleId(0))).unwrap();
        let (rule, ledger) = (rules.get(id).unwrap(), Ledger::new(3));
        let add = |client: &str| ledger.add(&rule, client.as_bytes(), Cost::ONE, Nanos::ZERO);
        assert!(add("a") && add("a") && add("b"));
        let mut drained = ledger.drain();
        assert!(add("b") && !add("c"), "entries under way take room");
        while let Some((client, entry)) = drained.pop() {
            ledger.put_back(client, entry);
        }
        assert_eq!((ledger.owed(), add("c")), (3, false), "what came back takes room");
        assert!(add("a") && ledger.owed() == 3, "and goes on");
        let drained = ledger.drain();
        let limit = rule.rule.limit();
        let adjustments =
            drained.iter().flat_map(|(_, entry)| entry.adjustments(limit, Nanos::ZERO));
        assert_eq!(adjustments.map(|adjustment| adjustment.cost.as_f64()).sum::<f64>(), 5.0);
    }
}
