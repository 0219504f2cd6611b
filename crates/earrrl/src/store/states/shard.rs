//! One shard of the map: clients in the order of their last visits, and the bytes that they take.

use core::hash::{BuildHasherDefault, Hasher};

use lru::LruCache;

use super::bytes;
use super::evict::ScanBudget;
use crate::algorithm::{Limit, State};
use crate::clock::Nanos;
use crate::store::table::KeyHash;

/// The clients whose keys' hashes share certain bits.
pub(crate) struct Shard {
    /// A state is `None` only while it is being changed.
    pub(super) states: LruCache<u64, Option<State>, BuildHasherDefault<Identity>>,
    pub(super) bytes: usize,
    max_bytes: usize,
    max_clients: usize,
    pub(super) displaced: u64,
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
