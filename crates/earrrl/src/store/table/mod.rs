//! A bounded table of clients: one word of state for each, in a fixed number of entries.
//!
//! # Layout
//! An entry is 128 bits: a fingerprint (40 bits of the key's hash) and a state of 88 bits. Four
//! entries fill a cache line, four lines are a set, and all sets are one flat array without
//! pointers. A key may be stored in either of two sets. In each set one line is its home line,
//! which is preferred. A look-up fetches both home lines at once, in the time of one cache miss,
//! and finds 86 to 93 % of clients in the first one and nearly all others in the second. An entry
//! never moves to another slot, since no processor can do that atomically.
//!
//! # Eviction
//! If a new client finds no free slot, one of the clients with the lowest current rates is
//! evicted; see [`Order`]. A flood of keys that each occur once therefore
//! evicts its own keys, never a client over its limit. A new client always gets a slot, since it
//! would otherwise never be counted.
//!
//! # Concurrency
//! There are no locks: an entry is changed by a 128-bit compare-and-swap, and read in halves that
//! the swap validates. A new client is one swap too, as long as its home lines have slots that were never used.
//! `insert.rs` proves that a key is never counted in two entries. A thread or
//! process that dies at any instant leaves the table consistent.
//!
//! # Memory
//! All memory is allocated and written when the table is built: 21⅓ bytes per client and one
//! kilobyte. The table never grows. A table that may never be used
//! (`Table::reserved`) is only mapped, and the system provides its pages as clients come.

pub(crate) mod available;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod cmac;
mod entry;
mod hash;
mod insert;
pub(crate) mod lines;
#[cfg(target_os = "linux")]
pub(crate) mod mapping;
#[cfg(test)]
#[cfg(not(miri))]
mod model;
mod raw;
pub(crate) mod region;
#[cfg(target_os = "linux")]
mod resize;
mod slot;
mod sweep;
#[cfg(test)]
mod tests;
mod victim;

use core::fmt;
use std::sync::Arc;

pub(crate) use available::{fits, half_of_what_is_left};
use entry::Entry;
pub use entry::{Change, MAX_WORD, MIN_WORD, Order, Word};
pub use hash::{KeyHash, KeyHasher};
use lines::Lines;
use raw::{RawTable, SHARDS, Shard};
use region::{Memory, Region};
pub(crate) use slot::Purpose;
use slot::{AtomicSlot, Line};
pub use sweep::Swept;

use crate::store::live::LiveHolds;

/// The number of slots in a cache line.
const LINE: usize = 4;
/// The number of cache lines in a set.
const LINES: usize = 4;
/// The number of clients per set for which a table is sized: three quarters of the set's slots.
const CLIENTS: usize = LINE * LINES / 4 * 3;
/// The number of sets that [`Table::len`] counts.
const SAMPLE: usize = 1024;

/// The bytes of a set.
pub(crate) const SET_BYTES: usize = LINE * LINES * size_of::<AtomicSlot>();
/// The bytes of the shards in a file.
pub(crate) const SHARDS_BYTES: usize = SHARDS * size_of::<Shard>();
/// The layout of a table in a file: slots in a line, lines in a set, bits of a fingerprint.
pub(crate) const LAYOUT: [u32; 3] = [LINE as u32, LINES as u32, entry::FINGERPRINT_BITS];

/// Returns the numbers of clients and of claims in the bytes of a table's slots.
#[cfg(target_os = "linux")]
pub(crate) fn census(slots: &[u8]) -> (usize, usize) {
    let (slots, _) = slots.as_chunks::<{ size_of::<AtomicSlot>() }>();
    let entries = slots
        .iter()
        .map(|bits| Entry::from_bits(u128::from_ne_bytes(*bits)));
    entries.fold((0, 0), |(clients, claims), entry| {
        let client = usize::from(entry.is_state());
        let claim = usize::from(entry.is_claim());
        (clients + client, claims + claim)
    })
}

/// Returns the number of sets of a table for `capacity` clients.
pub(crate) fn sets_for(capacity: usize) -> usize {
    capacity.div_ceil(CLIENTS).max(2)
}

