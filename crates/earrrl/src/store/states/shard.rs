//! One shard of the map: clients in the order of their last visits, and the bytes that they take.
//!
//! A full shard looks at the clients that have been idle for longest until it has found a few within their limit, and
//! evicts the one with the lowest rate. A client over its limit is evicted only if no other was found. A client with
//! live reservations under concurrent is never evicted: the bound on reservations bounds these.

use core::hash::BuildHasherDefault;
use std::sync::Arc;

use lru::LruCache;
use smallvec::SmallVec;

use crate::algorithm::{Limit, Mode, State};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::store::identity::Identity;
use crate::store::live::LiveHolds;
use crate::store::table::{KeyHash, Word};

/// The bytes that a client takes beside its state: the links and the allocation of its node, and its
/// entry in the index.
pub(super) const OVERHEAD: usize = 80;
/// The number of clients within their limit among which an eviction chooses.
const CANDIDATES: usize = 5;
/// The number of clients that evictions look at, on average. Together with [`MAX_SCANNED`] it bounds the cost
/// of a flood of clients that are all over their limit.
pub(super) const SCANNED_PER_EVICTION: usize = 16;
/// The most clients that one eviction looks at: more than the offenders of one attack that share a shard.
pub(super) const MAX_SCANNED: usize = 1024;

/// A client that a walk over a store passes.
pub(crate) struct Passed<'a> {
    /// The fingerprint of the client's key.
    pub(crate) fingerprint: u64,
    /// The client's usage relative to the limit, 1 at the limit.
    pub(crate) usage: f64,
    /// The client's limit, which may differ from others' where rules share the store.
    pub(crate) limit: &'a Limit,
    pub(crate) state: &'a State,
    /// The state as a word; 0 if it is none.
    pub(crate) word: Word,
}

/// The clients whose keys' hashes share certain bits.
pub(crate) struct Shard {
    states: LruCache<u64, Entry, BuildHasherDefault<Identity>>,
    bytes: usize,
    max_bytes: usize,
    max_clients: usize,
    displaced: u64,
    live: Arc<LiveHolds>,
    /// The number of clients that evictions may look at beyond their average, saved up by evictions that looked at
    /// fewer.
    saved_scans: usize,
    #[cfg(test)]
    pub(super) scanned: usize,
}

/// The rank of a client in the order of eviction: idle clients first, then those within their limits, each by
/// rate.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Standing {
    is_active: bool,
    is_over: bool,
    rate: f64,
}

/// A client's state, which is `None` only while it is being changed, and the limit under which it was stored.
struct Entry {
    state: Option<State>,
    limit: Arc<Limit>,
}

impl Entry {
    fn new(limit: &Arc<Limit>) -> Self {
        Self {
            state: None,
            limit: Arc::clone(limit),
        }
    }

    /// Takes the state out of the entry, as a state under the given limit.
    fn take(&mut self, limit: &Arc<Limit>, now: Nanos) -> Option<State> {
        let state = self.state.take();
        if Arc::ptr_eq(&self.limit, limit) {
            return state;
        }
        let old = core::mem::replace(&mut self.limit, Arc::clone(limit));
        limit.carried(&old, state?, now)
    }

    /// Returns the bytes that the client takes; 0 while its state is taken out.
    /// Returns the client's rank in the order of eviction, and drops a state that no longer counts.
    fn standing(&mut self, now: Nanos) -> Standing {
        let limit = &self.limit;
        let allowed = limit.admit(&mut self.state, now, Cost::ONE, Mode::Peek);
        let rate = limit.usage(&mut self.state, now);
        Standing {
            is_active: self.state.is_some(),
            is_over: !allowed,
            rate,
        }
    }

    fn bytes(&self) -> usize {
        self.state
            .as_ref()
            .map_or(0, |state| OVERHEAD + state.bytes())
    }
}

impl Shard {
    pub(super) fn new(max_clients: usize, max_bytes: usize, live: Arc<LiveHolds>) -> Self {
        Self {
            states: LruCache::unbounded_with_hasher(BuildHasherDefault::default()),
            bytes: 0,
            max_bytes,
            max_clients,
            displaced: 0,
            live,
            saved_scans: MAX_SCANNED,
            #[cfg(test)]
            scanned: 0,
        }
    }

