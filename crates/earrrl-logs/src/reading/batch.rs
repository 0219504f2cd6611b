//! Batches of parsed requests.
//!
//! Each request causes two cache misses: one for its client in the table of clients, one for the
//! client's state. Processing many requests together lets their misses overlap. It also lets one
//! core parse a batch while another judges the batch before.

use super::clients::Label;
use earrrl::Cost;

/// The number of requests at which a batch is full.
const MOST: usize = 1024;

/// The number of bytes of keys at which a batch is full; its last key may go beyond.
const MOST_BYTES: usize = 128 * 1024;

/// A batch of parsed requests whose clients have not been looked up yet.
#[derive(Debug, Default)]
pub(super) struct RequestBatch {
    keys: Vec<u8>,
    parsed: Vec<Parsed>,
}

/// A parsed request; its key is stored in the batch.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The hash, and the text if it is short, under which the client is looked up.
    pub label: Label,
    /// The end of the request's key in the batch's `keys`; the key starts where the one before
    /// ends.
    end: usize,
    /// The time of the request, in nanoseconds since the epoch.
    pub time: u64,
    /// The cost of the request.
    pub cost: Cost,
}

impl RequestBatch {
    /// Adds a request to the batch.
    #[inline]
    pub(super) fn push(&mut self, key: &[u8], label: Label, time: u64, cost: Cost) {
        self.keys.extend_from_slice(key);
        self.parsed.push(Parsed {
            label,
            end: self.keys.len(),
            time,
            cost,
        });
    }

    /// Returns true if the batch is large enough to be processed.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.parsed.len() >= MOST || self.keys.len() >= MOST_BYTES
    }

    /// Returns true if there are no requests in the batch.
    pub(super) fn is_empty(&self) -> bool {
        self.parsed.is_empty()
    }

    /// Returns the requests in the order of their lines.
    pub(super) fn parsed(&self) -> &[Parsed] {
        &self.parsed
    }

    /// Returns the key of the request with the index `place`.
    pub(super) fn key(&self, place: usize) -> &[u8] {
        let start = place
            .checked_sub(1)
            .map_or(0, |before| self.parsed[before].end);
        &self.keys[start..self.parsed[place].end]
    }

    /// Removes all requests, and keeps the memory for later ones.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.parsed.clear();
    }
}
