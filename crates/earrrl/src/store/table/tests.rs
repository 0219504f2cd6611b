use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use proptest::prelude::*;

use super::entry::{Entry, FINGERPRINT_MASK};
use super::insert::Claim;
use super::slot::Slot;
use super::*;

/// A word that is lower than every word the tests store.
const IDLE: Word = MIN_WORD;

fn hasher() -> KeyHasher {
    KeyHasher::with_key(b"a key for tests!")
}

fn key(name: u64) -> KeyHash {
    hasher().hash(&name)
}

fn store(table: &Table, name: u64, word: Word) {
    table.update(key(name), || IDLE, |_| (Change::Store(word), ()));
}

/// Removes a client. Returns true if it was in the table.
fn reset(table: &Table, key: KeyHash) -> bool {
    table.update(key, || IDLE, |word| (Change::Remove, word.is_some()))
}

/// Counts a request. Returns true if it is within `quota`.
fn admit(table: &Table, key: KeyHash, quota: Word) -> bool {
    table.update(
        key,
        || IDLE,
        |word| match word.unwrap_or(0) {
            count if count < quota => (Change::Store(count + 1), true),
            _ => (Change::Keep, false),
        },
    )
}

/// Returns a number of repetitions: fewer under Miri, which is a thousand times slower.
fn times(usual: usize) -> usize {
    if cfg!(miri) {
        usual.div_ceil(5000)
    } else {
        usual
    }
}

#[test]
fn impossible_capacities_are_refused() {
    for capacity in [0, usize::MAX, 1 << 58, 1 << 40] {
        assert_eq!(
            Table::reserved(capacity).unwrap_err(),
            Table::new(capacity).unwrap_err()
        );
    }
    let refused = |capacity| Table::new(capacity).unwrap_err();
    assert_eq!(refused(0), TableError::NoCapacity);
    assert_eq!(
        refused(usize::MAX),
        TableError::TooLarge {
            capacity: usize::MAX
        }
    );
    assert_eq!(refused(1 << 58), TableError::TooLarge { capacity: 1 << 58 });
    assert_eq!(refused(1 << 40), TableError::TooLarge { capacity: 1 << 40 });
    assert_eq!(
        refused(0).to_string(),
        "capacity: 0 clients, must be at least 1"
    );
}

#[test]
fn a_client_is_stored_changed_and_forgotten() {
    for table in [Table::new(1).unwrap(), Table::reserved(1).unwrap()] {
        store_change_and_forget(&table);
    }
}

fn store_change_and_forget(table: &Table) {
    assert_eq!(table.get(key(1)), None);
    assert!(table.is_empty());
    store(table, 1, -5);
    store(table, 2, 7);
    assert_eq!(
        (table.get(key(1)), table.get(key(2)), table.len()),
        (Some(-5), Some(7), 2)
    );
    let mut words: Vec<_> = table.iter().map(|client| client.word).collect();
    words.sort_unstable();
    assert_eq!(words, [-5, 7]);
    assert!(reset(table, key(1)));
    assert!(!reset(table, key(1)));
    assert_eq!(
        (table.get(key(1)), table.len(), table.displaced()),
        (None, 1, 0)
    );
}

#[test]
fn keeping_an_absent_client_stores_nothing() {
    let table = Table::new(1).unwrap();
    assert_eq!(
        table.update(key(1), || IDLE, |word| (Change::Keep, word)),
        None
    );
    assert!(table.is_empty());
}

#[test]
fn twenty_two_bytes_a_client() {
    let table = Table::new(times(1_000_000)).unwrap();
    assert!(
        cfg!(miri) || table.bytes() <= 22_000_000,
        "{}",
        table.bytes()
    );
    let told = Table::bytes_of(times(1_000_000)).unwrap();
    assert!(
        (told..told + 2048).contains(&table.bytes()),
        "{told}, {}",
        table.bytes()
    );
}

