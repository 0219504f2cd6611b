//! The store of one rule's clients. States that are words are in a table, larger states in a map.

use std::boxed::Box;
use std::string::String;
use std::sync::Arc;
use std::{fmt, format};

use super::by_rank::{ByRank, carry};
use super::file::{self, FileSpec, Opened, StateError, StateFile};
use super::live::LiveHolds;
use super::states::{Bounds, States, View};
use super::table::{Change, KeyHash, KeyHasher, Lookup, Purpose, Table, TableError, Word, fits};
use crate::algorithm::{Limit, Mode, Policy, State};
use crate::clock::{Anchor, Nanos};
use crate::error::RuleError;

/// The clients of one rule, and their states.
pub(crate) struct Clients {
    pub(crate) kept: Kept,
    /// The file of the table, if other processes share it.
    file: Option<Box<StateFile>>,
}

/// The table or the map that holds the clients' states.
pub(crate) enum Kept {
    Words(Table),
    States(View),
}

/// The reason why a limiter cannot be built.
///
/// ```
/// use earrrl::{BuildError, Limiter, Rule};
///
/// let rule: Rule = "gcra 1/s burst=9".parse()?;
/// let built = Limiter::<str>::builder(rule).capacity(0).build();
/// assert!(matches!(built, Err(BuildError::Table(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The table cannot be built: the capacity is 0 or needs too much memory, or the processor is
    /// not supported.
    Table(TableError),
    /// The limiter does not support the rule.
    Rule(RuleError),
    /// The state file cannot be used.
    State(StateError),
    /// The operating system returns no random bytes for the key of the hash.
    NoRandomness(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(error) => error.fmt(f),
            Self::Rule(error) => error.fmt(f),
            Self::State(error) => error.fmt(f),
            Self::NoRandomness(why) => write!(f, "no randomness for the hash: {why}"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Table(error) => Some(error),
            Self::Rule(error) => Some(error),
            Self::State(error) => Some(error),
            Self::NoRandomness(_) => None,
        }
    }
}

impl From<TableError> for BuildError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

impl From<RuleError> for BuildError {
    fn from(error: RuleError) -> Self {
        Self::Rule(error)
    }
}

impl From<StateError> for BuildError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl From<getrandom::Error> for BuildError {
    fn from(error: getrandom::Error) -> Self {
        Self::NoRandomness(format!("{error}"))
    }
}

impl Clients {
    /// Returns an empty store for `capacity` clients of the limit. Larger states take memory as
    /// clients come, up to `most_bytes`. If that is `None`, the bound is the memory that this many
    /// busy clients need, but at most half of the memory that is available now.
    pub(crate) fn new(
        limit: &Limit,
        capacity: usize,
        most_bytes: Option<usize>,
    ) -> Result<Self, BuildError> {
        if limit.fits_words() {
            return Ok(Self::only(Kept::Words(Table::new(capacity)?)));
        }
        if capacity == 0 {
            return Err(TableError::NoCapacity.into());
        }
        // Memory is taken as clients come, so the memory that is available now is only compared
        // with the least amount that the clients need.
        let least = States::bytes_of(capacity, size_of::<State>());
        if least.is_none_or(|least| !fits(most_bytes.unwrap_or(least))) {
            return Err(TableError::TooLarge { capacity }.into());
        }
        let bounds = Bounds::new(limit, capacity, most_bytes);
        Ok(Self::in_map(Arc::new(States::within(&bounds)), limit))
    }

    /// Returns the store in a state file, and the hasher of its keys. `now` makes the clock of the
    /// given anchor and returns the present instant.
    pub(crate) fn open(
        wanted: &FileSpec<'_>,
        now: impl FnOnce(Anchor) -> Nanos,
    ) -> Result<(Self, KeyHasher), BuildError> {
        if wanted.capacity == 0 {
            return Err(TableError::NoCapacity.into());
        }
        let Opened {
            table,
            hasher,
            file,
        } = file::open(wanted, now)?;
        let clients = Self {
            kept: Kept::Words(table),
            file: Some(Box::new(file)),
        };
        Ok((clients, hasher))
    }

    /// Records in the state file that a request is decided at `now`. Called for clients that are
    /// not in their home lines, so that other requests need not load the time.
    pub(crate) fn reached(&self, now: Nanos) {
        if let Some(file) = &self.file {
            file.reached(now);
        }
    }

    fn only(kept: Kept) -> Self {
        Self { kept, file: None }
    }

    /// Returns the state file.
    pub(crate) fn file(&self) -> Option<&StateFile> {
        self.file.as_deref()
    }

    /// Returns the store of a rule with this limit whose larger states are in the map `states`.
    pub(crate) fn in_map(states: Arc<States>, limit: &Limit) -> Self {
        let limit = Arc::new(*limit);
        Self::only(Kept::States(View { states, limit }))
    }

    /// Returns the map of larger states, and the limit under which this rule changes them.
    pub(crate) fn view(&self) -> Option<&View> {
        match &self.kept {
            Kept::Words(_) => None,
            Kept::States(view) => Some(view),
        }
    }

