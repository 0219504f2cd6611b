//! The live reservations of each client of a store: how many there are, the estimates that they have charged,
//! and if the state that they charged is still there.
//!
//! A commit corrects the state that its reservation has charged. If the client was reset or evicted since, the
//! estimate went with that state, and a correction would give back what later requests have spent. So a store
//! notes here that a client is forgotten, and the commits of its live reservations give nothing back.
//!
//! A commit to a bucket must also know for how long the bucket could have been full, since refill is lost
//! meanwhile. What other reservations of the bucket give back makes it full earlier. So a reservation takes the
//! level after its charge plus the estimates of all others that are live then: they can give back no more.
//!
//! Other processes may use the same file, and a later one finds the reservations of this one there. They know
//! nothing of this process's list, so a file also counts its changes: forgotten clients, and refunds to buckets. A
//! change by another process, or before a restart, may be that of any client of the same shard of the table; commits
//! of reservations that were made before give nothing back.
//!
//! A client is known by its fingerprint, which is all that a table has of an evicted one. Two clients with one
//! fingerprint are taken for one here, so that a commit may give back less.

use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::boxed::Box;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock};

use super::identity::{Identity, random_id};
use crate::cost::Cost;
use crate::lock::lock;

/// The number of shards, a power of two.
const SHARDS: usize = 16;

/// The live reservations of all clients of a store.
#[derive(Debug)]
pub(crate) struct LiveHolds {
    /// The id of the store, by which reservations of its clients know it from a later one of the rule.
    store: u64,
    /// The changes that this process has counted in its file, in each shard of the table; `None` without a file.
    own: Option<Box<[AtomicU64; SHARDS]>>,
    /// Allocated for the first reservation, since most stores have none.
    shards: OnceLock<Box<[Mutex<Clients>; SHARDS]>>,
    /// The number of live reservations, so that an eviction takes no lock while there are none.
    live: AtomicUsize,
}

/// The clients with live reservations, by their fingerprints.
type Clients = HashMap<u64, Client, BuildHasherDefault<Identity>>;

/// The live reservations of one client.
#[derive(Debug, Default)]
struct Client {
    live: usize,
    /// The number of times that the client's state was forgotten.
    forgotten: u32,
    /// The estimates of the live reservations that were charged to the present state.
    estimates: Cost,
    /// All estimates that were ever added to these.
    reserved: Cost,
    /// The costs of refunds.
    refunded: Cost,
}

/// A reservation among those of its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveHold {
    /// The id of the store.
    pub(crate) store: u64,
    /// The changes in the file when the reservation was made: all of them, and those of other processes.
    pub(crate) changes: u64,
    foreign: u64,
    /// True if nothing can be given back, since another process may give back to the same clients.
    pub(crate) is_foreign: bool,
    forgotten: u32,
    /// The estimates of other reservations that can be given back after this one was charged.
    pub(crate) others: Cost,
    reserved: Cost,
    refunded: Cost,
}

impl Default for LiveHolds {
    /// Returns the reservations of a store that no other process has.
    fn default() -> Self {
        Self {
            store: random_id(),
            own: None,
            shards: OnceLock::new(),
            live: AtomicUsize::new(0),
        }
    }
}

impl LiveHolds {
    /// Returns the reservations of a store in the file with this id.
    #[cfg(target_os = "linux")]
    pub(crate) fn in_file(id: u64) -> Self {
        Self {
            store: id,
            own: Some(Box::default()),
            ..Self::default()
        }
    }

    /// Counts a change in the file by this process. Returns false if the store is in no file.
    #[inline]
    pub(crate) fn change(&self, client: u64) -> bool {
        let Some(own) = &self.own else { return false };
        own[shard_of(client)].fetch_add(1, Relaxed);
        true
    }

    /// Returns the changes in the file by other processes, of all `changes`.
    fn foreign(&self, client: u64, changes: u64) -> u64 {
        let own = self.own.as_ref();
        own.map_or(0, |own| {
            changes.wrapping_sub(own[shard_of(client)].load(Relaxed))
        })
    }

    /// Counts a reservation, unless its client has `most` live ones. To be called before its estimate is charged:
    /// a state that is forgotten meanwhile then counts as forgotten after it.
    pub(crate) fn reserve(
        &self,
        client: u64,
        estimate: Cost,
        most: usize,
        changes: u64,
    ) -> Option<LiveHold> {
        // Before the lock is taken: an eviction that follows the charge must not find zero.
        self.live.fetch_add(1, Relaxed);
        let mut clients = self.lock(client);
        let known = clients.entry(client).or_default();
        if known.live >= most {
            self.live.fetch_sub(1, Relaxed);
            return None;
        }
        let others = known.estimates;
        known.live += 1;
        known.estimates = known.estimates + estimate;
        known.reserved = known.reserved + estimate;
        Some(LiveHold {
            store: self.store,
            changes,
            foreign: self.foreign(client, changes),
            is_foreign: false,
            forgotten: known.forgotten,
            others,
            reserved: known.reserved,
            refunded: known.refunded,
        })
    }

