//! One shard of the map: clients in the order of their last visits, and the bytes that they take.

use core::hash::{BuildHasherDefault, Hasher};

use lru::LruCache;

use super::evict::{Client, ScanBudget, Standing, scan};
use crate::algorithm::{Limit, State};
use crate::clock::Nanos;
use crate::store::table::KeyHash;

/// The bytes that a client takes beside its state: the links and the allocation of its node, and its
/// entry in the index.
pub(super) const OVERHEAD: usize = 80;

/// The clients whose keys' hashes share certain bits.
pub(crate) struct Shard {
    /// A state is `None` only while it is being changed.
    states: LruCache<u64, Option<State>, BuildHasherDefault<Identity>>,
    bytes: usize,
    max_bytes: usize,
    max_clients: usize,
    displaced: u64,
    pub(super) scan_budget: ScanBudget,
}

/// The hash of a key that is a hash already.
#[derive(Default)]
pub(crate) struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Shard {
    pub(super) fn new(max_clients: usize, max_bytes: usize) -> Self {
        Self {
            states: LruCache::unbounded_with_hasher(BuildHasherDefault::default()),
            bytes: 0,
            max_bytes,
            max_clients,
            displaced: 0,
            scan_budget: ScanBudget::default(),
        }
    }

    /// Replaces a client's state by the one that `change` returns, `None` for no state, and evicts
    /// others while the shard is over its bounds.
    pub(crate) fn update<R>(
        &mut self,
        key: KeyHash,
        limit: &Limit,
        now: Nanos,
        change: impl FnOnce(Option<State>) -> (Option<State>, R),
    ) -> R {
        let place = self.states.get_or_insert_mut(key.bits(), || None);
        self.bytes -= bytes(place);
        let (after, answer) = change(place.take());
        self.bytes += bytes(&after);
        let is_absent = after.is_none();
        *place = after;
        if is_absent {
            self.states.pop(&key.bits());
        }
        while self.states.len() > 1 && self.is_full() {
            self.evict(limit, now);
        }
        answer
    }

    /// Evicts one of the clients that have been idle for longest.
    fn evict(&mut self, limit: &Limit, now: Nanos) {
        // The client with the latest visit is not examined, since the place is needed for it.
        let most = self.scan_budget.granted().min(self.states.len() - 1);
        let held = &mut self.bytes;
        let scan = scan(self.states.iter_mut().rev().take(most).map(|(key, state)| {
            *held -= bytes(state);
            let (allowed, rate) = limit.standing(state, now);
            *held += bytes(state);
            let standing = Standing { is_active: state.is_some(), rate };
            Client { key: *key, is_over: !allowed, standing }
        }));
        self.scan_budget.spend(&scan);
        for key in &scan.offenders {
            self.states.promote(key);
        }
        if let Some((key, Standing { is_active, .. })) = scan.lowest {
            self.remove(KeyHash::from_bits(key));
            self.displaced += u64::from(is_active);
        }
    }

    fn is_full(&self) -> bool {
        self.bytes > self.max_bytes || self.states.len() > self.max_clients
    }

    /// Passes a client's state to `judge` and stores the one that it returns, without counting as a
    /// visit.
    pub(crate) fn inspect<R>(
        &mut self,
        key: KeyHash,
        judge: impl FnOnce(Option<State>) -> (Option<State>, R),
    ) -> R {
        let Some(place) = self.states.peek_mut(&key.bits()) else { return judge(None).1 };
        self.bytes -= bytes(place);
        let (kept, answer) = judge(place.take());
        self.bytes += bytes(&kept);
        *place = kept;
        if place.is_none() {
            self.states.pop(&key.bits());
        }
        answer
    }

    /// Removes a client and returns its state.
    pub(crate) fn remove(&mut self, key: KeyHash) -> Option<State> {
        let state = self.states.pop(&key.bits()).flatten();
        self.bytes -= bytes(&state);
        state
    }

    pub(crate) fn contains(&self, key: KeyHash) -> bool {
        self.states.peek(&key.bits()).is_some_and(Option::is_some)
    }

    /// Returns the client that has been idle for longest.
    pub(crate) fn longest_idle(&self) -> Option<KeyHash> {
        self.states.peek_lru().map(|(key, _)| KeyHash::from_bits(*key))
    }

    /// Replaces every client's state by the one that `convert` returns, or removes the client.
    pub(crate) fn convert(
        &mut self,
        limit: &Limit,
        now: Nanos,
        convert: impl Fn(State) -> Option<State>,
    ) {
        let keys: std::vec::Vec<u64> = self.states.iter().rev().map(|(key, _)| *key).collect();
        for key in keys {
            let convert = |state: Option<State>| (state.and_then(&convert), ());
            self.update(KeyHash::from_bits(key), limit, now, convert);
        }
    }

    /// Calls `visit` with each client's key and its usage relative to the limit. Removes the clients
    /// whose state no longer counts.
    pub(crate) fn walk(&mut self, limit: &Limit, now: Nanos, mut visit: impl FnMut(KeyHash, f64)) {
        let mut gone = std::vec::Vec::new();
        for (key, state) in self.states.iter_mut() {
            self.bytes -= bytes(state);
            let usage = limit.usage(state, now);
            self.bytes += bytes(state);
            match state {
                Some(_) => visit(KeyHash::from_bits(*key), usage),
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

/// Returns the bytes that a client takes; 0 while its state is taken out.
fn bytes(state: &Option<State>) -> usize {
    state.as_ref().map_or(0, |state| OVERHEAD + state.bytes())
}