/// A table of a fixed number of clients' states, which any number of threads can share.
///
/// ```
/// use earrrl::internal::table::{Change, KeyHasher, Table};
///
/// let table = Table::new(1_000)?;
/// let hasher = KeyHasher::random()?;
/// let count = |seen: Option<i128>| {
///     let count = seen.unwrap_or(0) + 1;
///     (Change::Store(count), count)
/// };
/// assert_eq!(table.update(hasher.hash("alice"), || 0, count), 1);
/// assert_eq!(table.update(hasher.hash("alice"), || 0, count), 2);
/// assert_eq!(table.get(hasher.hash("bob")), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Table = RawTable<AtomicSlot, LINE, LINES>;

/// A key and its two home lines.
pub(crate) type Lookup<'a> = raw::Lookup<'a, AtomicSlot, LINE>;

/// A client's entry as it was last read.
pub(crate) type ReadEntry<'a> = raw::ReadEntry<'a, AtomicSlot>;

/// A client in the table, as `Table::iter` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Client {
    /// The low 40 bits of the key's hash, the lowest of them set.
    pub fingerprint: u64,
    /// The client's state.
    pub word: Word,
}

/// The reason why a table cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// The requested capacity is 0 clients.
    NoCapacity,
    /// There is not enough memory for the requested capacity.
    TooLarge {
        /// The requested capacity, in clients.
        capacity: usize,
    },
    /// The processor has no 128-bit compare-and-swap.
    NotLockFree,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCapacity => f.write_str("capacity: 0 clients, must be at least 1"),
            Self::TooLarge { capacity } => {
                write!(
                    f,
                    "capacity: {capacity} clients need more memory than there is (22 bytes each)"
                )
            }
            Self::NotLockFree => f.write_str("this processor has no 128-bit compare-and-swap"),
        }
    }
}

impl std::error::Error for TableError {}

impl Table {
    /// Returns an empty table for `capacity` live clients.
    ///
    /// The table has a third more entries than that. As long as at most `capacity` clients are
    /// live, the probability that a live client is evicted is then below one in ten thousand.
    ///
    /// # Errors
    /// Returns an error if `capacity` is 0 or needs more memory than is available, or if the
    /// processor has no 128-bit compare-and-swap.
    pub fn new(capacity: usize) -> Result<Self, TableError> {
        if capacity == 0 {
            return Err(TableError::NoCapacity);
        }
        if !slot::is_lock_free() {
            return Err(TableError::NotLockFree);
        }
        let table = Self::of_sets(sets_for(capacity)).ok_or(TableError::TooLarge { capacity })?;
        Ok(Self { capacity, ..table })
    }

