//! The store of one rule's clients. States that are words are in a table, larger states in a map.

use std::boxed::Box;
use std::string::String;
use std::sync::Arc;
use std::{fmt, format};

use super::by_rank::{ByRank, carry};
use super::file::{self, FileSpec, Opened, StateError, StateFile};
use super::live::LiveHolds;
use super::states::{Bounds, States, Under, View};
use super::table::{Change, KeyHash, KeyHasher, Lookup, Purpose, Table, TableError, Word, fits};
use crate::algorithm::{Limit, Policy, State};
use crate::clock::{Anchor, Nanos};
use crate::cost::Cost;
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
        Ok(Self::only(Kept::new(limit, capacity, most_bytes)?))
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
        let opened = file::open(wanted, now)?;
        let hasher = opened.hasher;
        Ok((opened.into(), hasher))
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

    /// Returns the store of a rule with this limit that shares the map `states` with other rules.
    pub(crate) fn sharing(states: Arc<States>, limit: &Limit) -> Self {
        Self::only(Kept::States(View::shared(states, limit)))
    }

    /// Returns true if the rule shares its store with other rules.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(&self.kept, Kept::States(states) if states.is_shared())
    }

    /// Returns the limit of a request under this rule, whose limit is `limit`.
    pub(crate) fn under<'a>(&'a self, limit: &'a Limit) -> Under<'a> {
        match &self.kept {
            Kept::Words(_) => Under::Only(limit),
            Kept::States(states) => states.under(limit),
        }
    }

    /// Reads, judges and changes a client's state as one atomic step. `decide` may be called
    /// several times; only the result of its last call counts.
    pub(crate) fn update<R>(
        &self,
        key: KeyHash,
        limit: &Limit,
        now: Nanos,
        decide: impl Fn(Option<State>) -> (Option<State>, R),
    ) -> R {
        match &self.kept {
            Kept::Words(table) => {
                self.reached(now);
                let decide = |word: Option<Word>| {
                    let (after, answer) = decide(word.and_then(|word| limit.state_of(word)));
                    let change = match after.and_then(|after| limit.word(&after)) {
                        Some(after) if Some(after) == word => Change::Keep,
                        Some(after) => Change::Store(after),
                        None if word.is_some() => Change::Remove,
                        None => Change::Keep,
                    };
                    (change, answer)
                };
                table.update(key, ByRank(limit, now), decide)
            }
            Kept::States(states) => {
                let mut shard = states.lock_of(key);
                shard.update(key, states.under(limit), now, decide)
            }
        }
    }

    /// Passes a client's state to `judge`, which returns the state to keep; the request is not
    /// stored.
    pub(crate) fn inspect<R>(
        &self,
        key: KeyHash,
        limit: &Limit,
        now: Nanos,
        judge: impl FnOnce(Option<State>) -> (Option<State>, R),
    ) -> R {
        match &self.kept {
            Kept::Words(table) => judge(table.get(key).and_then(|word| limit.state_of(word))).1,
            Kept::States(states) => {
                let mut shard = states.lock_of(key);
                shard.inspect(key, states.under(limit), now, judge)
            }
        }
    }

    /// Prefetches the memory that a decision on the client will need.
    #[inline]
    pub(crate) fn prefetch(&self, key: KeyHash, policy: Policy) {
        let _ = self.place(key, policy);
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

    /// Takes back a charge; see [`Limit::refund`].
    pub(crate) fn refund(
        &self,
        key: KeyHash,
        limit: &Limit,
        now: Nanos,
        charged_at: Option<Nanos>,
        cost: Cost,
    ) {
        self.refunded(key, limit, cost);
        self.update(key, limit, now, |state| {
            let charged_at = charged_at.or_else(|| limit.last_charge(state.as_ref()));
            (
                limit.refund(state, now, charged_at.unwrap_or(now), cost),
                (),
            )
        });
    }

    /// Removes a client.
    pub(crate) fn reset(&self, key: KeyHash, limit: &Limit, now: Nanos) {
        // The copy of a table into another size may have put the client into both of its sets.
        for _ in 0..2 {
            self.replace(key, limit, now, None);
        }
    }

    /// Replaces a client's state by another one, which knows nothing of the client's live reservations.
    pub(crate) fn replace(&self, key: KeyHash, limit: &Limit, now: Nanos, state: Option<State>) {
        // Commits must not correct the new state, nor charges that came before it be corrected after it.
        self.forget(key);
        self.update(key, limit, now, |_| (state.clone(), ()));
        self.forget(key);
    }

    fn forget(&self, key: KeyHash) {
        match &self.kept {
            Kept::Words(table) => table.forget(key.fingerprint()),
            Kept::States(states) => states.live().forget(key.fingerprint()),
        }
    }

    /// Notes a refund that is about to be made, which makes a bucket full earlier.
    pub(crate) fn refunded(&self, key: KeyHash, limit: &Limit, cost: Cost) {
        if limit.is_bucket() {
            self.live().refunded(key.fingerprint(), cost);
            self.changed(key);
        }
    }

    /// Counts a change that reservations of other processes must know of, if they share the clients.
    pub(crate) fn changed(&self, key: KeyHash) {
        if let Kept::Words(table) = &self.kept {
            table.changed(key.fingerprint());
        }
    }

    /// Returns the number of changes of clients like this one, by any process.
    pub(crate) fn changes(&self, key: KeyHash) -> u64 {
        match &self.kept {
            Kept::Words(table) => table.changes(key.fingerprint()),
            Kept::States(_) => 0,
        }
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

    /// Returns the address of the map if the rule shares it with others.
    pub(crate) fn shared_map(&self) -> Option<usize> {
        match &self.kept {
            Kept::States(states) if states.is_shared() => Some(states.address()),
            _ => None,
        }
    }

    /// Frees the memory of clients of a map that are as good as new. `limit` is the rule's limit.
    pub(crate) fn drop_idle(&self, limit: &Limit, now: Nanos) {
        if let Kept::States(states) = &self.kept {
            states
                .each()
                .for_each(|mut shard| shard.walk(limit, now, &mut |_| ()));
        }
    }

    /// Sets the bounds of a map that a rule with this limit has for itself, and evicts clients while it is over
    /// them.
    pub(crate) fn bound(&self, bounds: &Bounds, limit: &Limit, now: Nanos) {
        if let Kept::States(states) = &self.kept
            && !states.is_shared()
        {
            states.bound_anew(bounds, limit, now);
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

impl From<Opened> for Clients {
    fn from(Opened { table, file, .. }: Opened) -> Self {
        Self {
            file: Some(Box::new(file)),
            ..Self::only(Kept::Words(table))
        }
    }
}

impl Kept {
    fn new(limit: &Limit, capacity: usize, most_bytes: Option<usize>) -> Result<Self, BuildError> {
        if limit.fits_words() {
            return Ok(Self::Words(Table::new(capacity)?));
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
        Ok(Self::States(View::own(States::within(&bounds))))
    }
}