    /// Adds the estimates of the reservations that were counted since this one. To be called after its estimate
    /// was charged to a bucket: one of these may have been charged before.
    pub(crate) fn charged(&self, client: u64, hold: &mut LiveHold) {
        if let Some(known) = self.lock(client).get(&client) {
            let since = known.reserved.saturating_sub(hold.reserved);
            hold.others = hold.others + since;
        }
    }

    /// Counts a reservation of an earlier process that the file of reservations has kept.
    #[cfg(target_os = "linux")]
    pub(crate) fn adopt(
        &self,
        client: u64,
        hold: LiveHold,
        estimate: Cost,
        changes: u64,
    ) -> LiveHold {
        let is_there = hold.store == self.store && hold.changes == changes && !hold.is_foreign;
        let counted = self.reserve(client, estimate, usize::MAX, changes);
        counted.map_or(hold, |counted| LiveHold {
            others: hold.others,
            is_foreign: !is_there,
            ..counted
        })
    }

    /// Returns the refunds since a reservation was charged; `None` if the state that it charged was forgotten, or the
    /// rule has another store by now.
    pub(crate) fn refunded_since(
        &self,
        client: u64,
        hold: &LiveHold,
        changes: u64,
    ) -> Option<Cost> {
        let is_changed = self.foreign(client, changes) != hold.foreign;
        if hold.store != self.store || hold.is_foreign || is_changed {
            return None;
        }
        let clients = self.lock(client);
        let known = clients
            .get(&client)
            .filter(|known| known.forgotten == hold.forgotten)?;
        Some(known.refunded.saturating_sub(hold.refunded))
    }

    /// Counts the end of a reservation. To be called after its correction: a reservation that is charged
    /// meanwhile must count it among the others.
    pub(crate) fn finish(&self, client: u64, hold: &LiveHold, estimate: Cost) {
        if hold.store != self.store {
            return;
        }
        let mut clients = self.lock(client);
        let Some(known) = clients.get_mut(&client) else {
            return;
        };
        if known.forgotten == hold.forgotten {
            known.estimates = known.estimates.saturating_sub(estimate);
        }
        known.live -= 1;
        if known.live == 0 {
            clients.remove(&client);
        }
        self.live.fetch_sub(1, Relaxed);
    }

    /// Notes a refund, which makes a bucket full earlier as a commit does. To be called before the refund.
    pub(crate) fn refunded(&self, client: u64, cost: Cost) {
        if self.has_any()
            && let Some(known) = self.lock(client).get_mut(&client)
        {
            known.refunded = known.refunded + cost;
        }
    }

    /// Notes that the state of a client is forgotten.
    pub(crate) fn forget(&self, client: u64) {
        if self.has_any()
            && let Some(known) = self.lock(client).get_mut(&client)
        {
            known.forget();
        }
    }

    /// Notes that the states of all clients are forgotten.
    pub(crate) fn forget_all(&self) {
        for shard in self.shards.get().into_iter().flat_map(|all| all.iter()) {
            lock(shard).values_mut().for_each(Client::forget);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let shards = self.shards.get().into_iter().flat_map(|all| all.iter());
        let clients: usize = shards.map(|shard| lock(shard).capacity()).sum();
        clients * size_of::<(u64, Client)>()
    }

    #[inline]
    fn has_any(&self) -> bool {
        self.live.load(Relaxed) > 0
    }

    /// Locks the shard of a fingerprint.
    fn lock(&self, client: u64) -> MutexGuard<'_, Clients> {
        let shards = self.shards.get_or_init(Box::default);
        lock(&shards[shard_of(client)])
    }
}

impl Client {
    fn forget(&mut self) {
        self.forgotten = self.forgotten.wrapping_add(1);
        self.estimates = Cost::ZERO;
    }
}

impl LiveHold {
    /// Returns a reservation as it was stored, which is counted nowhere yet.
    #[cfg(target_os = "linux")]
    pub(crate) fn stored(store: u64, changes: u64, others: Cost, is_foreign: bool) -> Self {
        Self {
            store,
            changes,
            foreign: 0,
            is_foreign,
            forgotten: 0,
            others,
            reserved: Cost::ZERO,
            refunded: Cost::ZERO,
        }
    }
}

/// Returns the shard of a fingerprint, the lowest bit of which is always set. A table in a file has the same ones.
fn shard_of(client: u64) -> usize {
    (client >> 1) as usize % SHARDS
}
