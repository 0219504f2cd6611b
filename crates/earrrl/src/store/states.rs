//! The states that are more than one time: a bounded map, sharded. When it is full, one of the longest
//! idle goes: one within its limit before one over it.

use core::hash::{BuildHasherDefault, Hasher};
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use super::table::KeyHash;
use crate::algorithm::{Limit, State};
use crate::clock::Nanos;

/// The fewest locks, and how many clients share one where there are more: so few that a map which grows while
/// it is locked, and moves all of its clients, keeps nobody waiting for a millisecond.
const LEAST_SHARDS: usize = 64;
const SHARED: usize = 8192;
/// How many of the longest idle are looked at to find the client to forget.
const SAMPLED: usize = 5;
/// What a client takes beside its state: the links and the allocation of its node, and its place
/// in the map.
const OVERHEAD: usize = 80;

/// Bounded in bytes and in clients.
pub(crate) struct States {
    shards: Box<[Mutex<Shard>]>,
    /// Whether the clients are elsewhere, or about to be. It is read under the lock of a shard.
    sealed: AtomicBool,
}

/// The clients whose keys' hashes share certain bits.
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
        let shards = shards(capacity);
        let shard = || {
            Mutex::new(Shard {
                states: LruCache::unbounded_with_hasher(BuildHasherDefault::default()),
                bytes: 0,
                most_bytes: most_bytes / shards,
                most_clients: clients_a_shard(capacity),
                displaced: 0,
            })
        };
        Self { shards: (0..shards).map(|_| shard()).collect(), sealed: AtomicBool::new(false) }
    }

    /// Lets nothing be decided here any more, once this returns.
    pub(crate) fn seal(&self) {
        self.sealed.store(true, Relaxed);
        // A thread that has a shard now may not have seen it.
        self.each().for_each(drop);
    }

    /// Whether it is sealed; to be asked under the lock of a shard.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Relaxed)
    }

    /// What `capacity` clients take, at `state` bytes a state.
    pub(crate) fn bytes_of(capacity: usize, state: usize) -> Option<usize> {
        clients_a_shard(capacity)
            .checked_mul(shards(capacity))?
            .checked_mul(state.checked_add(OVERHEAD)?)
    }

    /// Which shard a client is in.
    pub(crate) fn shard_of(&self, key: KeyHash) -> usize {
        // Not the topmost bits: the map looks at those.
        (key.bits() >> 40) as usize % self.shards.len()
    }

    /// A shard, for as long as it takes to decide.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard % self.shards.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client's shard, for as long as it takes to decide.
    pub(crate) fn lock_of(&self, key: KeyHash) -> MutexGuard<'_, Shard> {
        self.lock(self.shard_of(key))
    }

    /// Where the shards are.
    pub(crate) fn places(&self) -> Range<usize> {
        0..self.shards.len()
    }

    /// Every shard, one after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.places().map(|shard| self.lock(shard))
    }
}

/// What a client takes; nothing while its state is taken out.
fn bytes(state: &Option<State>) -> usize {
    state.as_ref().map_or(0, |state| OVERHEAD + state.bytes())
}

fn shards(capacity: usize) -> usize {
    capacity.div_ceil(SHARED).next_power_of_two().max(LEAST_SHARDS)
}

/// The mean and six standard deviations.
fn clients_a_shard(capacity: usize) -> usize {
    let mean = capacity.div_ceil(shards(capacity));
    mean.saturating_add(6 * mean.isqrt()).saturating_add(6)
}

impl Shard {
    /// Changes a client's state; `None` is a client that is not there. Where that takes more room than
    /// there is, others go; see [`evict`](Self::evict).
    pub(crate) fn update<R>(
        &mut self,
        key: KeyHash,
        limit: &Limit,
        now: Nanos,
        change: impl FnOnce(Option<State>) -> (Option<State>, R),
    ) -> R {
        let state = self.states.get_mut(&key.bits()).and_then(Option::take);
        self.bytes -= bytes(&state);
        let (after, answer) = change(state);
        if after.is_none() {
            self.states.pop(&key.bits());
            return answer;
        }
        self.bytes += bytes(&after);
        self.states.put(key.bits(), after);
        while self.states.len() > 1
            && (self.bytes > self.most_bytes || self.states.len() > self.most_clients)
        {
            self.evict(limit, now);
        }
        answer
    }

