//! A bounded, sharded map for states that do not fit the table's words.
//!
//! When it is full, the map evicts one of the clients that have been idle for longest, clients within
//! their limit before clients over it.

use core::hash::{BuildHasherDefault, Hasher};
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use lru::LruCache;
use smallvec::SmallVec;

use super::table::KeyHash;
use crate::algorithm::{Limit, State};
use crate::clock::Nanos;

/// The least number of shards of a map that is not small.
const MIN_SHARDS: usize = 64;
/// The number of clients in a shard of a small map: a server may have thousands of these maps.
const CLIENTS_PER_SMALL_SHARD: usize = 128;
/// The number of clients in a shard of a large map. A map that grows moves all of its clients while it is
/// locked, and with this many nobody waits for a millisecond.
const CLIENTS_PER_SHARD: usize = 8192;
/// The number of clients within their limit among which an eviction chooses.
const CANDIDATES: usize = 5;
/// The number of clients that evictions look at, on average. Together with [`MAX_SCANNED`] it bounds what a
/// flood of clients that are all over their limit can cost.
const SCANNED_PER_EVICTION: usize = 16;
/// The most clients that one eviction looks at: more than the offenders of one attack that share a shard.
const MAX_SCANNED: usize = 1024;
/// The bytes that a client takes beside its state: the links and the allocation of its node, and its
/// entry in the index.
const OVERHEAD: usize = 80;

/// A map from clients to states that is bounded in bytes and in clients.
pub(crate) struct States {
    /// The shards, each allocated when it is first locked.
    shards: Box<[OnceLock<Box<Mutex<Shard>>>]>,
    /// The most bytes and the most clients of one shard.
    shard_bytes: usize,
    shard_clients: usize,
    /// True once the clients are moving to another store. Read under the lock of a shard.
    sealed: AtomicBool,
}

/// The clients whose keys' hashes share certain bits.
pub(crate) struct Shard {
    states: LruCache<u64, Option<State>, BuildHasherDefault<Identity>>,
    bytes: usize,
    max_bytes: usize,
    max_clients: usize,
    displaced: u64,
    /// The clients that evictions may look at beyond their average, saved up by those that looked at fewer.
    scan_credit: usize,
    #[cfg(test)]
    scanned: usize,
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

/// The rank of a client in the order of eviction, by its fields from the first.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Standing {
    is_active: bool,
    is_over: bool,
    rate: f64,
}

/// The result of a search for a client to evict.
#[derive(Default)]
struct Scan {
    lowest: Option<(u64, Standing)>,
    /// The clients over their limit that the scan met.
    offenders: SmallVec<[u64; CANDIDATES]>,
    scanned: usize,
}

impl States {
    /// Returns an empty map for `capacity` clients that take at most `max_bytes`.
    pub(crate) fn new(capacity: usize, max_bytes: usize) -> Self {
        let shards = shards(capacity);
        Self {
            shards: (0..shards).map(|_| OnceLock::new()).collect(),
            shard_bytes: max_bytes / shards,
            shard_clients: max_clients_per_shard(capacity),
            sealed: AtomicBool::new(false),
        }
    }

    /// Stops decisions in this map: none is made once this returns.
    pub(crate) fn seal(&self) {
        self.sealed.store(true, Relaxed);
        // A thread that holds a shard's lock now may have read the old value; wait for it.
        self.indices().for_each(|shard| drop(self.lock(shard)));
    }

    /// Returns true once the map is sealed; call it under the lock of a shard.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Relaxed)
    }

    /// Returns the bytes that `capacity` clients take, at `state` bytes a state; `None` on overflow.
    pub(crate) fn bytes_of(capacity: usize, state: usize) -> Option<usize> {
        max_clients_per_shard(capacity)
            .checked_mul(shards(capacity))?
            .checked_mul(state.checked_add(OVERHEAD)?)
    }

    /// Returns the index of a client's shard.
    pub(crate) fn shard_of(&self, key: KeyHash) -> usize {
        // The topmost bits would be a bad choice: the shard's own index uses them.
        (key.bits() >> 40) as usize % self.shards.len()
    }

    /// Locks the shard at an index.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        let shard = self.shards[shard % self.shards.len()]
            .get_or_init(|| Box::new(Mutex::new(Shard::new(self.shard_bytes, self.shard_clients))));
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a client's shard.
    pub(crate) fn lock_of(&self, key: KeyHash) -> MutexGuard<'_, Shard> {
        self.lock(self.shard_of(key))
    }

    /// Returns the indices of all shards.
    pub(crate) fn indices(&self) -> Range<usize> {
        0..self.shards.len()
    }

    /// Locks every shard that is allocated, one after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        let allocated = self.shards.iter().filter_map(OnceLock::get);
        allocated.map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the bytes that a client takes; 0 while its state is taken out.
