//! The bounded table: one word of state for each of a fixed number of clients.
//!
//! # Layout
//! An entry is 128 bits: 40 of the key's hash, its fingerprint, and 88 of state. Four fill a cache
//! line, four lines are a set, sets are one flat array without pointers. A key may live in two
//! sets, and prefers one line of each, its home lines, and the first of them to the second. A look-up
//! fetches those two side by side, in the time of one cache miss, and finds 86 to 93 % of clients in the
//! first and nearly all others in the second. An entry never moves, since no processor can move it
//! atomically.
//!
//! # Who stays
//! When a newcomer finds no empty slot, a client with one of the lowest current rates goes, and a
//! small word means a low rate. A flood of one-hit keys displaces itself, never an offender. A
//! newcomer always gets a slot, else it would never be counted.
//!
//! # Concurrency
//! There are no locks: an entry is changed by a 128-bit compare-and-swap, and read in halves that
//! the swap validates. `insert.rs` says why a key is never counted in two entries. A thread or a
//! process that dies at any instant leaves the table whole.
//!
//! # Memory
//! Everything is allocated, and touched, on construction: 21⅓ bytes a client and one kilobyte.
//! Nothing grows afterwards.

pub(crate) mod available;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod cmac;
mod entry;
mod hash;
mod insert;
pub(crate) mod lines;
#[cfg(test)]
#[cfg(not(miri))]
mod model;
mod raw;
mod slot;
#[cfg(test)]
mod tests;
mod transfer;
mod victim;

use core::fmt;

pub(crate) use available::{fits, half_of_what_is_left};
use entry::Entry;
pub use entry::{Change, MAX_WORD, MIN_WORD, Word};
pub use hash::{KeyHash, KeyHasher};
use raw::RawTable;
use slot::AtomicSlot;
pub(crate) use slot::Purpose;
pub(crate) use transfer::lock_of;

/// Slots in a cache line.
const LINE: usize = 4;
/// Lines in a set.
const LINES: usize = 4;
/// Clients for which a set is meant: three quarters of its slots.
const CLIENTS: usize = LINE * LINES / 4 * 3;
/// The number of sets that [`Table::len`] looks at.
const SAMPLE: usize = 1024;

/// A fixed number of clients' states, shared by any number of threads.
///
/// ```
/// use earrrl::table::{Change, KeyHasher, Table};
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
pub struct Table {
    raw: RawTable<AtomicSlot, LINE, LINES>,
    capacity: usize,
}

/// A key and the cache lines where it most likely is.
pub(crate) struct Place<'a>(raw::Place<'a, AtomicSlot, LINE>);

/// A client's entry as it was read.
pub(crate) struct Seen<'a>(raw::Seen<'a, AtomicSlot>);

/// A client's entry, as [`Table::iter`] gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Client {
    /// The low 40 bits of the key's hash, the lowest of them set.
    pub fingerprint: u64,
    /// Its state.
    pub word: Word,
}

