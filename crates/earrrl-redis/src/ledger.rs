//! The ledger: what this node counted by itself, or charged without using it, and Redis lacks.
//!
//! ```text
//! decisions of an outage ──────────────┐
//! attempts under a kept denial ────────┤                      ┌ number 7 ┐  one add.lua
//! charges that Redis must take back ───┼→ a record's entry ─→ │ and all  │ ────────────→ the record
//! units that were not spent ───────────┘                      └ changes  ┘
//! ```
//!
//! An entry collects the changes of a record under one rule until it is sent. From then on it is not modified, and
//! Redis applies it once, by its number, however often it is sent. A record has only one entry under way at a time,
//! since Redis accepts them in the order of their numbers.

use std::collections::{HashMap, VecDeque};
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

/// A client's record in Redis, which several rules of one store may share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    /// The group of Cluster slots, with a circuit breaker of its own, to which the record belongs.
    pub(crate) group: usize,
}

impl Record {
    pub(crate) fn of(charge: &KeyedCharge) -> Self {
        Self {
            key: charge.key.clone(),
            group: charge.group,
        }
    }
}

/// Changes of a client's record that Redis lacks.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The number under which Redis applies the entry. Later entries of the record have higher ones.
    pub(crate) number: u64,
    /// True if the entry may have arrived. It is not modified any more.
    is_sent: bool,
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

/// The entries of a record.
#[derive(Debug, Default)]
struct Account {
    /// The entries to send, in the order of their numbers. The first one may have been sent before.
    waiting: VecDeque<Entry>,
    /// The number of the entry that is under way.
    under_way: Option<u64>,
}

impl Account {
    /// Takes the entry to send, if its number is at most `last`. Returns `None` while one is under way.
    fn take(&mut self, last: u64) -> Option<Entry> {
        if self.under_way.is_some() || self.waiting.front()?.number > last {
            return None;
        }
        let mut entry = self.waiting.pop_front()?;
        entry.is_sent = true;
        self.under_way = Some(entry.number);
        Some(entry)
    }

    /// Returns the place of the entry that collects changes under a rule.
    fn open(&self, rule: RuleId) -> Option<usize> {
        let is_open = |entry: &Entry| !entry.is_sent && entry.rule.id == rule;
        self.waiting.iter().position(is_open)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_none()
    }
}

type Accounts = HashMap<Record, Account>;

