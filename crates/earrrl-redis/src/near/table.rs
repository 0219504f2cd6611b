//! The clients of one rule that a node decides by itself: a bounded table, sharded by client.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use earrrl::Nanos;
use earrrl::table::KeyHasher;
use hashbrown::HashTable;

use super::client::{Client, Due};

pub(crate) const SHARDS: usize = 64;
/// Clients that are looked at for one that may go.
const LOOKS: usize = 16;

#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: KeyHasher,
    /// Clients of a shard.
    room: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    /// Their hashes and places in `entries`: who is found here is not looked at before it is needed.
    places: HashTable<(u64, u32)>,
    entries: Vec<Entry>,
    /// Those to be exchanged next.
    soon: Vec<u32>,
    /// Those to be exchanged sometime, and since when; some of them were meanwhile.
    waiting: VecDeque<(u32, Nanos)>,
    /// Where the next that may go is looked for.
    hand: usize,
}

/// What a decision reads comes first, in as few of the processor's lines as may be.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    client: Client,
    hash: u64,
    key: Box<[u8]>,
}

/// Where a client is. Clients are told apart by the 64 bits of a keyed hash, as in the engine in memory: their
/// keys are farther away, and only needed for Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    hash: u64,
}

/// A client that is to be exchanged.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) group: usize,
    pub(crate) key: Box<[u8]>,
}

impl Table {
    pub(crate) fn new(capacity: usize, hasher: KeyHasher) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher,
            room: capacity.div_ceil(SHARDS),
        }
    }

    pub(crate) fn place(&self, key: &[u8]) -> Place {
        let hash = self.hasher.hash_bytes(key).bits();
        // The table goes by the highest and the lowest bits.
        Place { shard: (hash >> 32) as usize % SHARDS, hash }
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
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
        let at = match shard.find(place) {
            Some(at) => at,
            None => shard.insert(place, key, self.room)?,
        };
        Some(shard.change(at, change))
    }

    /// Takes those from the lists that are to be exchanged now: next, or since `by` at the latest; and of the others
    /// as many as `more` of each shard.
    pub(crate) fn take_due(&self, by: Nanos, more: usize) -> Vec<Listed> {
        let mut taken = Vec::new();
        for shard in 0..SHARDS {
            self.lock(shard).take_due(by, more, &mut taken);
        }
        taken
    }

    /// Every client.
    pub(crate) fn each(&self, mut see: impl FnMut(&mut Client)) {
        for shard in 0..SHARDS {
            self.lock(shard).entries.iter_mut().for_each(|entry| see(&mut entry.client));
        }
    }

    /// How many clients Redis lacks something of.
    pub(crate) fn owed(&self) -> usize {
        let mut owed = 0;
        self.each(|client| owed += usize::from(client.owes()));
        owed
    }
}

impl Shard {
    fn find(&self, place: Place) -> Option<usize> {
        let found = self.places.find(place.hash, |(hash, _)| *hash == place.hash);
        found.map(|(_, at)| *at as usize)
    }

    pub(crate) fn with<R>(
        &mut self,
        place: Place,
        change: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        self.find(place).map(|at| self.change(at, change))
    }

    /// Does something with a client, and puts it on the list where that asks for it.
    fn change<R>(&mut self, at: usize, change: impl FnOnce(&mut Client) -> R) -> R {
        let client = &mut self.entries[at].client;
        let result = change(client);
        if client.due > client.listed {
            client.listed = client.due;
            match client.due {
                Due::Soon => self.soon.push(at as u32),
                _ => self.waiting.push_back((at as u32, client.since)),
            }
        }
        result
    }

    fn take_due(&mut self, by: Nanos, mut more: usize, taken: &mut Vec<Listed>) {
        let mut take = |entry: &mut Entry| {
            (entry.client.due, entry.client.listed) = (Due::Never, Due::Never);
            taken.push(Listed { group: entry.client.group, key: entry.key.clone() });
        };
        for at in self.soon.drain(..) {
            take(&mut self.entries[at as usize]);
        }
        while let Some(&(at, since)) = self.waiting.front() {
            let entry = &mut self.entries[at as usize];
            let waits = entry.client.listed != Due::Never && entry.client.since == since;
            if waits && since > by {
                if more == 0 {
                    break;
                }
                more -= 1;
            }
            self.waiting.pop_front();
            if waits {
                take(entry);
            }
        }
    }

    /// Makes room for a client, if there is any.
    fn insert(&mut self, place: Place, key: &[u8], room: usize) -> Option<usize> {
        let entry = Entry { hash: place.hash, key: key.into(), client: Client::default() };
        let at = if self.entries.len() < room {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.one_that_may_go()?;
            let gone = std::mem::replace(&mut self.entries[at], entry);
            let same = |(hash, _): &(u64, u32)| *hash == gone.hash;
            if let Ok(found) = self.places.find_entry(gone.hash, same) {
                found.remove();
            }
            at
        };
        self.places.insert_unique(place.hash, (place.hash, at as u32), |(hash, _)| *hash);
        Some(at)
    }

    fn one_that_may_go(&mut self) -> Option<usize> {
        for _ in 0..LOOKS.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len();
            if self.entries[self.hand].client.is_settled() {
                return Some(self.hand);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
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
        table.each(|client| client.forget());
        for number in 0..1000 {
            let key = format!("n{number}");
            assert_eq!(table.with_new(key.as_bytes(), |client| client.owes()), Some(false));
            assert!(table.with(key.as_bytes(), |_| ()).is_some(), "{key} is found again");
        }
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
            let (share, others, lacks) = (10.0 * 100_000.0, 0, 0.0);
            let (renew, until) = (Nanos::from_secs(10), Nanos::from_secs(20));
            let told = Told { state: None, share, renew, until, fresh: until, others, lacks };
            table.with_new(key.as_bytes(), |client| {
                let call = client.call(rule.limit(), Cost::ZERO, time(1), || 1);
                client.adopt(rule.limit(), &call, told, time(1))
            });
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
}
