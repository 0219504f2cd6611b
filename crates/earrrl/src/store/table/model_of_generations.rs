//! Model checks of the move of a client between two generations of a file, by processes that may be
//! stopped or killed at every step; see `frozen.rs`.

use loom::sync::Arc;
use loom::thread;

use super::Change;
use super::entry::Word;
use super::hash::KeyHash;
use super::model::{IDLE, ModelSlot, count_in, entries, explore, key};
use super::raw::RawTable;
use super::slot::Slot;

/// Two generations of a file. Clients move from the earlier to the later one.
struct Generations<S> {
    earlier: RawTable<S, 1, 1>,
    later: RawTable<S, 1, 1>,
}

/// The step after which a process dies that moves a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Killed {
    AfterSeal,
    AfterFreeze,
    AfterReceive,
    Never,
}

impl<S: Slot> Generations<S> {
    /// Returns two generations, in the earlier of which the key was counted `counted` times.
    fn new(counted: Word, key: KeyHash) -> Arc<Self> {
        let earlier = RawTable::new(2).unwrap();
        let later = RawTable::new(2).unwrap();
        assert!((0..counted).all(|_| count_in(&earlier, key).is_some()));
        Arc::new(Self { earlier, later })
    }

    /// Moves the key to the later generation, as `store/follow.rs` does.
    fn receive(&self, key: KeyHash, killed: Killed) {
        if self
            .later
            .update(key, || IDLE, |word| (Change::Keep, word))
            .is_some()
        {
            return;
        }
        let Some(word) = self.earlier.freeze(key) else {
            return;
        };
        if killed == Killed::AfterFreeze {
            return;
        }
        let store = |there: Option<Word>| (Change::Store(there.unwrap_or(word)), ());
        self.later.update(key, || IDLE, store);
        if killed != Killed::AfterReceive {
            self.earlier.clear_frozen(key);
        }
    }

    /// Counts a request of a process that uses the later generation.
    fn count(&self, key: KeyHash) {
        self.receive(key, Killed::Never);
        count_in(&self.later, key);
    }

    /// Counts a request of a process that uses the earlier generation, and follows if that is sealed.
    fn count_earlier(&self, key: KeyHash) {
        if count_in(&self.earlier, key).is_none() {
            self.count(key);
        }
    }

    /// Makes the later generation, and dies at a step.
    fn succeed(&self, key: KeyHash, killed: Killed) {
        self.earlier.seal();
        if killed != Killed::AfterSeal {
            self.receive(key, killed);
        }
    }

    fn succeed_and_count(&self, key: KeyHash) {
        self.earlier.seal();
        self.earlier.freeze_all();
        self.count(key);
    }
}

/// The work of one process on the generations.
type Process<S> = Box<dyn FnOnce(&Generations<S>) + Send>;

/// Runs each process in a thread of its own.
fn race<S: Slot + Send + 'static>(generations: &Arc<Generations<S>>, processes: Vec<Process<S>>) {
    let start = |process: Process<S>| {
        let generations = Arc::clone(generations);
        thread::spawn(move || process(&generations))
    };
    let threads: Vec<_> = processes.into_iter().map(start).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// A process makes the later generation while `earlier` others count in the earlier one.
fn a_file_gets_a_successor<S: Slot + Send + 'static>(counted: Word, earlier: usize) {
    let key = key(7, 0);
    let generations = Generations::<S>::new(counted, key);
    let mut processes: Vec<Process<S>> = vec![Box::new(move |all| all.succeed_and_count(key))];
    let count = || -> Process<S> { Box::new(move |all| all.count_earlier(key)) };
    processes.extend((0..earlier).map(|_| count()));
    race(&generations, processes);
    assert_eq!(
        entries(&generations.later),
        [counted + 1 + earlier as Word],
        "one count of all"
    );
    assert_eq!(entries(&generations.earlier), []);
}

#[test]
fn a_client_moves_whole_without_a_lock() {
    explore(3, || a_file_gets_a_successor::<ModelSlot<true>>(1, 1));
}

#[test]
fn a_newcomer_is_in_one_generation() {
    explore(3, || a_file_gets_a_successor::<ModelSlot<true>>(0, 1));
}

#[test]
fn two_processes_follow_a_client() {
    explore(2, || a_file_gets_a_successor::<ModelSlot<true>>(1, 2));
}

#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn without_a_look_at_the_seal_a_client_is_left_behind() {
    explore(3, || {
        a_file_gets_a_successor::<ModelSlot<true, false>>(0, 1)
    });
}

/// A process that follows to a later generation seals the earlier one, since the process that made the
/// later one may not have done that yet.
#[test]
#[should_panic(expected = "one count of all")]
fn without_a_seal_by_the_follower_a_count_is_lost() {
    explore(3, || {
        let key = key(7, 0);
        let generations = Generations::<ModelSlot<true>>::new(1, key);
        race(
            &generations,
            vec![
                Box::new(move |all| all.count(key)),
                Box::new(move |all| all.count_earlier(key)),
            ],
        );
        assert_eq!(entries(&generations.later), [3], "one count of all");
    });
}

/// A process dies while it makes the later generation, another one still uses the earlier one, and a third
/// one opens the file afterwards.
#[test]
fn a_process_may_die_at_every_step() {
    for killed in [
        Killed::AfterSeal,
        Killed::AfterFreeze,
        Killed::AfterReceive,
        Killed::Never,
    ] {
        explore(3, move || {
            let key = key(7, 0);
            let generations = Generations::<ModelSlot<true>>::new(1, key);
            race(
                &generations,
                vec![
                    Box::new(move |all| all.succeed(key, killed)),
                    Box::new(move |all| all.count_earlier(key)),
                ],
            );
            generations.count(key);
            assert_eq!(entries(&generations.later), [3]);
        });
    }
}

/// A state that is taken out before it is stored elsewhere dies with the process.
#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn without_freezing_a_dying_process_loses_a_client() {
    explore(1, || {
        let key = key(7, 0);
        let generations = Generations::<ModelSlot<true>>::new(1, key);
        race(
            &generations,
            vec![Box::new(move |all| {
                all.earlier.seal();
                all.earlier.take(key); // and dies
            })],
        );
        generations.count(key);
        assert_eq!(entries(&generations.later), [2]);
    });
}
