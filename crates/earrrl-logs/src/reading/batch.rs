//! Requests in batches: parsed together, and looked up together.
//!
//! Each request causes two cache misses: one for its client in the table of clients, one for the
//! client's state. Processing many requests together lets their misses overlap. It also lets one
//! core parse a batch while another judges the batch before.

use std::io;
use std::ops::Deref;

use earrrl::Cost;

use super::clients::{ClientNumbers, Label};
use crate::format::{Field, Record};

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

/// Requests that were looked up together, in the order of their lines.
pub struct Requests<'a> {
    all: &'a [LoggedRequest],
    /// The texts of each request, in the order of the fields that the reader was asked for; empty if it was asked for
    /// none.
    texts: &'a [&'a [u8]],
}

impl Deref for Requests<'_> {
    type Target = [LoggedRequest];

    fn deref(&self) -> &[LoggedRequest] {
        self.all
    }
}

impl<'a> Requests<'a> {
    /// Returns the texts of the request with the index `place`, in the order of the fields that
    /// [`LogReader::with_texts`](super::LogReader::with_texts) was given; `None` where the request has none of them.
    pub fn texts(&self, place: usize) -> impl Iterator<Item = Option<&'a [u8]>> {
        let mut rest = self.texts.get(place).copied().unwrap_or_default();
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk()?;
            let length = u16::from_le_bytes(*length);
            rest = behind;
            if length == NO_TEXT {
                return Some(None);
            }
            let (text, behind) = rest.split_at(usize::from(length));
            rest = behind;
            Some(Some(text))
        })
    }
}

/// The length that stands for a missing text. Texts of this length or more are cut off.
const NO_TEXT: u16 = u16::MAX;

/// A batch of parsed requests whose clients have not been looked up yet.
#[derive(Debug, Default)]
pub(super) struct RequestBatch {
    keys: Vec<u8>,
    parsed: Vec<Parsed>,
    /// The texts of all requests, each behind its length, and the end of each request's; empty if no texts are wanted.
    texts: Vec<u8>,
    ends: Vec<usize>,
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

    /// Adds the texts of the last request: for each list of fields, that of the first field which its record has.
    pub(super) fn add_texts(&mut self, record: &Record<'_>, wanted: &[Vec<Field>]) {
        for fields in wanted {
            let text = fields.iter().find_map(|field| record.get(field));
            let length = text.as_deref().map_or(NO_TEXT, |text| {
                text.len().min(usize::from(NO_TEXT) - 1) as u16
            });
            self.texts.extend_from_slice(&length.to_le_bytes());
            if let Some(text) = text {
                self.texts.extend_from_slice(&text[..usize::from(length)]);
            }
        }
        self.ends.push(self.texts.len());
    }

    /// Returns the texts of the request with the index `place`, each behind its length.
    fn texts(&self, place: usize) -> &[u8] {
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.texts[start..self.ends[place]]
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
        self.texts.clear();
        self.ends.clear();
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
    take: &mut impl FnMut(&ClientNumbers, &Requests<'_>) -> io::Result<()>,
) -> io::Result<u64> {
    if batch.is_empty() {
        take(
            clients,
            &Requests {
                all: &[],
                texts: &[],
            },
        )?;
    }
    let mut crowded = 0;
    let mut requests = Vec::with_capacity(TOGETHER);
    let mut texts = Vec::new();
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
        texts.clear();
        for (place, parsed) in parsed.iter().enumerate() {
            let number = match right[place] {
                true => Some(guesses[place]),
                false => clients.labelled(&parsed.label, batch.key(chunk * TOGETHER + place)),
            };
            match number {
                Some(client) => {
                    if !batch.ends.is_empty() {
                        texts.push(batch.texts(chunk * TOGETHER + place));
                    }
                    requests.push(LoggedRequest {
                        time: parsed.time,
                        client,
                        cost: parsed.cost,
                    });
                }
                None => crowded += 1,
            }
        }
        take(
            clients,
            &Requests {
                all: &requests,
                texts: &texts,
            },
        )?;
    }
    Ok(crowded)
}