    /// Returns the same map of larger states for a changed limit; `None` for a table, which knows of no limit.
    pub(crate) fn under(&self, limit: &Limit) -> Option<Self> {
        let view = self.view().filter(|view| *view.limit != *limit)?;
        Some(Self::in_map(Arc::clone(&view.states), limit))
    }

    /// Reads, judges and changes a client's state as one atomic step, but stores nothing new if `mode` is a peek. `decide`
    /// may be called several times; only the result of its last call counts.
    pub(crate) fn visit<R>(
        &self,
        key: KeyHash,
        limit: &Limit,
        now: Nanos,
        mode: Mode,
        decide: impl Fn(Option<State>) -> (Option<State>, R),
    ) -> R {
        let table = match &self.kept {
            Kept::Words(table) => table,
            Kept::States(view) => {
                let mut shard = view.lock_of(key);
                return shard.change(key, &view.limit, now, mode, decide);
            }
        };
        let state = |word: Option<Word>| word.and_then(|word| limit.state_of(word));
        if mode == Mode::Peek {
            return decide(state(table.get(key))).1;
        }
        self.reached(now);
        let decide = |word: Option<Word>| {
            let (after, answer) = decide(state(word));
            let change = match after.and_then(|after| limit.word(after)) {
                Some(after) if Some(after) == word => Change::Keep,
                Some(after) => Change::Store(after),
                None if word.is_some() => Change::Remove,
                None => Change::Keep,
            };
            (change, answer)
        };
        table.update(key, ByRank(limit, now), decide)
    }

    /// Prefetches the home lines of a client whose state is a word, and returns them.
    #[inline]
    pub(crate) fn place(&self, key: KeyHash, policy: Policy) -> Option<Lookup<'_>> {
        Some(self.table()?.place(key, Purpose::of(policy)))
    }

    /// Returns the table, if the clients' states are words.
    #[inline(always)]
    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.kept {
            Kept::Words(table) => Some(table),
            Kept::States(_) => None,
        }
    }

    /// Makes the client's reservations know nothing of its state any longer.
    pub(crate) fn forget(&self, key: KeyHash) {
        self.changed(key);
        self.live().forget(key.fingerprint());
    }

    /// Counts a change that reservations of other processes must know of, if they share the clients.
    pub(crate) fn changed(&self, key: KeyHash) {
        if let Some(table) = self.table() {
            table.changed(key.fingerprint());
        }
    }

    /// Returns the number of changes of clients like this one, by any process.
    pub(crate) fn changes(&self, key: KeyHash) -> u64 {
        let changes = |table: &Table| table.changes(key.fingerprint());
        self.table().map_or(0, changes)
    }

    /// Returns the live reservations of the clients.
    pub(crate) fn live(&self) -> &LiveHolds {
        match &self.kept {
            Kept::Words(table) => table.live(),
            Kept::States(states) => states.live(),
        }
    }

    /// Removes the clients of this store, which no other rule shares, and returns their number. Requests of
    /// a client that are decided meanwhile come before or after its removal.
    pub(crate) fn clear(&self) -> usize {
        self.live().forget_all();
        let removed = match &self.kept {
            Kept::Words(table) => table.clear(),
            Kept::States(states) => states.each().map(|mut shard| shard.clear()).sum(),
        };
        self.live().forget_all();
        removed
    }

    /// Returns true if a change of the limit from `old` to `new` applies to the states in this store. Otherwise
    /// the rule begins afresh in another one.
    pub(crate) fn keeps(&self, old: &Limit, new: &Limit) -> bool {
        let is_accepted = self.file.is_none() || new.fits_words();
        is_accepted && new.meaning() == old.meaning()
    }

    /// Applies a change of the limit that this store [`keeps`](Self::keeps) to the stored states. Requests
    /// may be decided meanwhile.
    pub(crate) fn carry(&self, old: &Limit, new: &Limit, now: Nanos) {
        if let Kept::Words(table) = &self.kept {
            carry(table, old, new, now);
        }
        if let Some(file) = self.file().filter(|_| old != new) {
            file.write_rule(new);
        }
    }

    /// Bounds the map of larger states anew.
    pub(crate) fn bound(&self, bounds: &Bounds, now: Nanos) {
        if let Some(view) = self.view() {
            view.states.bound(bounds, now);
        }
    }

    /// Returns the number of clients.
    pub(crate) fn len(&self) -> usize {
        match &self.kept {
            Kept::Words(table) => table.len(),
            Kept::States(states) => states.each().map(|shard| shard.len()).sum(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.kept {
            Kept::Words(table) => table.bytes(),
            Kept::States(states) => states.each().map(|shard| shard.bytes()).sum(),
        }
    }

    pub(crate) fn displaced(&self) -> u64 {
        match &self.kept {
            Kept::Words(table) => table.displaced(),
            Kept::States(states) => states.each().map(|shard| shard.displaced()).sum(),
        }
    }
}
