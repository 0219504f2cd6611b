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
    /// The rate that the limit allows, in cost units per second.
    pub(crate) per_second: f64,
    pub(crate) held: StateRef,
}

/// The state of a client, or the key under which its store has it.
#[derive(Clone, Copy)]
pub(crate) enum StateRef {
    Word(Word),
    Key(KeyHash),
}

impl Clients {
    /// Calls `visit` for every client, in a store that rules share under the client's own limit. Clients that
    /// come or go during the walk may be missed.
    ///
    /// A table is read without locks. A map is locked shard by shard, as for an insertion that
    /// makes the shard grow, and loses the clients whose state no longer counts.
    pub(crate) fn walk(&self, limit: &Limit, now: Nanos, mut visit: impl FnMut(Passed)) {
        match &self.kept {
            Kept::Words(table) => {
                let per_second = limit.per_second();
                for (nth, client) in table.slots().enumerate() {
                    if nth % STEP == STEP - 1 {
                        thread::yield_now();
                    }
                    let Some(client) = client else { continue };
                    let mut state = limit.state_of(client.word);
                    visit(Passed {
                        fingerprint: client.fingerprint,
                        usage: limit.usage(&mut state, now),
                        per_second,
                        held: StateRef::Word(client.word),
                    });
                }
            }
            Kept::States(states) => walk_states(states, limit, now, visit),
        }
    }

    /// Returns the figures of a client that a walk passed, for a request of cost 1, and true if
    /// that request would be allowed. In a store that rules share, they are those of the client's own limit.
    /// Returns `None` if the client has gone meanwhile.
    pub(crate) fn figures(
        &self,
        held: StateRef,
        limit: &Limit,
        now: Nanos,
    ) -> Option<(bool, Figures)> {
        let peek = |state, limit: &Limit| {
            let (_, allowed, figures) = limit.step(Some(state), now, Cost::ONE, Mode::Peek);
            (allowed, figures)
        };
        match (held, &self.kept) {
            (StateRef::Word(word), _) => Some(peek(limit.state_of(word)?, limit)),
            // Inspecting the state under another limit would carry it over to that limit.
            (StateRef::Key(key), Kept::States(states)) if states.is_shared() => {
                let (state, own) = states.shared_state(key)?;
                Some(peek(state, &own))
            }
            (StateRef::Key(key), _) => {
                let copy = |state: Option<State>| (state.clone(), state);
                Some(peek(self.inspect(key, limit, now, copy)?, limit))
            }
        }
    }
}

fn walk_states(states: &States, limit: &Limit, now: Nanos, mut visit: impl FnMut(Passed)) {
    for mut shard in states.each() {
        shard.walk(limit, now, |key, limit, usage| {
            let fingerprint = key.fingerprint();
            let per_second = limit.per_second();
            visit(Passed {
                fingerprint,
                usage,
                per_second,
                held: StateRef::Key(key),
            });
        });
        drop(shard);
        thread::yield_now();
    }
}
