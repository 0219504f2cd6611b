//! The map of larger states, as one rule sees it.

use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::{MIN_SHARDS, OVERHEAD, States, bytes_in, max_clients_per_shard, max_shards, shards};
use crate::algorithm::Limit;
use crate::clock::Nanos;
use crate::store::table::half_of_what_is_left;

/// The map of a rule's larger states, which the rule may share with other rules, and the rule's limit.
pub(crate) struct View {
    pub(crate) states: Arc<States>,
    pub(crate) limit: Arc<Limit>,
}

/// The bounds of a map: those of its rule, or of the rule that needs the most if several share the map.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    capacity: usize,
    state_bytes: usize,
    max_bytes: Option<usize>,
}

impl Deref for View {
    type Target = States;

    fn deref(&self) -> &States {
        &self.states
    }
}

impl Bounds {
    /// Returns the bounds of a map for `capacity` clients of one rule.
    pub(crate) fn new(limit: &Limit, capacity: usize, max_bytes: Option<usize>) -> Self {
        Self {
            capacity,
            state_bytes: limit.state_bytes(),
            max_bytes,
        }
    }

    /// Returns the bounds of a map that a rule with each of these bounds can use.
    pub(crate) fn joined(self, other: Self) -> Self {
        let most = |(one, other): (usize, usize)| one.max(other);
        Self {
            capacity: self.capacity.max(other.capacity),
            state_bytes: self.state_bytes.max(other.state_bytes),
            max_bytes: self.max_bytes.zip(other.max_bytes).map(most),
        }
    }

    /// Returns the largest number of shards for which a map of this many bytes has enough room in each.
    fn max_shards(&self, bytes: usize) -> usize {
        max_shards(bytes / self.state_bytes.saturating_add(OVERHEAD))
    }

    /// Returns the most bytes that a map with this many shards may take. That is the rule's `max_bytes`, or else
    /// the memory that as many busy clients as the capacity need in these shards. That memory is at most
    /// half of what is available now, or `before`, the most bytes that the map could take until now, if that is more.
    fn bytes(&self, shards: usize, before: usize) -> usize {
        self.max_bytes.unwrap_or_else(|| {
            let busy = bytes_in(shards, self.capacity, self.state_bytes).unwrap_or(usize::MAX);
            if busy <= before {
                busy
            } else {
                busy.min(half_of_what_is_left().max(before))
            }
        })
    }
}

impl States {
    /// Returns an empty map of one rule. Its number of shards stays the same when its bounds change, so after a
    /// change to far fewer bytes a shard may be full while others have room.
    pub(crate) fn within(bounds: &Bounds) -> Self {
        Self::with_at_most(shards(bounds.capacity), bounds)
    }

    /// Returns an empty map that several rules share. It has many shards even if it is small, since its bounds
    /// may grow.
    pub(crate) fn shared(bounds: &Bounds) -> Self {
        Self::with_at_most(shards(bounds.capacity.max(MIN_SHARDS)), bounds)
    }

    fn with_at_most(shards: usize, bounds: &Bounds) -> Self {
        let bytes = bounds.bytes(shards, 0);
        let shards = shards.min(bounds.max_shards(bytes));
        Self::with_shards(shards, bounds.capacity, bytes)
    }

    /// Sets the bounds of the map, and evicts clients while it is over them. The map may take as much memory as
    /// before if its rules still need it, even if that is more than half of the memory that is available now.
    pub(crate) fn bound(&self, bounds: &Bounds, now: Nanos) {
        let shards = self.shards.len();
        let most_bytes = self.shard_bytes.load(Relaxed) * shards;
        let clients = max_clients_per_shard(bounds.capacity, shards);
        let bytes = bounds.bytes(shards, most_bytes) / shards;
        self.shard_clients.store(clients, Relaxed);
        self.shard_bytes.store(bytes, Relaxed);
        self.each()
            .for_each(|mut shard| shard.bound(clients, bytes, now));
    }
}
