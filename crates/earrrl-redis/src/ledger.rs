//! The ledger: what this node counted by itself, or charged without using it, and Redis lacks.
//!
//! ```text
//! decisions of an outage ──────────────┐
//! attempts under a kept denial ────────┤                      ┌ number 7 ┐  one add.lua
//! charges that Redis must take back ───┼→ a client's entry ─→ │ and all  │ ────────────→ its record
//! units that were not spent ───────────┘                      └ changes  ┘
//! ```
//!
//! A client's entry collects changes until it is sent. From then on it is not modified, and Redis applies it
//! once, by its number, however often it is sent; a client has only one entry under way at a time, since Redis
//! accepts them in the order of their numbers.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use earrrl::internal::lock;
use earrrl::{Nanos, RuleId};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::algorithm::{self, Adjustment};
use crate::pending::{MAX_TAKE_BACKS, Pending};
use crate::request::KeyedCharge;
use crate::rules::PreparedRule;

/// A client's key, and the rule that it is counted under, with the tag of its records: a rule has other
/// records under another algorithm or half-life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId {
    rule: RuleId,
    tag: u32,
    pub(crate) key: Vec<u8>,
    /// The group of Cluster slots, with a circuit breaker of its own, to which the client belongs.
    group: usize,
}

impl ClientId {
    pub(crate) fn of(charge: &KeyedCharge) -> Self {
        Self {
            rule: charge.rule.id,
            tag: charge.rule.tag,
            key: charge.client.clone(),
            group: charge.group,
        }
    }
}

/// Changes of a client's record that Redis lacks.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The number under which Redis applies the entry. Later entries of the client have higher ones.
    pub(crate) number: u64,
    /// The rule under whose parameters the charges are counted, also after it was changed.
    pub(crate) rule: Arc<PreparedRule>,
    /// The time of the last charge.
    latest: Nanos,
    pub(crate) pending: Pending,
    /// Charges that Redis has stored and must take back, with times of Redis's clock.
    pub(crate) take_backs: Vec<Adjustment>,
    /// The time that the caller gave, if any.
    pub(crate) given: Option<Nanos>,
}

/// The entries of a client.
#[derive(Debug, Default)]
struct Account {
    /// The entry that collects changes.
    open: Option<Entry>,
    /// An entry that was sent and may have arrived.
    retry: Option<Entry>,
    /// The number of the entry that is under way.
    under_way: Option<u64>,
}

impl Account {
    /// Takes the entry to send, a retry before charges that came later. Returns `None` while one is under way.
    fn take(&mut self) -> Option<Entry> {
        if self.under_way.is_some() {
            return None;
        }
        let entry = self.retry.take().or_else(|| self.open.take())?;
        self.under_way = Some(entry.number);
        Some(entry)
    }

    fn is_empty(&self) -> bool {
        self.open.is_none() && self.retry.is_none() && self.under_way.is_none()
    }
}

type Accounts = HashMap<ClientId, Account>;

