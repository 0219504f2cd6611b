//! Stores in files of which there are several generations: their clients move to the latest one when
//! they are met, and processes that use an earlier one go on in the latest one.

use std::boxed::Box;

use super::clients::{Clients, Kept, Next, Updated};
use super::file::predecessor::{clear, freeze};
use super::file::{StateError, StateFile};
use super::states::{States, View};
use super::table::{KeyHash, Table};
use crate::algorithm::{Limit, State};
use crate::clock::Nanos;
use crate::rule::Rule;

impl Clients {
    /// Seals the earlier generations of the file, if there are any. To be called once this process
    /// decides requests in this store only.
    pub(crate) fn begin(&self, now: Nanos) {
        if let Some(file) = self.file() {
            file.begin(now);
        }
    }

    /// Returns true if a client that is not in the table of this file may be in the file of another
    /// generation.
    pub(crate) fn is_moving(&self, table: &Table) -> bool {
        self.file()
            .is_some_and(|file| table.is_sealed() || file.predecessors().is_some())
    }

    /// Returns true if the file has a successor, in which requests go on.
    pub(crate) fn is_succeeded(&self) -> bool {
        self.file().is_some() && self.table().is_some_and(Table::is_sealed)
    }

    /// Moves a client from an earlier generation of the file, if it is there and not here. A state that means
    /// nothing under this limit, of another algorithm for example, is removed if `is_request` is true.
    pub(super) fn receive_earlier(
        &self,
        table: &Table,
        key: KeyHash,
        limit: &Limit,
        now: Nanos,
        is_request: bool,
    ) {
        let Some(predecessors) = self.file().map(StateFile::predecessors) else {
            return;
        };
        let Some(predecessors) = predecessors.as_ref().filter(|_| table.get(key).is_none()) else {
            return;
        };
        let Some((state, old)) = freeze(predecessors, key) else {
            return;
        };
        if let Some(state) = limit.convert(old, state, now) {
            let store = |there: Option<State>| (there.or_else(|| Some(state.clone())), ());
            // If this table is sealed by now, its successor receives the client.
            if let Updated::Moved = self.update_word(table, key, limit, now, &store) {
                return;
            }
        } else if !is_request {
            return;
        }
        clear(predecessors, key);
    }

    /// Removes a client from the earlier generations, in which a process that died during a move may have
    /// left it.
    pub(super) fn forget_earlier(&self, key: KeyHash) {
        if let Some(predecessors) = self.file().and_then(|file| file.predecessors().clone()) {
            freeze(&predecessors, key);
            clear(&predecessors, key);
        }
    }

    /// Removes the clients of this store, in all generations of its file, and returns their number.
    /// Requests of a client that are decided meanwhile come before or after its removal.
    pub(crate) fn clear(&self, rule: &Rule, now: Nanos) -> usize {
        if let Some(Next { rule, clients }) = self.follow(rule) {
            return clients.clear(rule, now);
        }
        // The earlier generations first, since clients move from them to this one.
        let predecessors = self.file().and_then(|file| file.predecessors().clone());
        let earlier = predecessors.unwrap_or_default();
        let earlier = earlier
            .iter()
            .map(|one| one.clients.clear_own(&one.limit, now));
        earlier.sum::<usize>() + self.clear_own(rule.limit(), now)
    }

    /// Returns the store in the latest generation of the file; `None` if this is the latest one. If
    /// the latest one cannot be opened, the store is one in the memory of this process.
    pub(crate) fn follow(&self, rule: &Rule) -> Option<&Next> {
        let file = self.file().filter(|_| self.is_succeeded())?;
        let follow = || {
            let next = match file.follow(rule.limit()) {
                Ok((limit, opened)) => Next::new(rule.with_limit(limit), opened.into()),
                Err(error) => self.alone(file, rule, error),
            };
            Box::new(next)
        };
        Some(self.next.get_or_init(follow))
    }

    fn alone(&self, file: &StateFile, rule: &Rule, error: StateError) -> Next {
        let _ = file.fault.set(error);
        let capacity = self.table().map_or(1, Table::capacity);
        let bytes = States::bytes_of(capacity, size_of::<State>()).unwrap_or(usize::MAX);
        let kept = Kept::States(View::own(States::new(capacity, bytes)));
        Next::new(rule.clone(), Self::only(kept))
    }

    /// Returns the reason why this process no longer shares its clients with others.
    pub(crate) fn fault(&self) -> Option<&StateError> {
        self.file().and_then(|file| file.fault.get())
    }
}