    /// Replaces a client's state by the one that `change` returns, `None` for no state, and evicts
    /// others while the shard is over its bounds. A peek does not count as a visit.
    pub(crate) fn change<R>(
        &mut self,
        key: KeyHash,
        limit: &Arc<Limit>,
        now: Nanos,
        mode: Mode,
        change: impl FnOnce(Option<State>) -> (Option<State>, R),
    ) -> R {
        let known = match mode {
            Mode::Peek => self.states.peek_mut(&key.bits()),
            _ => Some(
                self.states
                    .get_or_insert_mut(key.bits(), || Entry::new(limit)),
            ),
        };
        let Some(entry) = known else {
            return change(None).1;
        };
        self.bytes -= entry.bytes();
        let (after, answer) = change(entry.take(limit, now));
        entry.state = after;
        self.bytes += entry.bytes();
        if entry.state.is_none() {
            self.states.pop(&key.bits());
        }
        self.evict_excess(now);
        answer
    }

    /// Sets the most clients and the most bytes of the shard, and evicts clients while it is over them.
    pub(super) fn bound(&mut self, max_clients: usize, max_bytes: usize, now: Nanos) {
        (self.max_clients, self.max_bytes) = (max_clients, max_bytes);
        self.evict_excess(now);
    }

    fn evict_excess(&mut self, now: Nanos) {
        while self.states.len() > 1 && self.is_full() {
            if !self.evict(now) {
                break;
            }
        }
    }

    /// Evicts one of the clients that have been idle for longest; returns false if all that it found
    /// have live reservations.
    fn evict(&mut self, now: Nanos) -> bool {
        let granted = (self.saved_scans + SCANNED_PER_EVICTION).min(MAX_SCANNED);
        // The client with the latest visit is not examined, since the place is needed for it.
        let most = granted.min(self.states.len() - 1);
        let mut lowest: Option<(u64, Standing)> = None;
        let mut passed_over = SmallVec::<[u64; CANDIDATES]>::new();
        let mut candidates = 0;
        for (key, entry) in self.states.iter_mut().rev().take(most) {
            self.bytes -= entry.bytes();
            let standing = entry.standing(now);
            self.bytes += entry.bytes();
            let is_kept = standing.is_active && entry.limit.is_concurrent();
            if !is_kept && lowest.is_none_or(|(_, lowest)| standing < lowest) {
                lowest = Some((*key, standing));
            }
            if is_kept || standing.is_over {
                passed_over.push(*key);
            } else {
                candidates += 1;
            }
            if candidates == CANDIDATES {
                break;
            }
        }
        self.spend(granted, passed_over.len() + candidates);
        // Offenders of one attack lie side by side: these are looked at again only after all others.
        for key in &passed_over {
            self.states.promote(key);
        }
        let Some((key, Standing { is_active, .. })) = lowest else {
            return false;
        };
        if let Some(entry) = self.states.pop(&key) {
            self.bytes -= entry.bytes();
        }
        self.live.forget(KeyHash::from_bits(key).fingerprint());
        self.displaced += u64::from(is_active);
        true
    }

    /// Deducts the clients that an eviction has looked at from those that it may look at.
    fn spend(&mut self, granted: usize, scanned: usize) {
        self.saved_scans = granted - scanned;
        #[cfg(test)]
        {
            self.scanned += scanned;
        }
    }

    fn is_full(&self) -> bool {
        self.bytes > self.max_bytes || self.states.len() > self.max_clients
    }

    /// Returns true if a client has a state.
    #[cfg(test)]
    pub(super) fn has(&self, key: KeyHash) -> bool {
        self.states.contains(&key.bits())
    }

    /// Removes all clients, and returns their number.
    pub(crate) fn clear(&mut self) -> usize {
        let removed = self.states.len();
        self.states.clear();
        self.bytes = 0;
        removed
    }

    /// Calls `visit` with each client's key, its limit, and its usage relative to that limit. Removes the clients
    /// whose state no longer counts.
    pub(crate) fn walk(&mut self, now: Nanos, visit: &mut impl FnMut(Passed<'_>)) {
        let mut gone = std::vec::Vec::new();
        for (key, entry) in self.states.iter_mut() {
            self.bytes -= entry.bytes();
            let limit = &*entry.limit;
            let usage = limit.usage(&mut entry.state, now);
            self.bytes += entry.bytes();
            match &entry.state {
                Some(state) => visit(Passed {
                    fingerprint: KeyHash::from_bits(*key).fingerprint(),
                    usage,
                    limit,
                    state,
                    word: 0,
                }),
                None => gone.push(*key),
            }
        }
        for key in gone {
            self.states.pop(&key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of clients that were evicted although they were not idle.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced
    }
}