/// The pending changes of all clients, by their groups.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The name under which the node sends its entries. It is new at every start, since the numbers begin again.
    pub(crate) node: [u8; 8],
    capacity: usize,
    groups: Vec<Mutex<Accounts>>,
    /// Wakes the tasks that wait for a delivery.
    returned: Notify,
    /// The number of entries, including those under way.
    len: AtomicUsize,
    last_number: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(capacity: usize, groups: usize) -> Self {
        Self {
            node: RandomState::new().hash_one(()).to_le_bytes(),
            capacity,
            groups: (0..groups).map(|_| Mutex::default()).collect(),
            returned: Notify::new(),
            len: AtomicUsize::new(0),
            last_number: AtomicU64::new(0),
        }
    }

    fn lock(&self, client: &ClientId) -> MutexGuard<'_, Accounts> {
        lock(&self.groups[client.group])
    }

    /// Notes a charge. Returns false if the ledger is full or the algorithm's counts cannot be added up. Concurrent
    /// requests may come out of order, so a charge is noted at the latest time of its client. `new_at` is the instant
    /// at which the client is as good as new, according to this node.
    pub(crate) fn add(&self, charge: &KeyedCharge, now: Nanos, new_at: Nanos) -> bool {
        let noted = |entry: &mut Entry| {
            entry.latest = entry.latest.max(now);
            let limit = entry.rule.rule.limit();
            entry.pending.add(limit, entry.latest, charge.cost, new_at);
            Some(())
        };
        algorithm::of(charge.rule.rule.limit()).adds() && self.change(charge, noted).is_some()
    }

    /// Notes that Redis must take something back. Returns the number of the entry, or `None` if the ledger is
    /// full.
    pub(crate) fn take_back_there(
        &self,
        charge: &KeyedCharge,
        back: Adjustment,
        given: Option<Nanos>,
    ) -> Option<u64> {
        self.change(charge, |entry| {
            if entry.take_backs.len() >= MAX_TAKE_BACKS {
                return None;
            }
            entry.take_backs.push(back);
            entry.given = entry.given.max(given);
            Some(entry.number)
        })
    }

    /// Changes the open entry of a client, or adds one. Returns `None` if the ledger is full.
    fn change<R>(
        &self,
        charge: &KeyedCharge,
        change: impl FnOnce(&mut Entry) -> Option<R>,
    ) -> Option<R> {
        let client = ClientId::of(charge);
        let mut accounts = self.lock(&client);
        let is_new = accounts
            .get(&client)
            .is_none_or(|account| account.open.is_none());
        if is_new && self.len() >= self.capacity {
            return None;
        }
        self.len.fetch_add(usize::from(is_new), Ordering::AcqRel);
        let account = accounts.entry(client).or_default();
        change(account.open.get_or_insert_with(|| Entry {
            number: self.last_number.fetch_add(1, Ordering::Relaxed) + 1,
            rule: charge.rule.clone(),
            latest: Nanos::ZERO,
            pending: Pending::default(),
            take_backs: Vec::new(),
            given: None,
        }))
    }

    /// Takes back a charge that was not sent yet. Returns true if it was in the ledger. If its time is `None`, the
    /// latest charge is taken back.
    pub(crate) fn take_back(
        &self,
        charge: &KeyedCharge,
        charged_at: Option<Nanos>,
        now: Nanos,
    ) -> bool {
        let client = ClientId::of(charge);
        let mut accounts = self.lock(&client);
        let Some(account) = accounts.get_mut(&client) else {
            return false;
        };
        let Some(entry) = &mut account.open else {
            return false;
        };
        let limit = entry.rule.rule.limit();
        let is_here = entry.pending.take_back(limit, charge.cost, charged_at, now);
        if entry.pending.is_empty() && entry.take_backs.is_empty() {
            account.open = None;
            self.left(&mut accounts, &client, 1);
        }
        is_here
    }

    /// Returns true if the client has charges that Redis lacks.
    pub(crate) fn has(&self, charge: &KeyedCharge) -> bool {
        if self.len() == 0 {
            return false;
        }
        let client = ClientId::of(charge);
        self.lock(&client).contains_key(&client)
    }

    /// Returns true if Redis may still lack the changes of an entry.
    pub(crate) fn lacks(&self, client: &ClientId, number: u64) -> bool {
        self.lock(client).get(client).is_some_and(|account| {
            let kept = account.open.iter().chain(&account.retry);
            let mut numbers = kept.map(|entry| entry.number).chain(account.under_way);
            numbers.any(|other| other == number)
        })
    }

    /// Waits until an entry is delivered or put back. It may be the entry of another client.
    pub(crate) fn returned(&self) -> Notified<'_> {
        self.returned.notified()
    }

    /// Drops the entries of a client that was reset.
    pub(crate) fn forget(&self, charge: &KeyedCharge) {
        let client = ClientId::of(charge);
        let mut accounts = self.lock(&client);
        let Some(account) = accounts.get_mut(&client) else {
            return;
        };
        let dropped = [account.open.take(), account.retry.take()];
        self.left(&mut accounts, &client, dropped.iter().flatten().count());
    }

    /// Notes that entries of a client have left the ledger.
    fn left(&self, accounts: &mut Accounts, client: &ClientId, entries: usize) {
        if accounts.get(client).is_some_and(Account::is_empty) {
            accounts.remove(client);
        }
        self.len.fetch_sub(entries, Ordering::AcqRel);
    }

    /// Takes the entry of one client that can be sent. The caller must report it with
    /// [`Ledger::put_back`]; until then no other entry of the client is returned.
    pub(crate) fn drain_client(&self, client: &ClientId) -> Option<Entry> {
        self.lock(client).get_mut(client)?.take()
    }

    /// Takes the entries of a breaker's group, one for each client, as [`Ledger::drain_client`] does.
    pub(crate) fn drain(&self, group: usize) -> Vec<(ClientId, Entry)> {
        let mut accounts = lock(&self.groups[group]);
        let entry =
            |(client, account): (&ClientId, &mut Account)| Some((client.clone(), account.take()?));
        accounts.iter_mut().filter_map(entry).collect()
    }

    /// Reports that an entry is delivered or dropped, or returns one that may not have arrived, so that it is sent
    /// again.
    pub(crate) fn put_back(&self, client: &ClientId, retry: Option<Entry>) {
        let mut accounts = self.lock(client);
        let gone = usize::from(retry.is_none());
        if let Some(account) = accounts.get_mut(client) {
            account.under_way = None;
            account.retry = retry;
        }
        self.left(&mut accounts, client, gone);
        self.returned.notify_waiters();
    }

    /// Returns the number of entries that Redis lacks.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use earrrl::Cost;

    use super::*;
    use crate::options::Consistency;
    use crate::rules::Rules;

    fn asked(rule: &str, client: &str) -> KeyedCharge {
        let rules = Rules::default();
        let rule = rule.parse().unwrap();
        let local = || Ok(vec![RuleId(0)]);
        let wanted = ("rule", &rule, 1, Consistency::Exact);
        let id = rules.prepare(None, &[wanted], local).unwrap()[0];
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
    fn what_comes_back_is_as_it_was_and_goes_first() {
        let ledger = Ledger::new(4, 2);
        let add = |client: &str| {
            let charge = asked("fixed-window 9/1h", client);
            ledger.add(&charge, Nanos::ZERO, Nanos::ZERO)
        };
        assert!(add("a") && add("a") && add("b"));
        assert!(ledger.drain(1).is_empty(), "another group has nothing");
        let drained = ledger.drain(0);
        assert_eq!(drained.len(), 2);
        assert!(
            add("b") && add("c") && !add("d"),
            "entries under way take room"
        );
        let mut other = ledger.drain(0);
        let (client, entry) = other.pop().unwrap();
        assert_eq!(
            (client.key[0], other.len()),
            (b'c', 0),
            "b has a lower number under way"
        );
        ledger.put_back(&client, Some(entry));
        drained
            .into_iter()
            .for_each(|(client, entry)| ledger.put_back(&client, Some(entry)));
        assert_eq!(
            (ledger.len(), add("d")),
            (4, false),
            "what came back takes room"
        );
        let summed = |drained: Vec<(ClientId, Entry)>| {
            let mut all: Vec<_> = drained
                .into_iter()
                .map(|(client, entry)| {
                    ledger.put_back(&client, None);
                    (
                        client.key[0] as char,
                        entry.number,
                        entry.pending.sum.as_f64(),
                    )
                })
                .collect();
            all.sort_by_key(|(client, ..)| *client);
            all
        };
        assert_eq!(
            summed(ledger.drain(0)),
            [('a', 1, 2.0), ('b', 2, 1.0), ('c', 4, 1.0)]
        );
        assert_eq!(summed(ledger.drain(0)), [('b', 3, 1.0)]);
        assert_eq!(ledger.len(), 0);
    }
}
