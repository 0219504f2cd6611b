//! A walk over all clients of a store, in steps that no request waits for.

use std::thread;

use super::clients::{Clients, Kept};
use super::states::States;
use super::table::{KeyHash, Word};
use crate::algorithm::{Limit, Mode, State};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::decision::Figures;

/// The number of slots of a table between two offers of the processor to other threads: about a
/// tenth of a millisecond.
const STEP: usize = 4096;

/// A client that a walk passes.
pub(crate) struct Passed {
    /// The fingerprint of the client's key.
    pub(crate) fingerprint: u64,
    /// The client's usage relative to the limit, 1 at the limit.
    pub(crate) usage: f64,
    pub(crate) held: StateRef,
}

/// The state of a client, or the key under which its store has it.
#[derive(Clone, Copy)]
pub(crate) enum StateRef {
    Word(Word),
    Key(KeyHash),
}

impl Clients {
    /// Calls `visit` for every client. Clients that come, go or move to another store during the
    /// walk may be missed.
    ///
    /// A table is read without locks. A map is locked shard by shard, as for an insertion that
    /// makes the shard grow, and loses the clients whose state no longer counts.
    pub(crate) fn walk(&self, limit: &Limit, now: Nanos, mut visit: impl FnMut(Passed)) {
        match &self.kept {
            Kept::Words(table) => {
                for (nth, client) in table.slots().enumerate() {
                    if nth % STEP == STEP - 1 {
                        thread::yield_now();
                    }
                    let Some(client) = client else { continue };
                    let mut state = limit.state_of(client.word);
                    if state.is_none() {
                        continue; // its state is in the map beside the table
                    }
                    visit(Passed {
                        fingerprint: client.fingerprint,
                        usage: limit.usage(&mut state, now),
                        held: StateRef::Word(client.word),
                    });
                }
            }
            Kept::States(states) => return walk_states(states, limit, now, visit),
        }
        if let Some(beside) = self.states_beside_words() {
            walk_states(beside, limit, now, visit);
        }
    }

    /// Returns the figures of a client that a walk passed, for a request of cost 1, and true if
    /// that request would be allowed. Returns `None` if the client has gone meanwhile.
    pub(crate) fn figures(
        &self,
        held: StateRef,
        limit: &Limit,
        now: Nanos,
        convert: impl FnOnce(State) -> Option<State>,
        to: &Limit,
    ) -> Option<(bool, Figures)> {
        let peek = |state| {
            let (_, allowed, figures) = to.step(state, now, Cost::ONE, Mode::Peek);
            (allowed, figures)
        };
        match held {
            StateRef::Word(word) => Some(peek(convert(limit.state_of(word)?))),
            StateRef::Key(key) => {
                let copy = |state: Option<State>| (state.clone(), state);
                Some(peek(convert(self.inspect(key, limit, now, copy)??)))
            }
        }
    }
}

fn walk_states(states: &States, limit: &Limit, now: Nanos, mut visit: impl FnMut(Passed)) {
    for mut shard in states.each() {
        shard.walk(limit, now, |key, usage| {
            let (fingerprint, held) = (key.fingerprint(), StateRef::Key(key));
            visit(Passed { fingerprint, usage, held });
        });
        drop(shard);
        thread::yield_now();
    }
}