    /// Lends a client's state to `judge`, which gives it back, perhaps without what no longer counts.
    /// It counts as no visit.
    pub(crate) fn lend<R>(
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

    /// Forgets a client. What was its state.
    pub(crate) fn remove(&mut self, key: KeyHash) -> Option<State> {
        let state = self.states.pop(&key.bits()).flatten();
        self.bytes -= bytes(&state);
        state
    }

    pub(crate) fn has(&self, key: KeyHash) -> bool {
        self.states.peek(&key.bits()).is_some_and(Option::is_some)
    }

    /// The client that has been idle for longest.
    pub(crate) fn longest_idle(&self) -> Option<KeyHash> {
        self.states.peek_lru().map(|(key, _)| KeyHash::from_bits(*key))
    }

    /// One of the longest idle goes: one within its limit before one over it, then the lowest
    /// rate. Those over their limit are not looked at again until all others were.
    fn evict(&mut self, limit: &Limit, now: Nanos) {
        let (mut lowest, mut offenders) = (None, [None; SAMPLED]);
        // The latest visitor is the one that the room is made for.
        let sampled = SAMPLED.min(self.states.len() - 1);
        for ((key, state), offender) in
            self.states.iter_mut().rev().take(sampled).zip(&mut offenders)
        {
            self.bytes -= bytes(state);
            let (allowed, rate) = limit.standing(state, now);
            self.bytes += bytes(state);
            let standing = (state.is_some(), !allowed, rate);
            *offender = Some(*key).filter(|_| !allowed);
            if lowest.is_none_or(|(_, least)| standing < least) {
                lowest = Some((*key, standing));
            }
        }
        for key in offenders.iter().flatten() {
            self.states.promote(key);
        }
        if let Some((key, (displaced, ..))) = lowest {
            self.remove(KeyHash::from_bits(key));
            self.displaced += u64::from(displaced);
        }
    }

    /// Gives every client the state that `convert` makes of its own, or forgets it.
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

    pub(crate) fn displaced(&self) -> u64 {
        self.displaced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Mode, Tally};
    use crate::cost::Cost;
    use crate::rule::Rule;

    const NOW: Nanos = Nanos::from_secs(1_800_000_000);

    fn key(nth: u64) -> KeyHash {
        KeyHash::from_bits(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn limit(rule: &str) -> Limit {
        *rule.parse::<Rule>().unwrap().limit()
    }

    fn store(states: &States, nth: u64, state: State) {
        let limit = limit("sliding-log 1000/1h");
        let mut shard = states.lock_of(key(nth));
        shard.update(key(nth), &limit, NOW, |_| (Some(state), ()));
    }

    /// One request; whether it is allowed.
    fn request(states: &States, limit: &Limit, nth: u64) -> bool {
        let mut shard = states.lock_of(key(nth));
        shard.update(key(nth), limit, NOW, |mut state| {
            let allowed = limit.admit(&mut state, NOW, Cost::ONE, Mode::Check);
            (state, allowed)
        })
    }

    fn log(entries: u64) -> State {
        State::SlidingLog(Tally::from_entries((0..entries).map(|at| (NOW.get() - at, 1))))
    }

    fn total(states: &States, of: impl Fn(&Shard) -> usize) -> usize {
        states.each().map(|shard| of(&shard)).sum()
    }

    /// A map that grows moves all its clients while it is locked, whether they come one by one or are
    /// brought over by a sweep.
    #[test]
    fn no_lock_is_held_over_more_clients_than_move_in_a_millisecond() {
        for capacity in [1, 1_000, 1_000_000, 5_000_000, 1_000_000_000] {
            let (most, all) = (clients_a_shard(capacity), shards(capacity));
            assert!(most <= SHARED + SHARED / 8, "{most} of {capacity}");
            assert!(all * most >= capacity && all * SHARED <= capacity * 2 || all == LEAST_SHARDS);
        }
    }

    #[test]
    fn it_is_bounded_in_clients_and_loses_none_of_its_capacity() {
        let states = States::new(1000, usize::MAX);
        for nth in 0..1000 {
            store(&states, nth, log(1));
        }
        assert_eq!(total(&states, Shard::len), 1000);
        for nth in 1000..100_000 {
            store(&states, nth, log(1));
        }
        assert!(total(&states, Shard::len) <= LEAST_SHARDS * clients_a_shard(1000));
    }

    #[test]
    fn it_is_bounded_in_bytes_and_lets_the_longest_idle_go() {
        let log = || log(100);
        let states = States::new(1000, LEAST_SHARDS * 10 * (log().bytes() + OVERHEAD));
        for nth in 0..10_000 {
            store(&states, 0, log());
            store(&states, nth, log());
        }
        let held = total(&states, Shard::len);
        assert!((LEAST_SHARDS * 9..=LEAST_SHARDS * 10).contains(&held), "{held}");
        assert!(states.lock_of(key(0)).has(key(0)));
        assert!(!states.lock_of(key(1)).has(key(1)));
    }

    #[test]
    fn what_is_forgotten_is_not_counted() {
        let states = States::new(10, usize::MAX);
        store(&states, 1, log(1));
        store(&states, 1, log(7));
        states.lock_of(key(1)).remove(key(1));
        states.lock_of(key(2)).remove(key(2));
        assert_eq!((total(&states, Shard::len), total(&states, Shard::bytes)), (0, 0));
    }

    #[test]
    fn who_is_over_its_limit_outlives_a_flood_of_others() {
        for rule in [
            "exponential 5/15m leaky",
            "exponential 5/15m strict",
            "fixed-window 5/15m",
            "sliding-log 5/15m",
            "sliding-window 5/15m sub-windows=5",
            "sliding-counter 5/15m",
        ] {
            let (states, limit) = (States::new(1_000, usize::MAX), limit(rule));
            while request(&states, &limit, 0) {}
            for nth in 1..50_000 {
                assert!(request(&states, &limit, nth));
            }
            assert!(!request(&states, &limit, 0), "{rule}");
        }
    }

    #[test]
    fn of_those_within_their_limits_the_lowest_rate_goes() {
        let (states, limit) = (States::new(1, usize::MAX), limit("fixed-window 5/15m"));
        let in_one_shard = |nth: u64| nth * u64::from(states.shard_of(key(nth)) == 0);
        let names: Vec<_> = (1..).map(in_one_shard).filter(|nth| *nth > 0).take(14).collect();
        let (room, rest) = names.split_at(clients_a_shard(1));
        for (nth, name) in room.iter().enumerate() {
            for _ in 0..1 + usize::from(nth != 2) {
                assert!(request(&states, &limit, *name));
            }
        }
        assert!(request(&states, &limit, rest[0]));
        let gone = |name: &&u64| !states.lock(0).has(key(**name));
        assert_eq!(room.iter().filter(gone).collect::<Vec<_>>(), [&room[2]]);
    }

    #[test]
    fn who_is_idle_goes_first_and_is_not_counted() {
        let states = States::new(1, usize::MAX);
        let idle = |nth| nth * u64::from(states.shard_of(key(nth)) == 0);
        let names: Vec<_> = (1..).map(idle).filter(|nth| *nth > 0).take(14).collect();
        let (room, rest) = names.split_at(clients_a_shard(1));
        for (nth, name) in room.iter().enumerate() {
            store(
                &states,
                *name,
                if nth == 3 { State::SlidingLog(Tally::from_entries([(1, 1)])) } else { log(1) },
            );
        }
        store(&states, rest[0], log(1));
        let gone = |name: &&u64| !states.lock(0).has(key(**name));
        assert_eq!(room.iter().filter(gone).collect::<Vec<_>>(), [&room[3]]);
        assert_eq!(states.lock(0).displaced(), 0);
    }
}
