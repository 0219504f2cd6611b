//! Decisions on clients whose states fit no word; see `overflow.rs`.

use std::vec::Vec;

use super::by_rank::ByRank;
use super::clients::{Clients, Kept};
use super::overflow::Overflow;
use super::states::{States, Under};
use super::table::{Change, KeyHash, Table};
use crate::algorithm::{Limit, State};
use crate::clock::Nanos;

impl Clients {
    /// Updates a client as [`update`](Self::update) does, if its state before or after fits no word.
    #[cold]
    pub(super) fn update_overflow<R>(
        &self,
        (table, overflow): (&Table, &Overflow),
        key: KeyHash,
        limit: &Limit,
        now: Nanos,
        decide: &impl Fn(Option<State>) -> (Option<State>, R),
    ) -> R {
        let mut shard = overflow.states().lock_of(key);
        let kept = shard.state_of(key);
        let update = |word: Option<_>| {
            let state = word.and_then(|word| limit.state_of(word).or_else(|| kept.clone()));
            let (after, answer) = decide(state);
            let word = |state: &State| limit.word(state).or_else(|| limit.mark(state));
            let change = after
                .as_ref()
                .and_then(word)
                .map_or(Change::Remove, Change::Store);
            (change, (after, answer))
        };
        let (after, answer) = table.update_anywhere(key, ByRank(limit, now), update);
        let after = after.filter(|state| limit.word(state).is_none());
        shard.update(key, Under::Only(limit), now, |_| (after, ()));
        answer
    }

    /// Returns the state of a client whose entry in the table was a mark.
    pub(super) fn state_in_overflow(
        &self,
        table: &Table,
        key: KeyHash,
        limit: &Limit,
    ) -> Option<State> {
        let shard = self.overflow.as_ref()?.get()?.lock_of(key);
        limit
            .state_of(table.get(key)?)
            .or_else(|| shard.state_of(key))
    }

    /// Removes the clients that have a state in the map, and returns their number.
    pub(super) fn clear_overflow(&self, table: &Table, limit: &Limit, now: Nanos) -> usize {
        let Some(states) = self.states_beside_words() else {
            return 0;
        };
        let keys = states
            .each()
            .flat_map(|shard| shard.keys())
            .collect::<Vec<_>>();
        let is_stored = |key: &KeyHash| table.get(*key).is_some();
        let reset = |key| self.reset(key, limit, now);
        keys.into_iter().filter(is_stored).map(reset).count()
    }

    /// Returns the map of the states that fit no word, if there are any.
    pub(super) fn states_beside_words(&self) -> Option<&States> {
        match &self.kept {
            Kept::Words(_) => self.overflow.as_ref()?.get(),
            Kept::States(_) => None,
        }
    }
}

#[cfg(test)]
#[path = "marked_tests.rs"]
mod tests;
