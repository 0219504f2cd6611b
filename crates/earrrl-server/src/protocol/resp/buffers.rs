//! A pool of buffers for connections.
//!
//! A connection takes a set of buffers when bytes arrive and returns it before it waits, so one set
//! serves all idle connections of a thread.

use std::cell::RefCell;

use super::codec::MAX_REQUEST_LEN;
use super::question::Questions;

/// The capacity of the input buffer, in bytes. It holds the longest request and still has space to
/// read.
const INPUT_LEN: usize = MAX_REQUEST_LEN + 8 * 1024;
/// The number of bytes of replies at which they are written to the socket.
pub(super) const OUTPUT_HIGH_WATER: usize = 64 * 1024;
/// The largest number of unused sets that a thread keeps.
const SPARE: usize = 4;

/// A set of buffers, which a connection reads into and writes from.
#[derive(Debug)]
pub(super) struct Buffers {
    /// The bytes that were read. They never exceed the buffer's initial capacity.
    pub(super) input: Vec<u8>,
    /// A list for the questions of a batch. It is empty between batches, and only keeps its
    /// allocation.
    pub(super) questions: Questions<'static>,
    /// The replies that have not been written to the socket.
    pub(super) output: Vec<u8>,
}

thread_local! {
    static POOL: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

impl Buffers {
    /// Returns an empty set, from the thread's pool if that has one.
    pub(super) fn take() -> Self {
        POOL.with_borrow_mut(Vec::pop).unwrap_or_else(|| Self {
            input: Vec::with_capacity(INPUT_LEN),
            questions: Questions::new(),
            output: Vec::with_capacity(OUTPUT_HIGH_WATER),
        })
    }

    /// Empties the set and returns it to the thread's pool.
    pub(super) fn give_back(mut self) {
        self.input.clear();
        self.output.clear();
        self.output.shrink_to(2 * OUTPUT_HIGH_WATER);
        POOL.with_borrow_mut(|pool| {
            if pool.len() < SPARE {
                pool.push(self);
            }
        });
    }
}
