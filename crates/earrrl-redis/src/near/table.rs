//! The clients of one rule that a node decides by itself: a bounded table, sharded by client.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use super::client::Client;

const SHARDS: usize = 64;
/// Clients that are looked at for one that may go.
const LOOKS: usize = 16;

#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// Clients of a shard.
    room: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    places: HashTable<u32>,
    entries: Vec<Entry>,
    /// Those of whom something was decided since the last exchange.
    listed: Vec<u32>,
    /// Where the next that may go is looked for.
    hand: usize,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    key: Box<[u8]>,
    client: Client,
}

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    hash: u64,
}

impl Table {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            room: capacity.div_ceil(SHARDS),
        }
    }

    pub(crate) fn place(&self, key: &[u8]) -> Place {
        let hash = self.hasher.hash_one(key);
        // The table goes by the highest and the lowest bits.
        Place { shard: (hash >> 32) as usize % SHARDS, hash }
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with a client that is known.
    pub(crate) fn with<R>(&self, key: &[u8], change: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let place = self.place(key);
        self.lock(place.shard).with(place, key, change)
    }

    /// Does something with a client, known or not, unless there is no room for it.
    pub(crate) fn with_new<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        let place = self.place(key);
        let mut shard = self.lock(place.shard);
        if shard.find(place, key).is_none() && !shard.insert(place, key, self.room) {
            return None;
        }
        shard.with(place, key, change)
    }

    /// The keys of those that are to be exchanged, of all shards.
    pub(crate) fn listed(&self) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        for shard in 0..SHARDS {
            let mut shard = self.lock(shard);
            let Shard { listed, entries, .. } = &mut *shard;
            for place in listed.drain(..) {
                let Entry { key, client, .. } = &mut entries[place as usize];
                (client.listed, client.touched) = (false, false);
                keys.push(key.clone());
            }
        }
        keys
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
    fn find(&self, place: Place, key: &[u8]) -> Option<usize> {
        let entries = &self.entries;
        let same = |at: &u32| {
            let entry = &entries[*at as usize];
            entry.hash == place.hash && *entry.key == *key
        };
        self.places.find(place.hash, same).map(|at| *at as usize)
    }

    pub(crate) fn with<R>(
        &mut self,
        place: Place,
        key: &[u8],
        change: impl FnOnce(&mut Client) -> R,
    ) -> Option<R> {
        let at = self.find(place, key)?;
        let client = &mut self.entries[at].client;
        let result = change(client);
        if client.touched && !client.listed {
            client.listed = true;
            self.listed.push(at as u32);
        }
        Some(result)
    }

    /// Makes room for a client, if there is any.
    fn insert(&mut self, place: Place, key: &[u8], room: usize) -> bool {
        let entry = Entry { hash: place.hash, key: key.into(), client: Client::default() };
        let at = if self.entries.len() < room {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let Some(at) = self.one_that_may_go() else { return false };
            let gone = std::mem::replace(&mut self.entries[at], entry);
            if let Ok(found) = self.places.find_entry(gone.hash, |place| *place as usize == at) {
                found.remove();
            }
            at
        };
        let entries = &self.entries;
        self.places.insert_unique(place.hash, at as u32, |at| entries[*at as usize].hash);
        true
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
    use crate::near::client::{Basis, Time};
    use earrrl::{Cost, Mode, Nanos};

    #[test]
    fn only_clients_that_owe_nothing_give_way() {
        let table = Table::new(64 * 4);
        let rule: earrrl::Rule = "fixed-window 9/1h".parse().unwrap();
        let time = Time { local: Nanos::from_secs(1), offset: 0 };
        let charge = |key: &str| {
            table.with_new(key.as_bytes(), |client| {
                client.decide(&rule, Cost::ONE, Mode::Check, time, Basis::State).is_some()
            })
        };
        let kept = (0..1000).filter(|number| charge(&format!("k{number}")) == Some(true)).count();
        assert_eq!((kept, table.owed(), table.listed().len()), (256, 256, 256));
        assert_eq!(charge("another"), None, "counts are never dropped");
        table.each(|client| client.forget());
        for number in 0..1000 {
            let key = format!("n{number}");
            assert_eq!(table.with_new(key.as_bytes(), |client| client.owes()), Some(false));
            assert!(table.with(key.as_bytes(), |_| ()).is_some(), "{key} is found again");
        }
    }
}