#[test]
fn a_newcomer_displaces_the_lowest_even_among_offenders() {
    let table = Table::new(1).unwrap();
    for name in 0..32 {
        store(&table, name, 1000 + Word::from(name));
    }
    assert_eq!((table.len(), table.displaced()), (32, 0));
    store(&table, 99, 1);
    assert_eq!((table.get(key(99)), table.get(key(0))), (Some(1), None));
    assert_eq!((table.len(), table.displaced()), (32, 1));
    assert!((1..32).all(|name| table.get(key(name)).is_some()));
}

/// A claim that no thread will finish is evicted only if nothing else is left.
#[test]
fn a_claim_makes_room_last() {
    let claim = |place| Entry::claim(101 + 2 * place as u64, 7);
    let table = full_of(Entry::VACATED);
    let slot = |place| table.lines.slot(place);
    for place in 0..32 {
        slot(place).swap(Entry::VACATED, claim(place)).unwrap();
    }
    slot(9).swap(claim(9), Entry::new(9, MAX_WORD)).unwrap();
    store(&table, 7, MAX_WORD);
    assert_eq!(slot(9).load(), Entry::new(key(7).fingerprint(), MAX_WORD));
    store(&table, 8, 1);
    store(&table, 9, 1);
    assert_eq!((table.get(key(9)), table.displaced()), (Some(1), 3));
}

/// If a claim could recur, a thread that was suspended could commit another thread's claim.
#[test]
fn claims_of_one_key_differ() {
    let table = Table::new(1).unwrap();
    let claims = [(); 3].map(|()| {
        let claim = table.claim(key(7), &|| IDLE).unwrap();
        table
            .lines
            .slot(claim.place)
            .swap(claim.entry, Entry::VACATED)
            .unwrap();
        claim.entry.low
    });
    assert!(claims.is_sorted_by(|one, other| one < other), "{claims:?}");
}

/// Two insertions of one key withdraw only one of their claims. Otherwise each could withdraw the
/// other's claim again and again.
#[test]
fn of_two_claims_the_one_at_the_lower_place_stays() {
    let table = full_of(Entry::VACATED);
    let key = key(7);
    let slot = |place| table.lines.slot(place);
    let claim = |place, number| {
        let entry = Entry::claim(key.fingerprint(), number);
        slot(place).swap(Entry::VACATED, entry).unwrap();
        Claim { place, entry }
    };
    let low = 3;
    let high = 20;
    let lower = claim(low, 1);
    let higher = claim(high, 2);
    assert!(!table.finish(key, 5, &higher));
    assert_eq!(
        (slot(low).load(), slot(high).load()),
        (lower.entry, Entry::VACATED)
    );
    claim(high, 3);
    assert!(table.finish(key, 5, &lower));
    assert_eq!(
        (table.get(key), slot(high).load()),
        (Some(5), Entry::VACATED)
    );
}

/// A thread was stopped for good between its claim and its commit.
#[test]
fn a_claim_of_the_key_is_taken_over_wherever_it_is() {
    for place in (0..32).rev() {
        let table = full_of(Entry::VACATED);
        let key = key(7);
        let abandoned = Entry::claim(key.fingerprint(), 1 << 40);
        let slot = table.lines.slot(place);
        slot.swap(Entry::VACATED, abandoned).unwrap();
        store(&table, 7, 5);
        assert_eq!(slot.load(), Entry::new(key.fingerprint(), 5));
        assert_eq!(table.len(), 1);
    }
}

/// Returns the smallest table, of two sets, with this entry in all slots.
fn full_of(entry: Entry) -> Table {
    let table = Table::new(1).unwrap();
    for place in 0..table.lines.slots() {
        table.lines.slot(place).swap(Entry::EMPTY, entry).unwrap();
    }
    table
}

