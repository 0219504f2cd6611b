//! Model checks of the table's protocol: every interleaving, up to a number of preemptions, of
//! threads that insert, update, evict and reset. One test leaves out the rescan and shows that the
//! model then finds a key in two slots.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::Change;
use super::entry::{Entry, MIN_WORD, Word};
use super::hash::KeyHash;
use super::insert::Claim;
use super::raw::RawTable;
use super::slot::Slot;

/// A slot whose accesses the model checker sees. Each half is read by a separate step.
struct ModelSlot<const RESCANS: bool>(Mutex<Entry>);

impl<const RESCANS: bool> Slot for ModelSlot<RESCANS> {
    const RESCANS: bool = RESCANS;

    fn vacant() -> Self {
        Self(Mutex::new(Entry::EMPTY))
    }

    fn high(&self) -> u64 {
        self.load().high
    }

    fn low(&self) -> u64 {
        self.load().low
    }

    fn load(&self) -> Entry {
        *self.0.lock().unwrap()
    }

    fn swap(&self, seen: Entry, new: Entry) -> Result<(), Entry> {
        let mut slot = self.0.lock().unwrap();
        if *slot != seen {
            return Err(*slot);
        }
        *slot = new;
        Ok(())
    }
}

/// A table of two sets with one line each, so that every key may be in every slot. Lines of one slot have no slot
/// that only claims fill; lines of two have one.
type Model<const RESCANS: bool, const LINE: usize = 1> = RawTable<ModelSlot<RESCANS>, LINE, 1>;

/// The operation of one thread of a model.
type Operation<const RESCANS: bool, T, const LINE: usize = 1> =
    Box<dyn FnOnce(&Model<RESCANS, LINE>) -> T + Send>;

/// A word that is lower than every word the tests store.
const IDLE: Word = MIN_WORD;

/// Returns a key whose search begins in the given set.
fn key(fingerprint: u64, set: u64) -> KeyHash {
    KeyHash::from_bits(fingerprint | (set << 63))
}

fn count<const R: bool, const L: usize>(table: &Model<R, L>, key: KeyHash) -> Word {
    table.update(
        key,
        || IDLE,
        |word| {
            let count = word.unwrap_or(0) + 1;
            (Change::Store(count), count)
        },
    )
}

/// Returns the committed words of a key. More than one word is the error that these tests look for.
fn words<const R: bool, const L: usize>(table: &Model<R, L>, key: KeyHash) -> Vec<Word> {
    table
        .entries(0..table.lines.slots())
        .filter(|entry| entry.fingerprint() == key.fingerprint())
        .map(Entry::word)
        .collect()
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Returns a table in which other clients occupy both slots.
fn full_table<const R: bool>(first: Word, second: Word) -> Arc<Model<R>> {
    let table = Arc::new(Model::of_sets(2).unwrap());
    for (fingerprint, word) in [(101, first), (103, second)] {
        table.update(key(fingerprint, 0), || IDLE, |_| (Change::Store(word), ()));
    }
    table
}

/// Runs each operation in a thread of its own, and returns the results.
fn race<const R: bool, const L: usize, T: Send + 'static>(
    table: &Arc<Model<R, L>>,
    operations: Vec<Operation<R, T, L>>,
) -> Vec<T> {
    let threads: Vec<_> = operations
        .into_iter()
        .map(|operation| {
            let table = Arc::clone(table);
            thread::spawn(move || operation(&table))
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

fn counting<const R: bool, const L: usize>(key: KeyHash) -> Operation<R, Word, L> {
    Box::new(move |table| count(table, key))
}

/// Removes a client, and returns its word or 0.
fn removing<const R: bool, const L: usize>(key: KeyHash) -> Operation<R, Word, L> {
    Box::new(move |table| table.update(key, || IDLE, |word| (Change::Remove, word.unwrap_or(0))))
}

/// The first slot of the key is freed between the searches of two threads, so the threads choose
/// different victims.
fn a_slot_is_freed_while_two_threads_claim<const R: bool>() {
    let table = full_table::<R>(10, 20);
    let other = key(102, 0);
    let newcomer = key(7, 0);
    race(
        &table,
        vec![removing(other), counting(newcomer), counting(newcomer)],
    );
    assert_eq!(words(&table, newcomer), [2]);
}

#[test]
fn an_absent_key_is_counted_once() {
    explore(3, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 0);
        race(&table, vec![counting(key), counting(key)]);
        assert_eq!(words(&table, key), [2]);
    });
}

#[test]
fn three_threads_meet_an_absent_key() {
    explore(2, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 1);
        race(&table, vec![counting(key), counting(key), counting(key)]);
        assert_eq!(words(&table, key), [3]);
    });
}

