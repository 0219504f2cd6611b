//! The states that fit no word, of the clients of a table: exact counts that are too great or too
//! fine for 88 bits.
//!
//! Such a client's entry in the table is a mark (see [`Algorithm::mark`]), and its state is in a map.
//! Only a thread that holds the client's shard of the map stores a mark or replaces it. A thread that
//! reads a word decides without a lock, as ever: its compare-and-swap fails if the word becomes a
//! mark. A thread that reads a mark waits for the shard.
//!
//! If the table evicts a mark, the client is new at its next request, like any evicted client. Its
//! state in the map is then unused until the map evicts or replaces it.
//!
//! [`Algorithm::mark`]: crate::Algorithm::mark

use std::boxed::Box;
use std::sync::OnceLock;

use super::states::States;
use super::table::half_of_what_is_left;
use crate::algorithm::State;

/// The map of the states that fit no word. It is allocated for the first of them.
pub(crate) struct Overflow {
    states: OnceLock<Box<States>>,
    capacity: usize,
}

impl Overflow {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            states: OnceLock::new(),
            capacity,
        }
    }

    /// Returns the map, if any state was ever in it.
    pub(super) fn get(&self) -> Option<&States> {
        self.states.get().map(Box::as_ref)
    }

    /// Returns the map, which is allocated now if it was not before.
    pub(super) fn states(&self) -> &States {
        self.states.get_or_init(|| {
            let most = States::bytes_of(self.capacity, size_of::<State>()).unwrap_or(usize::MAX);
            Box::new(States::new(self.capacity, most.min(half_of_what_is_left())))
        })
    }
}