/// New clients take the slots of their sequence in turn, and then those that only claims fill. A slot that is free
/// again is not taken before a slot that was never used.
#[test]
fn never_used_slots_are_taken_in_the_order_of_the_sequence() {
    // The search by 32 bits of the fingerprint takes empty slots for slots of the second key, and vacated ones for
    // those of the third.
    for bits in [key(7).bits(), 7 << 40 | 77, 7 << 40 | FINGERPRINT_MASK] {
        fills_its_sequence(KeyHash::from_bits(bits));
    }
}

fn fills_its_sequence(key: KeyHash) {
    let table = Table::new(1).unwrap();
    let store = || table.update(key, || IDLE, |_| (Change::Store(5), ()));
    let [first, second] = table.lines.homes(key).map(|home| home * LINE);
    let sequence = [first, first + 1, first + 2, second, second + 1, second + 2];
    for (nth, place) in sequence.into_iter().enumerate() {
        let other = Entry::new((0x55 << 20) + 2 * nth as u64 + 1, 9);
        let slot = table.lines.slot(place);
        assert_eq!(table.get(key), None);
        store();
        assert_eq!(slot.load(), Entry::new(key.fingerprint(), 5));
        assert!(reset(&table, key));
        assert_eq!(slot.load(), Entry::VACATED);
        slot.swap(Entry::VACATED, other).unwrap();
    }
    store();
    assert_eq!((table.get(key), table.len()), (Some(5), 7));
    assert_eq!(table.displaced(), 0);
}

const FULL: Word = 500;
const LOW: Word = 90;
const AS_NEW: Word = 9;
/// The word of a slot that is free.
const FREE: Word = Word::MIN;

/// Returns the place that a newcomer's claim gets in two sets of clients with these words, but for some slots. The
/// home lines begin at places 0 and 16.
fn claimed(first: (Word, &[(usize, Word)]), second: (Word, &[(usize, Word)])) -> usize {
    let table = Table::new(1).unwrap();
    let is_wanted = |key: &KeyHash| table.lines.homes(*key) == [0, LINES];
    let newcomer = (0..).map(key).find(is_wanted).unwrap();
    for (base, (all, but)) in [(0, first), (16, second)] {
        for nth in 0..16 {
            let word = but.iter().find(|(place, _)| *place == nth);
            let entry = match word.map_or(all, |(_, word)| *word) {
                FREE => Entry::VACATED,
                word => Entry::new((0x55 << 20) + 2 * nth as u64 + 1, word),
            };
            let slot = table.lines.slot(base + nth);
            slot.swap(Entry::EMPTY, entry).unwrap();
        }
    }
    table.claim(newcomer, &|| 10).unwrap().place
}

#[test]
fn free_slots_and_idle_clients_at_home_make_room_first() {
    for free in [FREE, AS_NEW] {
        let three = [(1, free), (7, free), (15, free)];
        let none: &[_] = &[];
        assert_eq!(claimed((free, none), (free, none)), 0, "in the first home");
        assert_eq!(
            claimed((FULL, &three), (free, none)),
            1,
            "if three of the set are idle"
        );
        assert_eq!(
            claimed((FULL, &three[..2]), (FULL, &three)),
            17,
            "or in the second home"
        );
        assert_eq!(
            claimed((FULL, &three[..2]), (FULL, &three[..1])),
            1,
            "or in the set with more idle ones"
        );
        assert_eq!(
            claimed((FULL, &three[2..]), (FULL, &three[1..])),
            23,
            "near the homes if these are full"
        );
        assert_eq!(
            claimed((FULL, none), (FULL, &three[2..])),
            31,
            "even in the last slot"
        );
    }
    let last = [(15, FREE)];
    assert_eq!(
        claimed((AS_NEW, &[]), (FULL, &last)),
        31,
        "free before idle"
    );
    let idle = [(0, AS_NEW), (3, 1), (5, AS_NEW)];
    assert_eq!(claimed((FULL, &idle), (FULL, &[])), 3, "the lowest at home");
}