    /// Returns an empty table as [`new`](Self::new) does, but the system provides its memory as clients
    /// come. So a table that may never be used takes no memory. The first requests take some
    /// microseconds longer, and the system may have no memory left when they come. Only Linux
    /// supports this; elsewhere, the memory is provided now.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn reserved(capacity: usize) -> Result<Self, TableError> {
        #[cfg(all(target_os = "linux", not(miri)))]
        if capacity > 0 && slot::is_lock_free() {
            return Self::zeroed(capacity).ok_or(TableError::TooLarge { capacity });
        }
        Self::new(capacity)
    }

    /// Returns a table in zeroed memory: the sets, and then the shards. Zeros are empty slots.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn zeroed(capacity: usize) -> Option<Self> {
        let sets = Self::bytes_of(capacity)?;
        let bytes = sets
            .checked_add(SHARDS_BYTES)
            .filter(|bytes| fits(*bytes))?;
        let memory = Arc::new(mapping::Mapping::zeroed(bytes).ok()?);
        Self::mapped(&memory, sets, 0, sets_for(capacity), capacity)
    }

    /// Returns the table that other processes share in the same memory: its shards begin at `shards`, and `sets` sets begin at `sets_at`. Returns `None` if they are outside of the
    /// memory, or the processor has no 128-bit compare-and-swap.
    pub(crate) fn mapped(
        memory: &Arc<impl Memory + 'static>,
        shards: usize,
        sets_at: usize,
        sets: usize,
        capacity: usize,
    ) -> Option<Self> {
        let lines: Region<Line<_, LINE>> =
            Region::mapped(memory, sets_at, sets.checked_mul(LINES)?)?;
        let shards = Region::mapped(memory, shards, SHARDS)?;
        let is_usable = sets >= 2 && slot::is_lock_free();
        is_usable.then(|| Self {
            capacity,
            ..Self::over(Lines::over(lines), shards)
        })
    }

    /// Returns the bytes of a table for `capacity` live clients, all of which are allocated when it
    /// is built.
    pub(crate) fn bytes_of(capacity: usize) -> Option<usize> {
        sets_for(capacity).checked_mul(SET_BYTES)
    }

    /// Returns the table with the id of the file in which it is.
    #[cfg(target_os = "linux")]
    pub(crate) fn in_file(mut self, id: u64) -> Self {
        self.live = Arc::new(LiveHolds::in_file(id));
        self
    }

    /// Returns the number of changes of clients like this one, by any process.
    pub(crate) fn changes(&self, fingerprint: u64) -> u64 {
        self.shard(fingerprint)
            .changes
            .load(core::sync::atomic::Ordering::Relaxed)
    }

    /// Prefetches the home lines of a key, for a decision that follows a little later.
    #[inline]
    pub fn prefetch(&self, key: KeyHash) {
        let _ = self.place(key, Purpose::Write);
    }

    /// Returns a client's state, or `None` if the client is absent.
    ///
    /// ```
    /// # use earrrl::internal::table::{Change, KeyHash, Table};
    /// let (table, alice) = (Table::new(100)?, KeyHash::from_bits(7 << 60 | 7));
    /// assert_eq!(table.get(alice), None);
    /// table.update(alice, || 0, |_| (Change::Store(42), ()));
    /// assert_eq!(table.get(alice), Some(42));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get(&self, key: KeyHash) -> Option<Word> {
        self.update(key, || MIN_WORD, |word| (Change::Keep, word))
    }

    /// Replaces every client's state by the one that `convert` returns; removes the client if that
    /// is `None`. An entry that another thread changes meanwhile may be converted twice.
    pub fn convert(&self, mut convert: impl FnMut(Word) -> Option<Word>) {
        self.change_all(|entry| {
            convert(entry.word())
                .map_or(Entry::VACATED, |word| Entry::new(entry.fingerprint(), word))
        });
    }

    /// Removes all clients, and returns their number. A client that is updated meanwhile may be removed
    /// before or after that.
    pub(crate) fn clear(&self) -> usize {
        self.change_all(|_| Entry::VACATED)
    }

    /// Returns all clients, in no particular order. Clients that are inserted or removed during the
    /// iteration may be missing.
    ///
    /// ```
    /// # use earrrl::internal::table::{Change, KeyHash, Table};
    /// let (table, alice) = (Table::new(100)?, KeyHash::from_bits(7 << 60 | 7));
    /// table.update(alice, || 0, |_| (Change::Store(42), ()));
    /// assert!(table.iter().any(|client| client.word == 42));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = Client> + '_ {
        self.entries(0..self.lines.slots()).map(Client::from)
    }

    /// Returns the number of clients, including idle ones. Small tables are counted; for large ones
    /// the number is estimated from a sample, which may miss few clients.
    #[must_use]
    pub fn len(&self) -> usize {
        let set = LINE * LINES;
        let sets = self.lines.slots() / set;
        let step = sets.div_ceil(SAMPLE);
        let sampled = sets.div_ceil(step);
        let places = (0..sets)
            .step_by(step)
            .flat_map(|nth| nth * set..(nth + 1) * set);
        let found = self.entries(places).count();
        (found as f64 * sets as f64 / sampled as f64) as usize
    }

    /// Returns true if no client is stored, with the precision of [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of live clients for which the table was built.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

impl From<Entry> for Client {
    fn from(entry: Entry) -> Self {
        Self {
            fingerprint: entry.fingerprint(),
            word: entry.word(),
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("capacity", &self.capacity)
            .field("len", &self.len())
            .field("displaced", &self.displaced())
            .finish()
    }
}