/// An error of a table that can't be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// A capacity of 0 clients was asked for.
    NoCapacity,
    /// There is not enough memory.
    TooLarge {
        /// The capacity asked for, in clients.
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
    /// Returns a table for `capacity` live clients.
    ///
    /// It holds a third more entries than that, which keeps the odds that a live client has to go
    /// below one in ten thousand while no more than `capacity` are live.
    ///
    /// # Errors
    /// When `capacity` is 0 or more than memory holds, or the processor lacks the instruction.
    pub fn new(capacity: usize) -> Result<Self, TableError> {
        if capacity == 0 {
            return Err(TableError::NoCapacity);
        }
        if !slot::is_lock_free() {
            return Err(TableError::NotLockFree);
        }
        let raw = RawTable::new(capacity.div_ceil(CLIENTS).max(2))
            .ok_or(TableError::TooLarge { capacity })?;
        Ok(Self { raw, capacity })
    }

    /// Returns the bytes that a table for this many live clients takes, all of them when it is made.
    pub(crate) fn bytes_of(capacity: usize) -> Option<usize> {
        let slots = capacity.div_ceil(CLIENTS).max(2).checked_mul(LINE * LINES)?;
        slots.checked_mul(size_of::<AtomicSlot>())
    }

    /// Reads, judges and changes one client's state, as one indivisible step.
    ///
    /// `decide` gets the state, or `None` for a client that is not there, and answers what becomes
    /// of it and what to return. It may be called several times when threads interfere, only its
    /// last answer counts. Clients whose words are at most `idle()` are as good as new: they make room
    /// before others, and are not counted as [`displaced`](Self::displaced).
    #[inline]
    pub fn update<R>(
        &self,
        key: KeyHash,
        idle: impl Fn() -> Word,
        decide: impl Fn(Option<Word>) -> (Change, R),
    ) -> R {
        self.raw.update(key, idle, decide)
    }

    /// Fetches the lines where the key most likely is, to have them at hand a little later.
    #[inline]
    pub fn prefetch(&self, key: KeyHash) {
        self.prefetch_to(key, Purpose::Write);
    }

    /// The same, for a change or perhaps only to read.
    #[inline]
    pub(crate) fn prefetch_to(&self, key: KeyHash, to: Purpose) {
        let _ = self.place(key, to);
    }

    /// Updates a key that is new, or not where it most likely is, as [`update`](Self::update) does.
    pub(crate) fn update_anywhere<R>(
        &self,
        key: KeyHash,
        idle: impl Fn() -> Word,
        decide: impl Fn(Option<Word>) -> (Change, R),
    ) -> R {
        self.raw.update_anywhere(key, idle, decide)
    }

    /// Requests the two lines in which a key most likely is, for callers that have something else to do first.
    #[inline(always)]
    pub(crate) fn place(&self, key: KeyHash, to: Purpose) -> Place<'_> {
        Place(self.raw.place(key, to))
    }

    /// Returns the entry of a key at home, as nearly all are that are there at all.
    #[inline(always)]
    pub(crate) fn at_home<'a>(&self, place: &Place<'a>) -> Option<Seen<'a>> {
        self.raw.at_home(&place.0).map(Seen)
    }

    /// Returns a client's state.
    #[must_use]
    pub fn get(&self, key: KeyHash) -> Option<Word> {
        self.update(key, || MIN_WORD, |word| (Change::Keep, word))
    }

    /// Forgets a client. True if it was there.
    pub fn reset(&self, key: KeyHash) -> bool {
        self.update(key, || MIN_WORD, |word| (Change::Remove, word.is_some()))
    }

    /// Gives every client the state that `convert` makes of its own, or forgets it. Nobody else may
    /// be deciding meanwhile: an entry changed by another thread could be converted twice.
    pub fn convert(&self, mut convert: impl FnMut(Word) -> Option<Word>) {
        self.raw.convert(|entry| {
            convert(entry.word()).map_or(Entry::EMPTY, |word| Entry::new(entry.fingerprint(), word))
        });
    }

    /// Lets no newcomers in any more: an absent client stays absent, whatever is to be stored of it.
    pub(crate) fn seal(&self) {
        self.raw.seal();
    }

    /// Returns true if the table is sealed. Call it after a client was found absent, which may then be in
    /// another table.
    pub(crate) fn is_sealed(&self) -> bool {
        self.raw.is_sealed()
    }

    /// Takes a client out of a sealed table.
    pub(crate) fn take(&self, key: KeyHash) -> Option<Word> {
        self.raw.take(key)
    }

    /// Returns true if [`pour`](Self::pour) can move clients from here to there.
    pub(crate) fn is_laid_out_as(&self, other: &Self) -> bool {
        self.raw.is_laid_out_as(&other.raw)
    }

    /// Takes all clients out of a sealed table into another that is laid out alike, converted. False if
    /// that one is sealed meanwhile. `alone` gives what keeps others from moving a client; it sees only
    /// what [`lock_of`] looks at.
    pub(crate) fn pour<G>(
        &self,
        into: &Self,
        alone: impl Fn(KeyHash) -> G,
        convert: impl Fn(Word) -> Option<Word>,
        idle: Word,
    ) -> bool {
        self.raw.pour(&into.raw, alone, convert, idle)
    }

    /// Removes the clients whose words are at most `idle`, and returns the number of those left.
    pub(crate) fn clear_idle(&self, idle: Word) -> usize {
        self.raw.clear_idle(idle)
    }

    /// All clients, in no order. Those that come or go meanwhile may be missed.
    pub fn iter(&self) -> impl Iterator<Item = Client> + '_ {
        self.raw.entries(0..self.raw.lines.slots()).map(Client::from)
    }

    /// Returns the number of clients, idle ones included: counted in small tables, estimated from a sample in
    /// large ones.
    #[must_use]
    pub fn len(&self) -> usize {
        let set = LINE * LINES;
        let sets = self.raw.lines.slots() / set;
        let step = sets.div_ceil(SAMPLE);
        let sampled = sets.div_ceil(step);
        let places = (0..sets).step_by(step).flat_map(|nth| nth * set..(nth + 1) * set);
        let found = self.raw.entries(places).count();
        (found as f64 * sets as f64 / sampled as f64) as usize
    }

    /// Returns true if no client is stored, as far as [`len`](Self::len) can tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of live clients that the table is meant for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of clients that were evicted although they were not idle. If it grows steadily, the
    /// capacity is too small.
    #[must_use]
    pub fn displaced(&self) -> u64 {
        self.raw.displaced()
    }

    /// Returns the bytes it occupies, now and ever.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.raw.bytes()
    }
}

impl Seen<'_> {
    /// Its state; none if it is no longer the key's, or not yet.
    #[inline(always)]
    pub(crate) fn word(&self) -> Option<Word> {
        self.0.word()
    }

    /// Makes the change. Returns false, and sees the present entry, if another thread changed it first.
    #[inline(always)]
    pub(crate) fn apply(&mut self, change: Change) -> bool {
        self.0.apply(change)
    }
}

impl From<Entry> for Client {
    fn from(entry: Entry) -> Self {
        Self { fingerprint: entry.fingerprint(), word: entry.word() }
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