#[test]
fn then_the_client_with_the_lowest_rate_makes_room() {
    let two = [(5, LOW), (6, LOW + 1)];
    assert_eq!(claimed((FULL, &[(9, LOW - 1)]), (FULL, &two)), 9);
    assert_eq!(claimed((FULL, &two), (FULL, &[(0, LOW - 1)])), 16);
    assert_eq!(claimed((FULL, &[]), (FULL, &two)), 21);
}

#[test]
fn idle_clients_that_make_room_are_not_counted_as_displaced() {
    let table = Table::new(1).unwrap();
    for name in 0..32 {
        store(&table, name, if name < 20 { 0 } else { 1000 });
    }
    for name in 100..120 {
        table.update(key(name), || 19, |_| (Change::Store(1000), ()));
    }
    assert_eq!(table.displaced(), 0);
    assert!((20..32).all(|name| table.get(key(name)).is_some()));
}

/// After ten times as many idle clients as its capacity, a table still has all of its live clients.
#[test]
fn live_clients_outlast_the_dead() {
    let clients = times(120_000) as u64;
    let table = Table::new(clients as usize).unwrap();
    let mut now = 0;
    let mut visit = |name, idle: Word| {
        now += 1;
        table.update(key(name), || now - idle, |_| (Change::Store(now), ()));
    };
    for name in 0..10 * clients {
        visit(u64::MAX - name, 0);
    }
    for name in 0..clients {
        visit(name, clients.into());
    }
    let lost = (0..clients)
        .filter(|name| table.get(key(*name)).is_none())
        .count();
    assert!(
        lost as f64 <= clients as f64 / 10_000.0,
        "{lost} of {clients} lost"
    );
}

const NAMES: u64 = if cfg!(miri) { 3 } else { 50 };
const QUOTA: u64 = if cfg!(miri) { 3 } else { 100 };

#[test]
fn threads_admit_exactly_the_quota() {
    for threads in [1, 2, 8] {
        admits_exactly(threads, 1, &Table::new(1).unwrap());
        admits_exactly(threads, NAMES, &Table::new(20 * NAMES as usize).unwrap());
    }
}

#[test]
fn threads_admit_exactly_the_quota_in_full_sets() {
    for threads in [1, 2, 8] {
        admits_exactly(threads, 1, &full_table(1, MAX_WORD));
        admits_exactly(threads, NAMES, &full_table(20 * NAMES as usize, -1));
    }
}

/// Returns a full table, in which all clients have the same word.
fn full_table(capacity: usize, word: Word) -> Table {
    let table = Table::new(capacity).unwrap();
    for place in 0..table.lines.slots() {
        // Fingerprints that no key of the tests has.
        let entry = Entry::new(FINGERPRINT_MASK - 2 * place as u64, word);
        table.lines.slot(place).swap(Entry::EMPTY, entry).unwrap();
    }
    table
}

#[test]
fn a_sweep_removes_claims_duplicates_and_states_of_the_far_future() {
    let table = Table::new(1).unwrap();
    let put = |place: usize, entry| {
        let slot = table.lines.slot(place);
        slot.swap(slot.load(), entry).unwrap();
    };
    for (place, entry) in [
        (0, Entry::new(11, 50)),
        (3, Entry::claim(11, 4)),
        (5, Entry::new(11, 70)),
        (7, Entry::new(13, 101)),
        (9, Entry::new(15, 100)),
        // Another set, in which the same fingerprint belongs to another key.
        (16, Entry::new(11, 20)),
        (17, Entry::new(17, 30)),
        (18, Entry::new(17, 30)),
    ] {
        put(place, entry);
    }
    assert_eq!(
        table.sweep(100),
        Swept {
            claims: 1,
            ahead: 1,
            duplicates: 2
        }
    );
    let left: Vec<_> = table
        .iter()
        .map(|client| (client.fingerprint, client.word))
        .collect();
    assert_eq!(left, [(11, 70), (15, 100), (11, 20), (17, 30)]);
    assert_eq!(table.sweep(100), Swept::default());
}

