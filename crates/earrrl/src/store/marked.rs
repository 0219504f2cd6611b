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
    ) -> Option<R> {
        let mut shard = overflow.states().lock_of(key);
        let kept = shard.state_of(key);
        let update = |word: Option<_>| {
            // A sealed table stores no new mark, so that all marks are moved by the first sweep.
            if table.is_sealed() {
                return (Change::Keep, None);
            }
            let state = word.and_then(|word| limit.state_of(word).or_else(|| kept.clone()));
            let (after, answer) = decide(state);
            let word = |state: &State| limit.word(state).or_else(|| limit.mark(state));
            let change = after
                .as_ref()
                .and_then(word)
                .map_or(Change::Remove, Change::Store);
            (change, Some((after, answer)))
        };
        let (after, answer) = table.update_anywhere(key, ByRank(limit, now), update)?;
        let after = after.filter(|state| limit.word(state).is_none());
        shard.update(key, Under::Only(limit), now, |_| (after, ()));
        Some(answer)
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

    /// Removes a client from a sealed table, and from the map beside it.
    pub(super) fn take_word(&self, table: &Table, key: KeyHash, limit: &Limit) -> Option<State> {
        let word = table.take(key);
        let beside = self.overflow.as_ref().and_then(Overflow::get);
        let kept = beside.and_then(|states| states.lock_of(key).remove(key));
        limit.state_of(word?).or(kept)
    }

    /// Removes the clients that have a state in the map, and returns their keys and states. No other
    /// thread may decide at the same time.
    pub(super) fn take_overflow(&self, table: &Table, limit: &Limit) -> Vec<(KeyHash, State)> {
        let Some(states) = self.overflow.as_ref().and_then(Overflow::get) else {
            return Vec::new();
        };
        let keys_of = |shard| core::iter::from_fn(move || states.lock(shard).longest_idle());
        let taken = |key| Some((key, self.take_word(table, key, limit)?));
        let of_shard = |shard| keys_of(shard).map(taken);
        states.indices().flat_map(of_shard).flatten().collect()
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
        keys.into_iter().filter(is_stored).filter_map(reset).count()
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
