//! Model checks of reservations that hold places of a concurrency limit: every interleaving of threads
//! that commit, renew, expire and reserve. Two tests break the order of the steps, and show that the
//! model then finds places that are given back twice or never.

use core::time::Duration;
use std::vec::Vec;

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{HeldPart, HeldParts, Hold, Shard};
use crate::algorithm::{Limit, Mode, State};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::engine::RuleId;
use crate::held::Held;
use crate::hold_id::HoldId;
use crate::rule::Rule;
use crate::rules::reserve::Reserved;
use crate::store::live::LiveHolds;
use crate::store::table::KeyHash;

const START: Nanos = Nanos::from_secs(1_800_000_000);
const TTL: Duration = Duration::from_secs(60);
const ID: HoldId = HoldId::from_bits(7);

/// The reservations and the state of their client, each behind its lock as in the engine, and the steps of
/// the engine on them. If `MARKS_FIRST` is false, a commit gives the places back before it marks the
/// reservation as committed; if `KEEPS_LOCK` is false, a renewal moves the places without the lock of the
/// reservation.
struct Model<const MARKS_FIRST: bool, const KEEPS_LOCK: bool> {
    limit: Limit,
    holds: Mutex<Shard>,
    state: Mutex<Option<State>>,
}

/// The engine's order.
type Ordered = Model<true, true>;

impl<const MARKS_FIRST: bool, const KEEPS_LOCK: bool> Model<MARKS_FIRST, KEEPS_LOCK> {
    /// Returns a model of three places. `others` of them are taken for good, and one by a reservation,
    /// all at the same instant.
    fn new(others: u64) -> Arc<Self> {
        let rule: Rule = "concurrent 3 timeout=60s".parse().unwrap();
        let limit = *rule.limit();
        let all = Cost::from_units(others + 1);
        let state = limit.step(None, START, all, Mode::Charge).0;
        let live = LiveHolds::default().reserve(1, Cost::ONE, 1, 0).unwrap();
        let reserved = Reserved {
            held: Held::new(START, Cost::ONE, TTL),
            live,
            is_stored: true,
        };
        let part = HeldPart {
            rule: RuleId(0),
            name: 0,
            key: KeyHash::from_bits(1),
            reserved,
            record: None,
        };
        let mut holds = Shard::default();
        let hold = Hold::new(HeldParts::from_elem(part, 1), START + TTL);
        holds.insert(ID, hold);
        Arc::new(Self {
            limit,
            holds: Mutex::new(holds),
            state: Mutex::new(state),
        })
    }

    fn reserve(&self, now: Nanos) -> bool {
        let mut state = self.state.lock().unwrap();
        let (after, decision) = self.limit.decide(state.take(), now, Cost::ONE, Mode::Check);
        *state = after;
        decision.allowed
    }

    fn give_back(&self, held: &Held, now: Nanos) {
        let mut state = self.state.lock().unwrap();
        *state = self.limit.commit(state.take(), now, held, Cost::ONE);
    }

    fn move_places(&self, held: &Held, now: Nanos) -> bool {
        let mut state = self.state.lock().unwrap();
        let (after, is_moved) = self.limit.renew(state.take(), now, held);
        *state = after;
        is_moved
    }

    /// Returns the charge of the reservation if that is live.
    fn held(&self, now: Nanos) -> Option<Held> {
        let mut held = None;
        self.holds.lock().unwrap().renew(ID, now, |parts| {
            held = Some(parts[0].reserved.held);
            None
        });
        held
    }

    /// Marks the reservation as committed, and calls `first` if it was not before. An expired
    /// reservation is unknown, and nothing is done.
    fn mark(&self, now: Nanos, first: impl FnOnce(&Held)) {
        let commit = |parts: &[HeldPart], repeated: bool| {
            if !repeated {
                first(&parts[0].reserved.held);
            }
            Ok(())
        };
        let _unknown = self.holds.lock().unwrap().commit(ID, now, commit);
    }