#[cfg(target_os = "linux")]
#[test]
fn a_copy_of_another_size_has_every_client() {
    // Miri takes minutes for each thousand slots.
    const CLIENTS: u64 = if cfg!(miri) { 6 } else { 300 };
    const CAPACITY: usize = if cfg!(miri) { 20 } else { 1_000 };
    let from = Table::new(CAPACITY).unwrap();
    (0..CLIENTS).for_each(|name| store(&from, name, name.into()));
    for capacity in [CAPACITY, CAPACITY * 5 / 2] {
        let into = Table::new(capacity).unwrap();
        from.copy_to(&into, &|| IDLE);
        for name in 0..CLIENTS {
            assert_eq!(into.get(key(name)), Some(name.into()), "{capacity}");
        }
    }
}

/// All threads at once ask for all names, in different orders, beginning with absent clients.
fn admits_exactly(threads: u64, names: u64, table: &Table) {
    let admitted: Vec<_> = (0..names).map(|_| AtomicUsize::new(0)).collect();
    let start = Barrier::new(threads as usize);
    thread::scope(|scope| {
        for thread in 0..threads {
            let admitted = &admitted;
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for nth in 0..names * QUOTA * 2 {
                    let name = (nth + thread * 7) % names;
                    if admit(table, key(name), QUOTA.into()) {
                        admitted[name as usize].fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    for count in admitted {
        assert_eq!(
            count.into_inner(),
            QUOTA as usize,
            "{threads} threads, {names} names"
        );
    }
}

#[test]
fn first_requests_that_race_are_all_counted() {
    let hashes: Vec<_> = (0..times(20_000) as u64).map(key).collect();
    let table = Table::new(2 * hashes.len()).unwrap();
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                for hash in &hashes {
                    table.update(
                        *hash,
                        || IDLE,
                        |word| (Change::Store(word.unwrap_or(0) + 1), ()),
                    );
                }
            });
        }
    });
    assert!(hashes.iter().all(|hash| table.get(*hash) == Some(4)));
    assert_eq!(table.iter().count(), hashes.len());
}

#[test]
fn no_word_is_seen_half_changed() {
    let both = |half: Word| (half << 64) | half;
    let table = Table::new(1).unwrap();
    let writes = times(200_000) as Word;
    store(&table, 1, both(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for nth in 0..writes {
                    table.update(key(1), || IDLE, |_| (Change::Store(both(nth % 64)), ()));
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..writes {
                let word = table.get(key(1)).unwrap();
                assert_eq!(word >> 64, word & Word::from(u64::MAX));
            }
        });
    });
}

#[derive(Clone, Debug)]
enum Step {
    Store(u64, Word),
    Add(u64, Word),
    Remove(u64),
    Keep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..32_u64;
    let word = -1000..1000_i128;
    prop_oneof![
        (name.clone(), word.clone()).prop_map(|(name, word)| Step::Store(name, word)),
        (name.clone(), word).prop_map(|(name, word)| Step::Add(name, word)),
        name.clone().prop_map(Step::Remove),
        name.prop_map(Step::Keep),
    ]
}