fn bytes(state: &Option<State>) -> usize {
    state.as_ref().map_or(0, |state| OVERHEAD + state.bytes())
}

fn shards(capacity: usize) -> usize {
    let least = capacity.div_ceil(CLIENTS_PER_SMALL_SHARD).min(MIN_SHARDS).next_power_of_two();
    capacity.div_ceil(CLIENTS_PER_SHARD).next_power_of_two().max(least)
}

/// Returns the mean number of clients in a shard and six standard deviations.
fn max_clients_per_shard(capacity: usize) -> usize {
    let mean = capacity.div_ceil(shards(capacity));
    mean.saturating_add(6 * mean.isqrt()).saturating_add(6)
}

impl Shard {
    fn new(max_bytes: usize, max_clients: usize) -> Self {
        Self {
            states: LruCache::unbounded_with_hasher(BuildHasherDefault::default()),
            bytes: 0,
            max_bytes,
            max_clients,
            displaced: 0,
            scan_credit: MAX_SCANNED,
            #[cfg(test)]
            scanned: 0,
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
            && (self.bytes > self.max_bytes || self.states.len() > self.max_clients)
        {
            self.evict(limit, now);
        }
        answer
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

    /// Evicts one client: among the longest idle, one within its limit before one over it, then the one
    /// with the lowest rate.
    fn evict(&mut self, limit: &Limit, now: Nanos) {
        let granted = (self.scan_credit + SCANNED_PER_EVICTION).min(MAX_SCANNED);
        // The most recent visitor is the one that needs the place.
        let scan = self.scan(granted.min(self.states.len() - 1), limit, now);
        self.scan_credit = granted - scan.scanned;
        #[cfg(test)]
        {
            self.scanned += scan.scanned;
        }
        for key in &scan.offenders {
            self.states.promote(key);
        }
        if let Some((key, Standing { is_active, .. })) = scan.lowest {
            self.remove(KeyHash::from_bits(key));
            self.displaced += u64::from(is_active);
        }
    }

    /// Looks at the longest idle clients until it has found enough that are within their limit, and at no
    /// more than `most`.
    ///
    /// Offenders of one attack lie side by side, so the scan goes on past them. The caller moves them to
    /// the end of the queue: they are looked at again only after all others.
    fn scan(&mut self, most: usize, limit: &Limit, now: Nanos) -> Scan {
        let mut scan = Scan::default();
        let mut candidates = 0;
        for (key, state) in self.states.iter_mut().rev().take(most) {
            self.bytes -= bytes(state);
            let (allowed, rate) = limit.standing(state, now);
            self.bytes += bytes(state);
            let standing = Standing { is_active: state.is_some(), is_over: !allowed, rate };
            if scan.lowest.is_none_or(|(_, lowest)| standing < lowest) {
                scan.lowest = Some((*key, standing));
            }
            scan.scanned += 1;
            if allowed {
                candidates += 1;
            } else {
                scan.offenders.push(*key);
            }
            if candidates == CANDIDATES {
                break;
            }
        }
        scan
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

    /// Returns how many clients were evicted although they were not idle.
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
    const RULES: [&str; 6] = [
        "exponential 5/15m leaky",
        "exponential 5/15m strict",
        "fixed-window 5/15m",
        "sliding-log 5/15m",
        "sliding-window 5/15m sub-windows=5",
        "sliding-counter 5/15m",
    ];

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

    /// Sends one request and returns whether it is allowed.
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

    fn displaced(states: &States) -> usize {
        states.each().map(|shard| shard.displaced() as usize).sum()
    }

    fn total(states: &States, of: impl Fn(&Shard) -> usize) -> usize {
        states.each().map(|shard| of(&shard)).sum()
    }

    /// A map that grows moves all its clients while it is locked, whether they come one by one or are
    /// brought over by a sweep.
    #[test]
    fn no_lock_is_held_over_more_clients_than_move_in_a_millisecond() {
        for capacity in [1, 1_000, 1_000_000, 5_000_000, 1_000_000_000] {
            let (most, all) = (max_clients_per_shard(capacity), shards(capacity));
            assert!(most <= CLIENTS_PER_SHARD + CLIENTS_PER_SHARD / 8, "{most} of {capacity}");
            assert!(
                all * most >= capacity && all * CLIENTS_PER_SHARD <= capacity * 2
                    || all <= MIN_SHARDS
            );
        }
    }

    #[test]
    fn the_bound_in_clients_is_the_capacity() {
        let states = States::new(1000, usize::MAX);
        for nth in 0..1000 {
            store(&states, nth, log(1));
        }
        assert_eq!(total(&states, Shard::len), 1000);
        for nth in 1000..100_000 {
            store(&states, nth, log(1));
        }
        assert!(total(&states, Shard::len) <= shards(1000) * max_clients_per_shard(1000));
    }

    #[test]
    fn the_bound_in_bytes_evicts_the_longest_idle() {
        let log = || log(100);
        let states = States::new(1000, shards(1000) * 10 * (log().bytes() + OVERHEAD));
        for nth in 0..10_000 {
            store(&states, 0, log());
            store(&states, nth, log());
        }
        let held = total(&states, Shard::len);
        assert!((shards(1000) * 9..=shards(1000) * 10).contains(&held), "{held}");
        assert!(states.lock_of(key(0)).contains(key(0)));
        assert!(!states.lock_of(key(1)).contains(key(1)));
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
    fn a_busy_offender_outlives_a_flood_of_others() {
        for rule in RULES {
            let (states, limit) = (States::new(1_000, usize::MAX), limit(rule));
            while request(&states, &limit, 0) {}
            for nth in 1..50_000 {
                assert!(request(&states, &limit, nth));
            }
            assert!(!request(&states, &limit, 0), "{rule}");
        }
    }

    /// Offenders of one attack lie side by side in the order of last visits.
    #[test]
    fn offenders_that_pause_outlive_a_flood_of_others() {
        const OFFENDERS: u64 = 1_000;
        for rule in RULES {
            let (states, limit) = (States::new(4_000, usize::MAX), limit(rule));
            for offender in 0..OFFENDERS {
                while request(&states, &limit, offender) {}
            }
            for nth in OFFENDERS..30_000 {
                assert!(request(&states, &limit, nth));
            }
            let is_free = |offender: &u64| request(&states, &limit, *offender);
            assert_eq!((0..OFFENDERS).filter(is_free).count(), 0, "{rule}");
        }
    }

    /// Otherwise every newcomer of a flood whose keys are all over their limit would scan the shard.
    #[test]
    fn an_eviction_among_offenders_alone_looks_at_few_of_them() {
        let (states, limit) = (States::new(100_000, usize::MAX), limit("fixed-window 1/15m"));
        for nth in 0..200_000 {
            assert!(request(&states, &limit, nth));
            assert!(!request(&states, &limit, nth));
        }
        let (scanned, evicted) = (total(&states, |shard| shard.scanned), displaced(&states));
        assert!(scanned <= evicted * SCANNED_PER_EVICTION + MIN_SHARDS * MAX_SCANNED, "{scanned}");
    }

    #[test]
    fn among_clients_within_their_limits_the_lowest_rate_is_evicted() {
        let (states, limit) = (States::new(1, usize::MAX), limit("fixed-window 5/15m"));
        let in_one_shard = |nth: u64| nth * u64::from(states.shard_of(key(nth)) == 0);
        let names: Vec<_> = (1..).map(in_one_shard).filter(|nth| *nth > 0).take(14).collect();
        let (room, rest) = names.split_at(max_clients_per_shard(1));
        for (nth, name) in room.iter().enumerate() {
            for _ in 0..1 + usize::from(nth != 2) {
                assert!(request(&states, &limit, *name));
            }
        }
        assert!(request(&states, &limit, rest[0]));
        let gone = |name: &&u64| !states.lock(0).contains(key(**name));
        assert_eq!(room.iter().filter(gone).collect::<Vec<_>>(), [&room[2]]);
    }

    #[test]
    fn an_idle_client_is_evicted_first_and_not_counted() {
        let states = States::new(1, usize::MAX);
        let idle = |nth| nth * u64::from(states.shard_of(key(nth)) == 0);
        let names: Vec<_> = (1..).map(idle).filter(|nth| *nth > 0).take(14).collect();
        let (room, rest) = names.split_at(max_clients_per_shard(1));
        for (nth, name) in room.iter().enumerate() {
            store(
                &states,
                *name,
                if nth == 3 { State::SlidingLog(Tally::from_entries([(1, 1)])) } else { log(1) },
            );
        }
        store(&states, rest[0], log(1));
        let gone = |name: &&u64| !states.lock(0).contains(key(**name));
        assert_eq!(room.iter().filter(gone).collect::<Vec<_>>(), [&room[3]]);
        assert_eq!(states.lock(0).displaced(), 0);
    }
}
