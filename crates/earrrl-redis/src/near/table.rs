//! The clients of one rule that a node decides by itself: a bounded table, sharded by client.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use earrrl::Nanos;
use earrrl::table::KeyHasher;

use super::client::{Client, Loan};
use super::lines::Lines;
use super::shard::Shard;
pub(crate) use super::shard::{Listed, NearRule, Place};

pub(crate) const SHARDS: usize = 64;
/// Lines that each shard begins with.
const FIRST: usize = 16;

#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: KeyHasher,
    /// Clients of a shard.
    room: usize,
    /// The lines that the first shard to grow has moved to, and all others will. Memory for all of them at once can
    /// be huge pages, which save a second miss.
    newest: Mutex<Option<Arc<Lines>>>,
}

impl Table {
    pub(crate) fn new(capacity: usize, hasher: KeyHasher) -> Self {
        Self {
            shards: (0..SHARDS).map(|number| Mutex::new(Shard::new(number))).collect(),
            hasher,
            room: capacity.div_ceil(SHARDS),
            newest: Mutex::default(),
        }
    }

    pub(crate) fn place(&self, key: &[u8]) -> Place {
        let hash = self.hasher.hash_bytes(key).bits();
        // In its shard a client is found by the highest bits, and no hash is 0.
        Place { shard: (hash >> 1) as usize % SHARDS, hash: hash | 1 }
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a client that is known decide: by what it lends, or else itself.
    #[inline]
    pub(crate) fn decide<R>(
        &self,
        key: &[u8],
        lent: impl FnOnce(&NearRule, &mut Loan, usize) -> Option<R>,
        itself: impl FnOnce(&NearRule, &mut Client) -> Option<R>,
    ) -> Option<R> {
        let place = self.place(key);
        self.lock(place.shard).decide(place, lent, itself)
    }

    /// Goes by a rule from now on, or decides no more; `change` makes every client's history one of that rule.
    pub(crate) fn set_rule(&self, rule: Option<NearRule>, mut change: impl FnMut(&mut Client)) {
        let rule = rule.map(Arc::new);
        for shard in 0..SHARDS {
            self.lock(shard).set_rule(rule.clone(), &mut change);
        }
    }

    /// Forgets every client, and decides no more until there is a rule.
    pub(crate) fn clear(&self) {
        // Lines that are made from here on have nobody of before.
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = None;
        (0..SHARDS).for_each(|shard| self.lock(shard).clear());
    }

    /// How many decisions were made at once.
    pub(crate) fn decided(&self) -> u64 {
        (0..SHARDS).map(|shard| self.lock(shard).decided).sum()
    }

    /// Does something with a client that is known.
    pub(crate) fn with<R>(&self, key: &[u8], change: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let place = self.place(key);
        self.lock(place.shard).with(place, change)
    }

    /// Does something with a client, known or not, unless there is no room for it.
    pub(crate) fn with_new<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        let place = self.place(key);
        let mut shard = self.lock(place.shard);
        if !shard.has(place) {
            shard.insert(place, key, self.room, |each| self.lines(each))?;
        }
        shard.with(place, change)
    }