    fn commit(&self, now: Nanos) {
        if MARKS_FIRST {
            self.mark(now, |held| self.give_back(held, now));
        } else if let Some(held) = self.held(now) {
            self.give_back(&held, now);
            self.mark(now, |_| ());
        }
    }

    fn renew(&self, now: Nanos) {
        if KEEPS_LOCK {
            self.holds.lock().unwrap().renew(ID, now, |parts| {
                let is_moved = self.move_places(&parts[0].reserved.held, now);
                parts[0].reserved.held.at = now;
                is_moved.then_some(now + TTL)
            });
        } else if let Some(held) = self.held(now) {
            let is_moved = self.move_places(&held, now);
            self.holds.lock().unwrap().renew(ID, now, |parts| {
                parts[0].reserved.held.at = now;
                is_moved.then_some(now + TTL)
            });
        }
    }

    fn expire(&self, now: Nanos) {
        let mut expired = Vec::new();
        self.holds
            .lock()
            .unwrap()
            .expire(now, |parts| expired.push(parts));
        expired
            .iter()
            .for_each(|parts| self.give_back(&parts[0].reserved.held, now));
    }

    fn free(&self, now: Nanos) -> u64 {
        let state = self.state.lock().unwrap().clone();
        self.limit
            .step(state, now, Cost::ONE, Mode::Peek)
            .2
            .remaining
    }
}

fn after(secs: u64) -> Nanos {
    START + Duration::from_secs(secs)
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Runs each step in a thread of its own.
fn race<M: Send + Sync + 'static>(model: &Arc<M>, steps: &[fn(&M)]) {
    let run = |step: &fn(&M)| {
        let model = Arc::clone(model);
        let step = *step;
        thread::spawn(move || step(&model))
    };
    let threads: Vec<_> = steps.iter().map(run).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

fn a_renewal_meets_a_commit<const KEEPS_LOCK: bool>() {
    let model = Model::<true, KEEPS_LOCK>::new(0);
    race(
        &model,
        &[
            |model| model.renew(after(1)),
            |model| model.commit(after(1)),
        ],
    );
    assert_eq!(model.free(after(1)), 3);
}

fn two_commits_meet<const MARKS_FIRST: bool>() {
    let model = Model::<MARKS_FIRST, true>::new(1);
    race(
        &model,
        &[
            |model| model.commit(after(1)),
            |model| model.commit(after(1)),
        ],
    );
    assert_eq!(model.free(after(1)), 2);
}

#[test]
fn a_renewed_place_is_given_back() {
    explore(a_renewal_meets_a_commit::<true>);
}

#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn a_renewal_without_the_lock_of_the_reservation_loses_a_place() {
    explore(a_renewal_meets_a_commit::<false>);
}

#[test]
fn a_place_is_given_back_once() {
    explore(two_commits_meet::<true>);
}

#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn a_commit_that_marks_last_gives_back_the_place_of_another() {
    explore(two_commits_meet::<false>);
}

/// The clocks of the threads differ: the reservation has expired for one, and is live for the others.
#[test]
fn an_expiry_a_commit_and_a_renewal_end_one_reservation() {
    explore(|| {
        let model = Ordered::new(0);
        let steps: [fn(&Ordered); 3] = [
            |model| model.commit(after(59)),
            |model| model.renew(after(59)),
            |model| model.expire(after(60)),
        ];
        race(&model, &steps);
        assert_eq!(model.free(after(60)), 3);
    });
}

#[test]
fn no_more_than_the_bound_are_reserved_while_one_is_committed() {
    explore(|| {
        let model = Ordered::new(1);
        let reserve = |model: &Arc<Ordered>| {
            let model = Arc::clone(model);
            thread::spawn(move || model.reserve(after(1)))
        };
        let threads = [reserve(&model), reserve(&model)];
        model.commit(after(1));
        let reserved = threads.map(|thread| u64::from(thread.join().unwrap()));
        let reserved: u64 = reserved.iter().sum();
        assert!(reserved >= 1);
        assert_eq!(model.free(after(1)), 2 - reserved);
    });
}
