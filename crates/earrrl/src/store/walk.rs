//! A walk over all clients of a store, in steps that no request waits for.

use std::thread;

use super::clients::{Clients, Kept};
use super::states::Passed;
use crate::algorithm::Limit;
use crate::clock::Nanos;

/// The number of clients of a table between two offers of the processor to other threads: about a
/// tenth of a millisecond.
const STEP: usize = 4096;

impl Clients {
    /// Calls `visit` for every client whose state still counts. Clients that come or go during the walk may be
    /// missed.
    ///
    /// A table is read without locks. A map is locked shard by shard, as for an insertion that
    /// makes the shard grow, and loses the clients whose state no longer counts.
    pub(crate) fn walk(&self, limit: &Limit, now: Nanos, mut visit: impl FnMut(Passed<'_>)) {
        match &self.kept {
            Kept::Words(table) => {
                for (nth, client) in table.iter().enumerate() {
                    if nth % STEP == STEP - 1 {
                        thread::yield_now();
                    }
                    let mut state = limit.state_of(client.word);
                    let usage = limit.usage(&mut state, now);
                    if let Some(state) = &state {
                        visit(Passed {
                            fingerprint: client.fingerprint,
                            usage,
                            limit,
                            state,
                            word: client.word,
                        });
                    }
                }
            }
            Kept::States(states) => {
                for mut shard in states.each() {
                    shard.walk(now, &mut visit);
                    drop(shard);
                    thread::yield_now();
                }
            }
        }
    }
}