proptest! {
    /// As long as no client is evicted, a table is equivalent to a map. The smallest table has 32
    /// slots, all of which are open to every key.
    #[test]
    fn a_table_is_a_map(steps in prop::collection::vec(step(), 0..300)) {
        let table = Table::new(1).unwrap();
        let mut map = HashMap::new();
        for step in steps {
            let change = |word: Option<Word>| match step {
                Step::Store(_, word) => Change::Store(word),
                Step::Add(_, by) => Change::Store(word.unwrap_or(0) + by),
                Step::Remove(_) => Change::Remove,
                Step::Keep(_) => Change::Keep,
            };
            let (Step::Store(name, _) | Step::Add(name, _) | Step::Remove(name) | Step::Keep(name)) = step;
            let seen = table.update(key(name), || IDLE, |word| (change(word), word));
            prop_assert_eq!(seen, map.get(&name).copied());
            match change(seen) {
                Change::Store(word) => { map.insert(name, word); }
                Change::Remove => { map.remove(&name); }
                Change::Keep => {}
            }
            prop_assert_eq!(table.len(), map.len());
        }
        let mut words: Vec<_> = table.iter().map(|client| client.word).collect();
        let mut expected: Vec<_> = map.into_values().collect();
        words.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(words, expected);
    }

    /// A new client always gets a slot, and only the client with the lowest rate is evicted.
    #[test]
    fn only_lower_rates_are_displaced(words in prop::collection::vec(0..1000_i128, 33..100)) {
        let table = Table::new(1).unwrap();
        let mut stored: HashMap<u64, Word> = HashMap::new();
        for (name, word) in words.into_iter().enumerate() {
            let name = name as u64;
            store(&table, name, word);
            prop_assert_eq!(table.get(key(name)), Some(word));
            let lowest = stored.values().min().copied();
            for (displaced, rate) in stored.extract_if(|name, _| table.get(key(*name)).is_none()) {
                prop_assert_eq!(Some(rate), lowest, "{} had to go for {}", displaced, word);
            }
            stored.insert(name, word);
            prop_assert_eq!(table.len(), stored.len());
        }
    }
}

/// Several threads send requests and reset the same few keys, in a table of 32 slots that has a
/// slot for each key. No key is ever in two slots, or admitted more often than its resets permit. `EARRRL_LONG=1` makes
/// twenty million decisions.
#[test]
fn keys_that_come_and_go_in_a_tiny_table_are_counted_once() {
    const KEYS: usize = 16;
    const QUOTA: usize = 3;
    let long = std::env::var_os("EARRRL_LONG").is_some();
    for episode in 0..times(if long { 20_000 } else { 300 }) {
        let threads = [4, 16][episode % 2];
        let table = Table::new(1).unwrap();
        let [asked, admitted, resets] = [(); 3].map(|()| [(); KEYS].map(|()| AtomicUsize::new(0)));
        let barrier = Barrier::new(threads);
        let work = |thread: usize| {
            let mut random = (episode * 16 + thread) as u64;
            barrier.wait();
            for _ in 0..100 {
                random = random
                    .wrapping_mul(0x5851_F42D_4C95_7F2D)
                    .wrapping_add(0x1405_7B7E_F767_814F);
                let name = (random >> 40) as usize % KEYS;
                if random >> 60 == 0 && name < KEYS / 2 {
                    resets[name].fetch_add(1, Relaxed);
                    reset(&table, key(name as u64));
                } else {
                    asked[name].fetch_add(1, Relaxed);
                    let allowed = admit(&table, key(name as u64), QUOTA as Word);
                    admitted[name].fetch_add(allowed.into(), Relaxed);
                }
            }
        };
        let work = &work;
        thread::scope(|scope| {
            (0..threads).for_each(|thread| drop(scope.spawn(move || work(thread))));
        });
        assert_eq!(table.displaced(), 0);
        let mut there: Vec<_> = table.iter().map(|client| client.fingerprint).collect();
        there.sort_unstable();
        assert!(
            there.windows(2).all(|two| two[0] != two[1]),
            "a key in two slots: {there:x?}"
        );
        for name in 0..KEYS {
            let [asked, admitted, resets] =
                [&asked, &admitted, &resets].map(|counts| counts[name].load(Relaxed));
            assert!(
                admitted <= QUOTA * (1 + resets),
                "{name}: {admitted} after {resets} resets"
            );
            assert!(
                admitted >= asked.min(QUOTA),
                "{name}: {admitted} of {asked}"
            );
        }
    }
}