#[test]
fn a_newcomer_to_a_full_table_is_counted_once() {
    explore(3, || {
        let table = full_table::<true>(10, 20);
        let key = key(7, 0);
        race(&table, vec![counting(key), counting(key)]);
        assert_eq!(words(&table, key), [2]);
    });
}

#[test]
fn a_freed_slot_does_not_divide_a_key() {
    explore(2, a_slot_is_freed_while_two_threads_claim::<true>);
}

#[test]
#[should_panic(expected = "left: [1, 1]")]
fn without_the_rescan_the_model_finds_a_key_in_two_slots() {
    explore(2, a_slot_is_freed_while_two_threads_claim::<false>);
}

/// Three threads have found a key absent and are at different points of its insertion. The first
/// has claimed the higher slot and rescanned; the second has then claimed the lower slot; the third
/// saw both slots free earlier, and claims the higher slot once it is free again.
fn three_threads_claim_with_numbers(numbers: [u64; 3]) {
    let table = Arc::new(Model::<true>::of_sets(2).unwrap());
    let key = key(7, 0);
    let [first, second, third] = numbers.map(|number| Entry::claim(key.fingerprint(), number));
    table.lines.slot(1).swap(Entry::EMPTY, first).unwrap();
    table.lines.slot(0).swap(Entry::EMPTY, second).unwrap();
    let state = Entry::new(key.fingerprint(), 1);
    let commit = move |table: &Model<true>| table.lines.slot(1).swap(first, state).is_ok();
    let finish = move |table: &Model<true>| {
        table.finish(
            key,
            1,
            &Claim {
                place: 0,
                entry: second,
            },
        )
    };
    let claim = move |table: &Model<true>| {
        let seen = Claim {
            place: 1,
            entry: third,
        };
        table.lines.slot(1).swap(Entry::VACATED, third).is_ok() && table.finish(key, 1, &seen)
    };
    race(
        &table,
        vec![Box::new(commit), Box::new(finish), Box::new(claim)],
    );
    assert!(words(&table, key).len() < 2, "a key in two slots");
}

/// Two processes that share the counters of a mapped table number their claims like this.
#[test]
fn with_shared_counters_a_key_is_in_one_slot() {
    explore(3, || three_threads_claim_with_numbers([1, 2, 3]));
}

/// Two processes with counters of their own would number their claims like this: the first and the
/// third claim are each the first of a process.
#[test]
#[should_panic(expected = "a key in two slots")]
fn with_counters_of_each_process_the_model_finds_a_key_in_two_slots() {
    explore(3, || three_threads_claim_with_numbers([1, 2, 1]));
}

#[test]
fn updates_of_a_present_key_are_all_counted() {
    explore(3, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 0);
        count(&table, key);
        race(&table, vec![counting(key), counting(key)]);
        assert_eq!(words(&table, key), [3]);
    });
}

/// Three keys compete for two slots. Each key ends in at most one slot, and each request is
/// counted.
#[test]
fn evictions_leave_no_key_twice() {
    explore(2, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let keys = [key(7, 0), key(9, 1), key(11, 0)];
        let counts = race(&table, keys.map(|key| counting(key)).into());
        assert_eq!(counts, [1, 1, 1]);
        assert!(keys.iter().all(|key| words(&table, *key).len() <= 1));
        assert!(keys.iter().any(|key| words(&table, *key) == [1]));
    });
}

/// Two threads count a new key while another thread removes the client of the first slot and lets a third client
/// into the table: insertion, removal, eviction and the reuse of a slot in one history, in each state of the table:
/// with never-used slots in the key's sequence, with none left but in the last slots of the lines, and full.
fn a_key_meets_removal_eviction_and_reuse<const L: usize>(used: usize) {
    let table = Arc::new(Model::<true, L>::of_sets(2).unwrap());
    let removed = key(101, 0);
    for place in 0..used {
        let entry = Entry::new(101 + 2 * place as u64, 10 + place as Word);
        table.lines.slot(place).swap(Entry::EMPTY, entry).unwrap();
    }
    let newcomer = key(7, 0);
    let third = key(9, 0);
    let reuse = move |table: &Model<true, L>| {
        table.update(removed, || IDLE, |_| (Change::Remove, ()));
        count(table, third)
    };
    race(
        &table,
        vec![Box::new(reuse), counting(newcomer), counting(newcomer)],
    );
    let counted = words(&table, newcomer);
    assert!(counted.len() <= 1, "a key in two slots: {counted:?}");
    // The key is lost only if the third client evicted it from a table without room for both.
    let has_room = used < 2 * L;
    assert!(!has_room || counted == [2], "{counted:?}");
    assert!(words(&table, third).len() <= 1);
}

