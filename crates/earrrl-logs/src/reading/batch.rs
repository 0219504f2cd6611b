//! Requests in batches: parsed together, and looked up together.
//!
//! Each request causes two cache misses: one for its client in the table of clients, one for the
//! client's state. Processing many requests together lets their misses overlap. It also lets one
//! core parse a batch while another judges the batch before.

use std::io;

use earrrl::Cost;

use super::clients::{ClientNumbers, Label};

/// The number of requests whose clients and states are looked up together.
pub(crate) const TOGETHER: usize = 64;

/// A request of a log.
#[derive(Debug, Clone, Copy)]
pub struct LoggedRequest {
    /// The time of the request, in nanoseconds since the epoch.
    pub time: u64,
    /// The number of the client in [`ClientNumbers`](super::ClientNumbers).
    pub client: u32,
    /// The cost of the request.
    pub cost: Cost,
}

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

/// Looks up the clients of a batch and passes its requests to `take`, which gets an empty slice for
/// an empty batch. Returns the number of requests that were dropped since their clients did not fit
/// in the table.
///
/// # Errors
/// Returns the first error that `take` returns.
pub(super) fn resolve(
    clients: &mut ClientNumbers,
    batch: &RequestBatch,
    take: &mut impl FnMut(&ClientNumbers, &[LoggedRequest]) -> io::Result<()>,
) -> io::Result<u64> {
    if batch.is_empty() {
        take(clients, &[])?;
    }
    let mut crowded = 0;
    let mut requests = Vec::with_capacity(TOGETHER);
    let mut guesses = [0; TOGETHER];
    let mut right = [false; TOGETHER];
    for (chunk, parsed) in batch.parsed().chunks(TOGETHER).enumerate() {
        // The lookups within each of these two steps do not depend on each other, so their cache
        // misses overlap.
        clients.guess(parsed.iter().map(|parsed| &parsed.label), &mut guesses);
        for ((right, guess), parsed) in right.iter_mut().zip(guesses).zip(parsed) {
            *right = clients.is(guess, &parsed.label);
        }
        requests.clear();
        for (place, parsed) in parsed.iter().enumerate() {
            let number = match right[place] {
                true => Some(guesses[place]),
                false => clients.labelled(&parsed.label, batch.key(chunk * TOGETHER + place)),
            };
            match number {
                Some(client) => {
                    requests.push(LoggedRequest {
                        time: parsed.time,
                        client,
                        cost: parsed.cost,
                    });
                }
                None => crowded += 1,
            }
        }
        take(clients, &requests)?;
    }
    Ok(crowded)
}
