//! Buffers, held only while a connection has something to read or write.
//!
//! A connection takes a set when bytes arrive and gives it back before it waits, so a thread needs
//! one set for all its idle connections together.

use std::cell::RefCell;

use super::codec::MAX_REQUEST_LEN;
use super::question::Questions;

/// Bytes read at once. Beside the longest unfinished request there is always room to read.
const INPUT_LEN: usize = MAX_REQUEST_LEN + 8 * 1024;
/// Replies are written out once this many bytes have gathered.
pub(super) const OUTPUT_HIGH_WATER: usize = 64 * 1024;
/// Sets that a thread keeps for later.
const SPARE: usize = 4;

/// The buffers that a connection reads into and writes from.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Bytes that were read; no longer than its capacity.
    pub(super) input: Vec<u8>,
    /// The allocation of a batch's questions, empty between batches.
    pub(super) questions: Questions<'static>,
    /// Replies not yet written.
    pub(super) output: Vec<u8>,
}

thread_local! {
    static POOL: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

impl Buffers {
    /// An empty set, the thread's own if there is one.
    pub(super) fn take() -> Self {
        POOL.with_borrow_mut(Vec::pop).unwrap_or_else(|| Self {
            input: Vec::with_capacity(INPUT_LEN),
            questions: Questions::new(),
            output: Vec::with_capacity(OUTPUT_HIGH_WATER),
        })
    }

    /// Hands the set to the thread's next taker.
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