#[test]
fn removal_eviction_and_reuse_divide_no_key_in_lines_of_one_slot() {
    for used in 0..=2 {
        explore(2, move || a_key_meets_removal_eviction_and_reuse::<1>(used));
    }
}

#[test]
fn removal_eviction_and_reuse_divide_no_key_beside_last_slots() {
    for used in 0..=4 {
        explore(2, move || a_key_meets_removal_eviction_and_reuse::<2>(used));
    }
}

#[test]
fn a_reset_forgets_what_was_counted_before_it() {
    explore(3, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 0);
        count(&table, key);
        let answers = race(&table, vec![removing(key), counting(key)]);
        let left = words(&table, key).iter().sum::<Word>();
        // The word that the reset removed and the word that is left add up to everything that was
        // counted.
        assert_eq!(answers[0] + left, 2);
    });
}

#[test]
fn a_cleared_table_has_nothing_that_was_counted_before() {
    explore(3, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 0);
        count(&table, key);
        let clear: Operation<true, Word> =
            Box::new(|table| table.change_all(|_| Entry::EMPTY) as Word);
        let answers = race(&table, vec![clear, counting(key)]);
        assert!(answers[0] >= 1, "the state from before was removed");
        // A request that was counted together with those from before is forgotten with them.
        let counted_after = answers[1] % 2;
        assert!(words(&table, key).iter().sum::<Word>() <= counted_after);
    });
}

/// A reader never combines the halves of two different words.
#[test]
fn a_reader_sees_no_half_changed_word() {
    explore(3, || {
        let before = 1;
        let after = (1 << 64) + 2;
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 0);
        let store = move |word| {
            move |table: &Model<true>| table.update(key, || IDLE, |_| (Change::Store(word), None))
        };
        store(before)(&table);
        let reading =
            move |table: &Model<true>| table.update(key, || IDLE, |word| (Change::Keep, word));
        let seen = race(&table, vec![Box::new(store(after)), Box::new(reading)]);
        assert!([Some(before), Some(after)].contains(&seen[1]), "{seen:?}");
    });
}

/// A wrong way to count: one step reads the state, a later step writes it.
fn read_then_write(table: &Model<true>, key: KeyHash) -> Word {
    let count = table.update(key, || IDLE, |word| (Change::Keep, word.unwrap_or(0))) + 1;
    table.update(key, || IDLE, move |_| (Change::Store(count), count))
}

#[test]
#[should_panic(expected = "left: [1, 1]")]
fn the_model_finds_that_reading_and_then_writing_loses_a_request() {
    explore(2, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 0);
        let racing = || -> Operation<true, Word> { Box::new(move |t| read_then_write(t, key)) };
        let mut counts = race(&table, vec![racing(), racing()]);
        counts.sort_unstable();
        assert_eq!(counts, [1, 2]);
    });
}

/// A claim that a killed process left behind is taken over.
#[test]
fn an_abandoned_claim_is_finished_by_whoever_meets_it() {
    explore(3, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 0);
        let abandoned = Entry::claim(key.fingerprint(), 1 << 40);
        for (place, entry) in [(0, Entry::VACATED), (1, abandoned)] {
            table.lines.slot(place).swap(Entry::EMPTY, entry).unwrap();
        }
        race(&table, vec![counting(key), counting(key)]);
        assert_eq!(words(&table, key), [2]);
        assert!((0..2).all(|place| !table.lines.slot(place).load().is_claim()));
    });
}

/// A claim of a key whose state is in another slot: the claiming thread scanned before that state
/// was committed and has not yet withdrawn its claim.
#[test]
fn a_claim_does_not_hide_the_state_behind_it() {
    explore(1, || {
        let table = Arc::new(Model::<true>::of_sets(2).unwrap());
        let key = key(7, 0);
        table
            .lines
            .slot(0)
            .swap(Entry::EMPTY, Entry::claim(key.fingerprint(), 1))
            .unwrap();
        table
            .lines
            .slot(1)
            .swap(Entry::EMPTY, Entry::new(key.fingerprint(), 5))
            .unwrap();
        assert_eq!(
            table.update(key, || IDLE, |word| (Change::Keep, word)),
            Some(5)
        );
        assert_eq!(
            table.update(key, || IDLE, |word| (Change::Remove, word)),
            Some(5)
        );
        assert_eq!(words(&table, key), []);
    });
}
