//! The states that are more than one time: a bounded map, sharded, the longest idle first out.

use core::hash::{BuildHasherDefault, Hasher};
use std::boxed::Box;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use super::table::KeyHash;
use crate::algorithm::State;

const SHARDS: usize = 64;
/// What a client takes beside its state: the links and the allocation of its node, and its place
/// in the map.
const OVERHEAD: usize = 80;

/// Bounded in bytes and in clients.
pub(crate) struct States {
    shards: Box<[Mutex<Shard>]>,
}

/// The clients whose keys' hashes share certain six bits.
pub(crate) struct Shard {
    states: LruCache<u64, Option<State>, BuildHasherDefault<Hashed>>,
    bytes: usize,
    most_bytes: usize,
    most_clients: usize,
    displaced: u64,
}

/// Keys are hashes already.
#[derive(Default)]
pub(crate) struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl States {
    /// Room for `capacity` clients, in at most `most_bytes`.
    pub(crate) fn new(capacity: usize, most_bytes: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                states: LruCache::unbounded_with_hasher(BuildHasherDefault::default()),
                bytes: 0,
                most_bytes: most_bytes / SHARDS,
                most_clients: clients_a_shard(capacity),
                displaced: 0,
            })
        };
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// What `capacity` clients take, at so many bytes a state.
    pub(crate) fn bytes_of(capacity: usize, state: usize) -> Option<usize> {
        clients_a_shard(capacity).checked_mul(SHARDS)?.checked_mul(state.checked_add(OVERHEAD)?)
    }

    /// Which shard a client is in.
    pub(crate) fn shard_of(key: KeyHash) -> usize {
        // Not the topmost bits: the map looks at those.
        (key.bits() >> 40) as usize % SHARDS
    }

    /// A shard, for as long as it takes to decide.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every shard, one after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        (0..SHARDS).map(|shard| self.lock(shard))
    }
}

/// The mean and six standard deviations.
fn clients_a_shard(capacity: usize) -> usize {
    let mean = capacity.div_ceil(SHARDS);
    mean.saturating_add(6 * mean.isqrt()).saturating_add(6)
}

impl Shard {
    /// Changes a client's state; `None` is a client that is not there.
    pub(crate) fn update<R>(
        &mut self,
        key: KeyHash,
        change: impl FnOnce(Option<State>) -> (Option<State>, R),
    ) -> R {
        let state = self.states.get_mut(&key.bits()).and_then(Option::take);
        self.bytes -= state.as_ref().map_or(0, |state| OVERHEAD + state.bytes());
        let (after, answer) = change(state);
        match after {
            Some(state) => self.keep(key, state),
            None => {
                self.states.pop(&key.bits());
            }
        }
        answer
    }

    /// A copy of a client's state. It counts as no visit.
    pub(crate) fn peek(&self, key: KeyHash) -> Option<State> {
        self.states.peek(&key.bits()).cloned().flatten()
    }

    fn keep(&mut self, key: KeyHash, state: State) {
        self.bytes += OVERHEAD + state.bytes();
        self.states.put(key.bits(), Some(state));
        while self.states.len() > 1
            && (self.bytes > self.most_bytes || self.states.len() > self.most_clients)
        {
            if let Some((_, idlest)) = self.states.pop_lru() {
                self.bytes -= idlest.as_ref().map_or(0, |state| OVERHEAD + state.bytes());
                self.displaced += 1;
            }
        }
    }

    /// Gives every client the state that `convert` makes of its own, or forgets it.
    pub(crate) fn convert(&mut self, convert: impl Fn(State) -> Option<State>) {
        let keys: std::vec::Vec<u64> = self.states.iter().rev().map(|(key, _)| *key).collect();
        for key in keys {
            self.update(KeyHash::from_bits(key), |state| (state.and_then(&convert), ()));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn displaced(&self) -> u64 {
        self.displaced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Moment, Tally};

    fn key(nth: u64) -> KeyHash {
        KeyHash::from_bits(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn store(states: &States, nth: u64, state: State) {
        states.lock(States::shard_of(key(nth))).update(key(nth), |_| (Some(state), ()));
    }

    fn total(states: &States, of: impl Fn(&Shard) -> usize) -> usize {
        states.each().map(|shard| of(&shard)).sum()
    }

    #[test]
    fn it_is_bounded_in_clients_and_loses_none_of_its_capacity() {
        let states = States::new(1000, usize::MAX);
        for nth in 0..1000 {
            store(&states, nth, State::TokenBucket(Moment(0)));
        }
        assert_eq!(total(&states, Shard::len), 1000);
        for nth in 1000..100_000 {
            store(&states, nth, State::TokenBucket(Moment(0)));
        }
        assert!(total(&states, Shard::len) <= SHARDS * clients_a_shard(1000));
    }

    #[test]
    fn it_is_bounded_in_bytes_and_lets_the_longest_idle_go() {
        let log = || State::SlidingLog(Tally::from_entries((0..100).map(|at| (at, 1))));
        let states = States::new(1 << 30, SHARDS * 10 * (log().bytes() + OVERHEAD));
        for nth in 0..10_000 {
            store(&states, 0, log());
            store(&states, nth, log());
        }
        let held = total(&states, Shard::len);
        assert!((SHARDS * 9..=SHARDS * 10).contains(&held), "{held}");
        assert!(states.lock(States::shard_of(key(0))).peek(key(0)).is_some());
        assert!(states.lock(States::shard_of(key(1))).peek(key(1)).is_none());
    }

    #[test]
    fn what_is_forgotten_is_not_counted() {
        let states = States::new(10, usize::MAX);
        store(&states, 1, State::TokenBucket(Moment(0)));
        store(&states, 1, State::SlidingLog(Tally::from_entries([(1, 1)])));
        states.lock(States::shard_of(key(1))).update(key(1), |_| (None, ()));
        states.lock(States::shard_of(key(2))).update(key(2), |_| (None, ()));
        assert_eq!((total(&states, Shard::len), total(&states, Shard::bytes)), (0, 0));
    }
}
