//! Looks up the clients of parsed requests, many at a time.

use std::io;

use super::batch::RequestBatch;
use super::clients::ClientNumbers;
use super::request::{LoggedRequest, TOGETHER};

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
