//! One shard of the map: clients in the order of their last visits, and the bytes that they take.

use core::hash::BuildHasherDefault;
use std::sync::Arc;

use lru::LruCache;

use super::evict::{Client, ScanBudget, Standing, scan};
use crate::algorithm::{Limit, Mode, State};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::store::identity::Identity;
use crate::store::live::LiveHolds;
use crate::store::table::{KeyHash, Word};

/// The bytes that a client takes beside its state: the links and the allocation of its node, and its
/// entry in the index.
pub(super) const OVERHEAD: usize = 80;

/// A client that a walk over a store passes.
pub(crate) struct Passed<'a> {
    /// The fingerprint of the client's key.
    pub(crate) fingerprint: u64,
    /// The client's usage relative to the limit, 1 at the limit.
    pub(crate) usage: f64,
    /// The client's own limit, where rules share the store.
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
    pub(super) scan_budget: ScanBudget,
}

/// A client's state, which is `None` only while it is being changed.
#[derive(Default)]
struct Entry {
    state: Option<State>,
    /// The limit under which the state was stored; `None` in a map of one limit.
    limit: Option<Arc<Limit>>,
}

/// The limit of a request.
#[derive(Clone, Copy)]
pub(crate) enum Under<'a> {
    /// The only limit of the map.
    Only(&'a Limit),
    /// One of several limits of the map.
    OneOf(&'a Arc<Limit>),
}

impl Under<'_> {
    fn limit(&self) -> &Limit {
        match self {
            Self::Only(limit) => limit,
            Self::OneOf(limit) => limit,
        }
    }
}

impl Entry {
    /// Takes the state out of the entry, as a state under the given limit.
    fn take(&mut self, under: Under<'_>, now: Nanos) -> Option<State> {
        let state = self.state.take();
        let Under::OneOf(limit) = under else {
            return state;
        };
        if self
            .limit
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, limit))
        {
            return state;
        }
        match self.limit.replace(Arc::clone(limit)) {
            Some(old) => limit.carried(&old, state?, now),
            None => state,
        }
    }

    /// Returns the bytes that the client takes; 0 while its state is taken out.
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
            scan_budget: ScanBudget::default(),
        }
    }

    /// Replaces a client's state by the one that `change` returns, `None` for no state, and evicts
    /// others while the shard is over its bounds.
    pub(crate) fn update<R>(
        &mut self,
        key: KeyHash,
        under: Under<'_>,
        now: Nanos,
        change: impl FnOnce(Option<State>) -> (Option<State>, R),
    ) -> R {
        let entry = self.states.get_or_insert_mut(key.bits(), Entry::default);
        self.bytes -= entry.bytes();
        let (after, answer) = change(entry.take(under, now));
        entry.state = after;
        self.bytes += entry.bytes();
        if entry.state.is_none() {
            self.states.pop(&key.bits());
        }
        self.evict_excess(Some(under.limit()), now);
        answer
    }

    /// Sets the most clients and the most bytes of the shard, and evicts clients while it is over them. `limit`
    /// is the limit of the clients that are stored without one.
    pub(super) fn set_bounds(
        &mut self,
        (max_clients, max_bytes): (usize, usize),
        limit: Option<&Limit>,
        now: Nanos,
    ) {
        (self.max_clients, self.max_bytes) = (max_clients, max_bytes);
        self.evict_excess(limit, now);
    }

    fn evict_excess(&mut self, limit: Option<&Limit>, now: Nanos) {
        while self.states.len() > 1 && self.is_full() {
            if !self.evict(limit, now) {
                break;
            }
        }
    }

    /// Evicts one of the clients that have been idle for longest; returns false if all that it found
    /// have live reservations. `limit` is the limit of clients that have none of their own.
    fn evict(&mut self, limit: Option<&Limit>, now: Nanos) -> bool {
        // The client with the latest visit is not examined, since the place is needed for it.
        let most = self.scan_budget.granted().min(self.states.len() - 1);
        let held = &mut self.bytes;
        let scan = scan(self.states.iter_mut().rev().take(most).map(|(key, entry)| {
            *held -= entry.bytes();
            let limit = entry.limit.as_deref().or(limit);
            let standing = limit.map(|limit| {
                let allowed = limit.admit(&mut entry.state, now, Cost::ONE, Mode::Peek);
                (allowed, limit.usage(&mut entry.state, now))
            });
            let (allowed, rate) = standing.unwrap_or_default();
            *held += entry.bytes();
            let is_active = entry.state.is_some();
            let standing = Standing {
                is_active,
                is_over: !allowed,
                rate,
            };
            let is_kept = is_active && limit.is_some_and(Limit::is_concurrent);
            Client {
                key: *key,
                standing,
                is_kept,
            }
        }));
        self.scan_budget.spend(&scan);
        for key in &scan.passed_over {
            self.states.promote(key);
        }
        if let Some((key, Standing { is_active, .. })) = scan.lowest {
            if let Some(entry) = self.states.pop(&key) {
                self.bytes -= entry.bytes();
            }
            self.live.forget(KeyHash::from_bits(key).fingerprint());
            self.displaced += u64::from(is_active);
        }
        scan.lowest.is_some()
    }

    fn is_full(&self) -> bool {
        self.bytes > self.max_bytes || self.states.len() > self.max_clients
    }

    /// Passes a client's state to `judge` and stores the one that it returns, without counting as a
    /// visit.
    pub(crate) fn inspect<R>(
        &mut self,
        key: KeyHash,
        under: Under<'_>,
        now: Nanos,
        judge: impl FnOnce(Option<State>) -> (Option<State>, R),
    ) -> R {
        let Some(entry) = self.states.peek_mut(&key.bits()) else {
            return judge(None).1;
        };
        self.bytes -= entry.bytes();
        let (kept, answer) = judge(entry.take(under, now));
        entry.state = kept;
        self.bytes += entry.bytes();
        if entry.state.is_none() {
            self.states.pop(&key.bits());
        }
        answer
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

    /// Calls `visit` with each client's key, its limit, and its usage relative to that limit, which
    /// is `limit` in a map of one limit. Removes the clients whose state no longer counts.
    pub(crate) fn walk(&mut self, limit: &Limit, now: Nanos, visit: &mut impl FnMut(Passed<'_>)) {
        let mut gone = std::vec::Vec::new();
        for (key, entry) in self.states.iter_mut() {
            self.bytes -= entry.bytes();
            let limit = entry.limit.as_deref().unwrap_or(limit);
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
