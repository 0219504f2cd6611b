//! Parsed requests, many at a time.
//!
//! Each request causes cache misses: on its client's place in a table, and on its state. The misses
//! of a batch overlap, those of single requests do not. One core can also parse a batch while
//! another judges the one before.

use super::clients::Label;
use earrrl::Cost;

/// Requests in a batch.
const MOST: usize = 1024;

/// Bytes of keys in a batch, about.
const MOST_BYTES: usize = 128 * 1024;

/// Requests whose clients have no numbers yet.
#[derive(Debug, Default)]
pub(super) struct RequestBatch {
    keys: Vec<u8>,
    parsed: Vec<Parsed>,
}

/// One request of a batch.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The label under which the client is found.
    pub label: Label,
    /// The end of its key in the batch's `keys`.
    end: usize,
    /// Nanoseconds since the epoch.
    pub time: u64,
    /// The cost of the request.
    pub cost: Cost,
}

impl RequestBatch {
    /// Adds a request.
    #[inline]
    pub(super) fn push(&mut self, key: &[u8], label: Label, time: u64, cost: Cost) {
        self.keys.extend_from_slice(key);
        self.parsed.push(Parsed { label, end: self.keys.len(), time, cost });
    }

    /// Returns true if the batch is large enough to hand on.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.parsed.len() >= MOST || self.keys.len() >= MOST_BYTES
    }

    /// Returns true if there are no requests in the batch.
    pub(super) fn is_empty(&self) -> bool {
        self.parsed.is_empty()
    }

    /// The requests, in the order of their lines.
    pub(super) fn parsed(&self) -> &[Parsed] {
        &self.parsed
    }

    /// The key of the request at this place.
    pub(super) fn key(&self, place: usize) -> &[u8] {
        let start = place.checked_sub(1).map_or(0, |before| self.parsed[before].end);
        &self.keys[start..self.parsed[place].end]
    }

    /// Empties it, to be used again.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.parsed.clear();
    }
}