    /// More than so many lines for each shard; none where there is not enough memory.
    fn lines(&self, each: usize) -> Option<Arc<Lines>> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.as_ref().is_none_or(|newest| newest.each() <= each) {
            *newest = Some(Arc::new(Lines::new(SHARDS, FIRST.max(each + each / 2))?));
        }
        newest.clone()
    }

    /// Takes those from the lists that are to be exchanged now: next, or since `by` at the latest; and of each shard
    /// others, up to `many` with the latter.
    pub(crate) fn take_due(&self, by: Nanos, many: usize) -> Vec<Listed> {
        let mut taken = Vec::new();
        for shard in 0..SHARDS {
            self.lock(shard).take_due(by, many, &mut taken);
        }
        taken
    }

    /// How many clients Redis lacks something of.
    pub(crate) fn owed(&self) -> usize {
        (0..SHARDS).map(|shard| self.lock(shard).owed()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::near::client::{Basis, Time, Told};
    use earrrl::{Cost, Mode, Rule};

    fn table(room: usize) -> Table {
        Table::new(SHARDS * room, KeyHasher::with_key(&[7; 16]))
    }

    fn time(secs: u64) -> Time {
        Time { local: Nanos::from_secs(secs), offset: 0 }
    }

    #[test]
    fn only_clients_that_owe_nothing_give_way() {
        let table = table(4);
        let rule: Rule = "fixed-window 9/1h".parse().unwrap();
        let charge = |key: &str| {
            table.with_new(key.as_bytes(), |client| {
                client.decide(&rule, Cost::ONE, Mode::Check, time(1), Basis::State).is_some()
            })
        };
        let kept = (0..1000).filter(|number| charge(&format!("k{number}")) == Some(true)).count();
        let due = table.take_due(Nanos::MAX, 0).len();
        assert_eq!((kept, table.owed(), due), (256, 256, 256));
        assert_eq!(charge("another"), None, "counts are never dropped");
        let rule = NearRule { rule, lag: Duration::ZERO };
        table.set_rule(Some(rule), |client| client.forget());
        for number in 0..1000 {
            let key = format!("n{number}");
            assert_eq!(table.with_new(key.as_bytes(), |client| client.owes()), Some(false));
            assert!(table.with(key.as_bytes(), |_| ()).is_some(), "{key} is found again");
        }
    }

    /// Redis gives a client a share of ten requests, to be claimed anew after 10 s.
    fn learn(table: &Table, rule: &Rule, key: &str) {
        let (share, others, lacks) = (10.0 * 100_000.0, 0, 0.0);
        let (renew, until) = (Nanos::from_secs(10), Nanos::from_secs(20));
        let told = Told { state: None, share, renew, until, fresh: until, others, lacks };
        table.with_new(key.as_bytes(), |client| {
            let call = client.call(rule.limit(), Cost::ZERO, time(1), || 1);
            client.adopt(rule.limit(), &call, told, time(1))
        });
    }

    /// Who has spent little waits for its turn; who has spent half its share, or whose claim ends, does not.
    #[test]
    fn those_that_can_wait_are_exchanged_last() {
        let (table, rule): (_, Rule) = (table(100), "gcra 10/s burst=100".parse().unwrap());
        let decide = |key: &str, at: u64, times: usize| {
            table.with_new(key.as_bytes(), |client| {
                for _ in 0..times {
                    let decided =
                        client.decide(&rule, Cost::ONE, Mode::Check, time(at), Basis::Share);
                    assert!(decided.unwrap().allowed);
                }
            })
        };
        for key in ["little", "much", "late", "later"] {
            learn(&table, &rule, key);
        }
        let due = |by: u64, more: usize| {
            let keys = table.take_due(Nanos::from_secs(by), more);
            let mut keys: Vec<_> =
                keys.iter().map(|listed| String::from_utf8_lossy(&listed.key)).collect();
            keys.sort_unstable();
            keys.join(" ")
        };
        decide("little", 2, 1);
        decide("much", 3, 6);
        decide("late", 11, 1);
        decide("later", 4, 1);
        assert_eq!(due(1, 0), "late much");
        assert_eq!(due(2, 0), "little");
        decide("little", 5, 1);
        assert_eq!(due(1, 2), "later little", "two of each shard");
        assert_eq!(due(100, 100), "");
    }

    #[test]
    fn who_can_not_wait_counts_among_those_who_take_turns() {
        let (table, rule): (_, Rule) = (table(100), "gcra 10/s burst=100".parse().unwrap());
        let shard = |key: &String| table.place(key.as_bytes()).shard == 7;
        let keys: Vec<_> = (0..).map(|n| format!("k{n}")).filter(shard).take(5).collect();
        for (key, at) in keys.iter().zip(1..) {
            learn(&table, &rule, key);
            table.with(key.as_bytes(), |client| {
                client.decide(&rule, Cost::ONE, Mode::Check, time(at), Basis::Share)
            });
        }
        let due = |by, many| table.take_due(Nanos::from_secs(by), many).len();
        assert_eq!((due(2, 1), due(2, 1), due(2, 0), due(5, 1)), (2, 1, 0, 2));
    }
}