/// The pending changes of all records, by their groups.
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

    fn lock(&self, record: &Record) -> MutexGuard<'_, Accounts> {
        lock(&self.groups[record.group])
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

    /// Changes the open entry of a charge's rule, or adds one. Returns `None` if the ledger is full.
    fn change<R>(
        &self,
        charge: &KeyedCharge,
        change: impl FnOnce(&mut Entry) -> Option<R>,
    ) -> Option<R> {
        let record = Record::of(charge);
        let mut accounts = self.lock(&record);
        let account = accounts.get(&record);
        let open = account.and_then(|account| account.open(charge.rule.id));
        if open.is_none() && self.len() >= self.capacity {
            return None;
        }
        let account = accounts.entry(record).or_default();
        let place = open.unwrap_or_else(|| {
            self.len.fetch_add(1, Ordering::AcqRel);
            account.waiting.push_back(Entry {
                number: self.last_number.fetch_add(1, Ordering::Relaxed) + 1,
                is_sent: false,
                rule: charge.rule.clone(),
                latest: Nanos::ZERO,
                pending: Pending::default(),
                take_backs: Vec::new(),
                given: None,
            });
            account.waiting.len() - 1
        });
        change(&mut account.waiting[place])
    }

    /// Takes back a charge that was not sent yet. Returns true if it was in the ledger. If its time is `None`, the
    /// latest charge is taken back.
    pub(crate) fn take_back(
        &self,
        charge: &KeyedCharge,
        charged_at: Option<Nanos>,
        now: Nanos,
    ) -> bool {
        let record = Record::of(charge);
        let mut accounts = self.lock(&record);
        let Some(account) = accounts.get_mut(&record) else {
            return false;
        };
        let Some(place) = account.open(charge.rule.id) else {
            return false;
        };
        let entry = &mut account.waiting[place];
        let limit = entry.rule.rule.limit();
        let is_here = entry.pending.take_back(limit, charge.cost, charged_at, now);
        if entry.pending.is_empty() && entry.take_backs.is_empty() {
            account.waiting.remove(place);
            self.left(&mut accounts, &record, 1);
        }
        is_here
    }

    /// Returns true if the client has charges that Redis lacks.
    pub(crate) fn has(&self, charge: &KeyedCharge) -> bool {
        if self.len() == 0 {
            return false;
        }
        let record = Record::of(charge);
        self.lock(&record).contains_key(&record)
    }

    /// Returns true if Redis may still lack the changes of an entry.
    pub(crate) fn lacks(&self, record: &Record, number: u64) -> bool {
        self.lock(record).get(record).is_some_and(|account| {
            let waiting = account.waiting.iter().map(|entry| entry.number);
            waiting
                .chain(account.under_way)
                .any(|other| other == number)
        })
    }

    /// Waits until an entry is delivered or put back. It may be the entry of another record.
    pub(crate) fn returned(&self) -> Notified<'_> {
        self.returned.notified()
    }

    /// Drops the entries of a record that was reset.
    pub(crate) fn forget(&self, charge: &KeyedCharge) {
        let record = Record::of(charge);
        let mut accounts = self.lock(&record);
        let Some(account) = accounts.get_mut(&record) else {
            return;
        };
        let dropped = std::mem::take(&mut account.waiting);
        self.left(&mut accounts, &record, dropped.len());
    }

    /// Notes that entries of a record have left the ledger.
    fn left(&self, accounts: &mut Accounts, record: &Record, entries: usize) {
        if accounts.get(record).is_some_and(Account::is_empty) {
            accounts.remove(record);
        }
        self.len.fetch_sub(entries, Ordering::AcqRel);
    }

    /// Returns the number of the newest entry.
    pub(crate) fn last_number(&self) -> u64 {
        self.last_number.load(Ordering::Relaxed)
    }

    /// Takes the next entry of a record, if its number is at most `last`. The caller must report it with
    /// [`Ledger::put_back`]; until then no other entry of the record is returned.
    pub(crate) fn drain_record(&self, record: &Record, last: u64) -> Option<Entry> {
        self.lock(record).get_mut(record)?.take(last)
    }

    /// Takes the next entries of at most `most` records of a breaker's group, as [`Ledger::drain_record`] does.
    pub(crate) fn drain(&self, group: usize, last: u64, most: usize) -> Vec<(Record, Entry)> {
        let mut accounts = lock(&self.groups[group]);
        let each = accounts.iter_mut();
        each.filter_map(|(record, account)| Some((record.clone(), account.take(last)?)))
            .take(most)
            .collect()
    }

    /// Reports that an entry is delivered or dropped, or returns one that may not have arrived, so that it is sent
    /// again.
    pub(crate) fn put_back(&self, record: &Record, retry: Option<Entry>) {
        let mut accounts = self.lock(record);
        let gone = usize::from(retry.is_none());
        if let Some(account) = accounts.get_mut(record) {
            account.under_way = None;
            if let Some(entry) = retry {
                account.waiting.push_front(entry);
            }
        }
        self.left(&mut accounts, record, gone);
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
        KeyedCharge {
            rule,
            client: Vec::new(),
            cost: Cost::ONE,
            place: 0,
            key: client.into(),
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
        assert!(
            ledger.drain(1, u64::MAX, 9).is_empty(),
            "another group has nothing"
        );
        let drained = ledger.drain(0, u64::MAX, 9);
        assert_eq!(drained.len(), 2);
        assert!(
            add("b") && add("c") && !add("d"),
            "entries under way take room"
        );
        let mut other = ledger.drain(0, u64::MAX, 9);
        let (record, entry) = other.pop().unwrap();
        assert_eq!(
            (record.key[0], other.len()),
            (b'c', 0),
            "b has a lower number under way"
        );
        ledger.put_back(&record, Some(entry));
        drained
            .into_iter()
            .for_each(|(record, entry)| ledger.put_back(&record, Some(entry)));
        assert_eq!(
            (ledger.len(), add("d")),
            (4, false),
            "what came back takes room"
        );
        let summed = |drained: Vec<(Record, Entry)>| {
            let mut all: Vec<_> = drained
                .into_iter()
                .map(|(record, entry)| {
                    ledger.put_back(&record, None);
                    (
                        record.key[0] as char,
                        entry.number,
                        entry.pending.sum.as_f64(),
                    )
                })
                .collect();
            all.sort_by_key(|(client, ..)| *client);
            all
        };
        assert_eq!(
            summed(ledger.drain(0, u64::MAX, 9)),
            [('a', 1, 2.0), ('b', 2, 1.0), ('c', 4, 1.0)]
        );
        assert_eq!(summed(ledger.drain(0, u64::MAX, 9)), [('b', 3, 1.0)]);
        assert_eq!(ledger.len(), 0);
    }

    /// Limits in one store have the same record for a client, and Redis drops a number below the last one of a record.
    #[test]
    fn rules_that_share_a_record_have_one_entry_under_way() {
        let ledger = Ledger::new(4, 1);
        for (id, text) in ["fixed-window 9/1h", "fixed-window 5/1h"]
            .iter()
            .enumerate()
        {
            let mut charge = asked(text, "a");
            let mut rule = PreparedRule::clone(&charge.rule);
            rule.id = RuleId(id as u32);
            charge.rule = Arc::new(rule);
            assert!(ledger.add(&charge, Nanos::ZERO, Nanos::ZERO));
        }
        for expected in ["fixed-window 9/1h", "fixed-window 5/1h"] {
            let mut drained = ledger.drain(0, u64::MAX, 9);
            let (record, entry) = drained.pop().unwrap();
            assert_eq!(
                (drained.len(), entry.rule.rule.to_string()),
                (0, expected.to_owned())
            );
            ledger.put_back(&record, Some(entry));
            let (record, entry) = ledger.drain(0, u64::MAX, 9).pop().unwrap();
            assert_eq!(entry.rule.rule.to_string(), expected, "a retry goes first");
            ledger.put_back(&record, None);
        }
        assert_eq!(ledger.len(), 0);
    }
}
