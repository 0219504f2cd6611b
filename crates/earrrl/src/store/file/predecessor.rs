//! The clients of an earlier generation of a state file, which move to the latest one when they are
//! met; `table/frozen.rs` proves that none is lost or counted twice.

use std::sync::Arc;

use crate::algorithm::{Limit, State};
use crate::clock::Nanos;
use crate::store::ByRank;
use crate::store::clients::{Clients, Kept};
use crate::store::table::{KeyHash, Swept, Table};

/// An earlier generation of a state file.
pub(crate) struct Predecessor {
    pub(super) generation: u64,
    /// The limit under which the states were stored.
    pub(crate) limit: Limit,
    pub(crate) clients: Clients,
}

impl Predecessor {
    pub(super) fn new(generation: u64, limit: Limit, table: Table) -> Self {
        Self {
            generation,
            limit,
            clients: Clients::only(Kept::Words(table)),
        }
    }

    fn table(&self) -> Option<&Table> {
        self.clients.table()
    }

    /// Removes what a crash or a damaged file left behind, from a file that no other process uses.
    pub(super) fn sweep(&self, now: Nanos) -> Swept {
        self.table()
            .map(|table| table.sweep(self.limit.greatest(now)))
            .unwrap_or_default()
    }

    /// Seals the file, so that no process stores a new client in it.
    pub(super) fn seal(&self) {
        if let Some(table) = self.table() {
            table.seal();
        }
    }

    /// Freezes the clients of the sealed file, so that all processes go on in the latest generation.
    pub(super) fn freeze_all(&self) {
        if let Some(table) = self.table() {
            table.freeze_all();
        }
    }

    /// Removes the clients that are as good as new, after all were frozen. Returns true if none is left.
    pub(super) fn is_empty(&self, now: Nanos) -> bool {
        let Some(table) = self.table() else {
            return true;
        };
        let is_empty = table.clear_idle(&ByRank(&self.limit, now)) == 0;
        if is_empty {
            table.mark_emptied();
        }
        is_empty
    }

    fn freeze(&self, key: KeyHash) -> Option<State> {
        self.limit.state_of(self.table()?.freeze(key)?)
    }
}

/// Freezes a client in the first of these generations that has it, and returns its state with the
/// limit of that generation.
pub(crate) fn freeze(generations: &[Arc<Predecessor>], key: KeyHash) -> Option<(State, &Limit)> {
    generations
        .iter()
        .find_map(|one| Some((one.freeze(key)?, &one.limit)))
}

/// Removes a client from all of these generations.
pub(crate) fn clear(generations: &[Arc<Predecessor>], key: KeyHash) {
    generations
        .iter()
        .filter_map(|one| one.table())
        .for_each(|table| table.clear_frozen(key));
}
