use super::shard::{MAX_SCANNED, SCANNED_PER_EVICTION};
use super::*;
use crate::algorithm::{Limit, Mode, State, Tally};
use crate::clock::Nanos;
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

fn states(capacity: usize, max_bytes: usize) -> States {
    States::with_shards(shards(capacity), capacity, max_bytes)
}

fn key(nth: u64) -> KeyHash {
    KeyHash::from_bits(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn limit(rule: &str) -> Arc<Limit> {
    Arc::new(*rule.parse::<Rule>().unwrap().limit())
}

fn store(states: &States, nth: u64, state: State) {
    let limit = limit("sliding-log 1000/1h");
    let mut shard = states.lock_of(key(nth));
    shard.change(key(nth), &limit, NOW, Mode::Charge, |_| (Some(state), ()));
}

/// Sends one request and returns whether it is allowed.
fn request(states: &States, limit: &Arc<Limit>, nth: u64) -> bool {
    let mut shard = states.lock_of(key(nth));
    shard.change(key(nth), limit, NOW, Mode::Charge, |mut state| {
        let allowed = limit.admit(&mut state, NOW, Cost::ONE, Mode::Check);
        (state, allowed)
    })
}

fn log(entries: u64) -> State {
    State::SlidingLog(Tally::from_entries(
        (0..entries).map(|at| (NOW.get() - at, 1)),
    ))
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
        let most = max_clients_per_shard(capacity, shards(capacity));
        let all = shards(capacity);
        assert!(
            most <= CLIENTS_PER_SHARD + CLIENTS_PER_SHARD / 8,
            "{most} of {capacity}"
        );
        assert!(
            all * most >= capacity && all * CLIENTS_PER_SHARD <= capacity * 2 || all <= MIN_SHARDS
        );
    }
}

#[test]
fn the_bound_in_clients_is_the_capacity() {
    let states = states(1000, usize::MAX);
    for nth in 0..1000 {
        store(&states, nth, log(1));
    }
    assert_eq!(total(&states, Shard::len), 1000);
    for nth in 1000..100_000 {
        store(&states, nth, log(1));
    }
    assert!(total(&states, Shard::len) <= MIN_SHARDS * max_clients_per_shard(1000, shards(1000)));
}

#[test]
fn the_bound_in_bytes_evicts_the_longest_idle() {
    let log = || log(100);
    let states = states(1000, MIN_SHARDS * 10 * (log().bytes() + OVERHEAD));
    for nth in 0..10_000 {
        store(&states, 0, log());
        store(&states, nth, log());
    }
    let held = total(&states, Shard::len);
    assert!((MIN_SHARDS * 9..=MIN_SHARDS * 10).contains(&held), "{held}");
    assert!(states.lock_of(key(0)).has(key(0)));
    assert!(!states.lock_of(key(1)).has(key(1)));
}

#[test]
fn what_is_forgotten_is_not_counted() {
    let states = states(10, usize::MAX);
    store(&states, 1, log(1));
    store(&states, 1, log(7));
    let limit = limit("sliding-log 5/1h");
    for nth in [1, 2] {
        let forget = |_| (None, ());
        states
            .lock_of(key(nth))
            .change(key(nth), &limit, NOW, Mode::Charge, forget);
    }
    assert_eq!(
        (total(&states, Shard::len), total(&states, Shard::bytes)),
        (0, 0)
    );
}

#[test]
fn a_busy_offender_outlives_a_flood_of_others() {
    for rule in RULES {
        let states = states(1_000, usize::MAX);
        let limit = limit(rule);
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
        let states = states(4_000, usize::MAX);
        let limit = limit(rule);
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
    let states = states(100_000, usize::MAX);
    let limit = limit("fixed-window 1/15m");
    for nth in 0..200_000 {
        assert!(request(&states, &limit, nth));
        assert!(!request(&states, &limit, nth));
    }
    let scanned = total(&states, |shard| shard.scanned);
    let evicted = displaced(&states);
    assert!(
        scanned <= evicted * SCANNED_PER_EVICTION + MIN_SHARDS * MAX_SCANNED,
        "{scanned}"
    );
}

#[test]
fn among_clients_within_their_limits_the_lowest_rate_is_evicted() {
    let states = states(1, usize::MAX);
    let limit = limit("fixed-window 5/15m");
    let in_one_shard = |nth: u64| nth * u64::from(states.shard_of(key(nth)) == 0);
    let names: Vec<_> = (1..)
        .map(in_one_shard)
        .filter(|nth| *nth > 0)
        .take(14)
        .collect();
    let (room, rest) = names.split_at(max_clients_per_shard(1, shards(1)));
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
fn an_idle_client_is_evicted_first_and_not_counted() {
    let states = states(1, usize::MAX);
    let idle = |nth| nth * u64::from(states.shard_of(key(nth)) == 0);
    let names: Vec<_> = (1..).map(idle).filter(|nth| *nth > 0).take(14).collect();
    let (room, rest) = names.split_at(max_clients_per_shard(1, shards(1)));
    for (nth, name) in room.iter().enumerate() {
        store(
            &states,
            *name,
            if nth == 3 {
                State::SlidingLog(Tally::from_entries([(1, 1)]))
            } else {
                log(1)
            },
        );
    }
    store(&states, rest[0], log(1));
    let gone = |name: &&u64| !states.lock(0).has(key(**name));
    assert_eq!(room.iter().filter(gone).collect::<Vec<_>>(), [&room[3]]);
    assert_eq!(states.lock(0).displaced(), 0);
}

/// Every request counts as a visit.
#[test]
fn a_client_in_use_is_not_evicted() {
    let states = states(1, usize::MAX);
    store(&states, 0, log(1));
    let shard = states.shard_of(key(0));
    let others = (1..).filter(|nth| states.shard_of(key(*nth)) == shard);
    for other in others.take(10 * max_clients_per_shard(1, shards(1))) {
        assert!(states.lock(shard).has(key(0)), "before {other}");
        store(&states, 0, log(1));
        store(&states, other, log(1));
    }
}

#[test]
fn a_shard_of_offenders_keeps_a_newcomer() {
    let states = states(1, usize::MAX);
    let limit = limit("sliding-log 5/15m strict");
    for nth in 0..13 {
        for _ in 0..9 {
            request(&states, &limit, nth);
        }
    }
    request(&states, &limit, 99);
    assert!(states.lock_of(key(99)).has(key(99)));
}
