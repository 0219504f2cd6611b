//! A bounded, sharded map for states that do not fit the table's words.
//!
//! When it is full, the map evicts one of the clients that have been idle for longest, clients within
//! their limit before clients over it; see `shard.rs`.
//!
//! Several rules can share a map, and a rule's limit may change. So the map keeps each client's limit with the
//! state, which may be of any algorithm. When the client's next request is under another limit, the state is carried
//! over, or dropped if it means nothing there. So a rule with thousands of limits takes memory only for the clients that
//! come.

mod shard;
#[cfg(test)]
mod tests;
mod view;

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use shard::OVERHEAD;
pub(crate) use shard::{Passed, Shard};
pub(crate) use view::{Bounds, View};

use super::live::LiveHolds;
use super::table::KeyHash;
use crate::lock::lock;

/// The number of shards of a map that is not large. A map for fewer clients has one shard a client, since a
/// server may have thousands of maps for one client each.
const MIN_SHARDS: usize = 64;
/// The number of clients in a shard of a large map. A map that grows moves all of its clients while it is
/// locked, and with this many no request waits for a millisecond.
const CLIENTS_PER_SHARD: usize = 8192;
/// The least number of clients with the largest states that fit into a shard, unless the whole map is smaller
/// than that. Clients are spread over the shards by their hashes, so with less room, a shard could be full
/// while most of the map is empty.
const BUSY_PER_SHARD: usize = 12;

/// A map from clients to states that is bounded in bytes and in clients.
pub(crate) struct States {
    /// The shards, each allocated when it is first locked.
    shards: Box<[OnceLock<Box<Mutex<Shard>>>]>,
    /// The most clients and the most bytes of one shard.
    shard_clients: AtomicUsize,
    shard_bytes: AtomicUsize,
    /// The live reservations of the clients, which must know of an eviction.
    live: Arc<LiveHolds>,
}

impl States {
    /// Returns an empty map for `capacity` clients that take at most `max_bytes`.
    fn with_shards(shards: usize, capacity: usize, max_bytes: usize) -> Self {
        Self {
            shards: (0..shards).map(|_| OnceLock::new()).collect(),
            shard_clients: AtomicUsize::new(max_clients_per_shard(capacity, shards)),
            shard_bytes: AtomicUsize::new(max_bytes / shards),
            live: Arc::default(),
        }
    }

    /// Returns the live reservations of the clients.
    pub(crate) fn live(&self) -> &Arc<LiveHolds> {
        &self.live
    }

    /// Returns the bytes that `capacity` clients take, at `state` bytes a state; `None` on overflow.
    pub(crate) fn bytes_of(capacity: usize, state: usize) -> Option<usize> {
        bytes_in(shards(capacity), capacity, state)
    }

    /// Returns the index of a client's shard.
    pub(crate) fn shard_of(&self, key: KeyHash) -> usize {
        // The topmost bits would be a bad choice: the shard's own index uses them.
        (key.bits() >> 40) as usize % self.shards.len()
    }

    /// Locks the shard at an index.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        let bounds = || {
            (
                self.shard_clients.load(Relaxed),
                self.shard_bytes.load(Relaxed),
            )
        };
        let new = |(clients, bytes)| {
            let live = Arc::clone(&self.live);
            Box::new(Mutex::new(Shard::new(clients, bytes, live)))
        };
        let shard = self.shards[shard % self.shards.len()].get_or_init(|| new(bounds()));
        lock(shard)
    }

    /// Locks a client's shard.
    pub(crate) fn lock_of(&self, key: KeyHash) -> MutexGuard<'_, Shard> {
        self.lock(self.shard_of(key))
    }

    /// Locks every allocated shard, one after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        let allocated = self.shards.iter().filter_map(OnceLock::get);
        allocated.map(|shard| lock(shard))
    }
}

/// Returns the number of shards of a map for `capacity` clients.
fn shards(capacity: usize) -> usize {
    let least = capacity.min(MIN_SHARDS).next_power_of_two();
    capacity
        .div_ceil(CLIENTS_PER_SHARD)
        .next_power_of_two()
        .max(least)
}

/// Returns the bytes that `capacity` clients take in this many shards, at `state` bytes a state; `None` on
/// overflow.
fn bytes_in(shards: usize, capacity: usize, state: usize) -> Option<usize> {
    let clients = max_clients_per_shard(capacity, shards).checked_mul(shards)?;
    clients.checked_mul(state.checked_add(OVERHEAD)?)
}

/// Returns the largest number of shards into which a map can be divided that has room for `busy` clients with
/// the largest states.
fn max_shards(busy: usize) -> usize {
    1 << (busy / BUSY_PER_SHARD).max(1).ilog2()
}

/// Returns the mean number of clients in a shard and six standard deviations.
fn max_clients_per_shard(capacity: usize, shards: usize) -> usize {
    let mean = capacity.div_ceil(shards);
    mean.saturating_add(6 * mean.isqrt()).saturating_add(6)
}
