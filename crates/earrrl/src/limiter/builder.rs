use core::fmt;
use core::marker::PhantomData;
use std::path::PathBuf;

use super::stable::StableKey;
use crate::clock::{Anchor, Clock, SystemClock, Time};
use crate::cost::Cost;
use crate::rule::Rule;
use crate::store::file::{FileSpec, absolute};
use crate::store::table::KeyHasher;
use crate::store::{BuildError, Clients, StateError};

use super::{Limiter, Queue};

const DEFAULT_CAPACITY: usize = 100_000;

/// The settings of a limiter; see [`Limiter::builder`].
///
/// ```
/// use earrrl::{Limiter, ManualClock, Nanos, Rule};
///
/// let rule: Rule = "recent-average 1/s half-life=10s".parse()?;
/// let clock = ManualClock::new(Nanos::from_secs(1_800_000_000));
/// let limiter = Limiter::<str>::builder(rule).capacity(1_000_000).clock(clock).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Builder<K: ?Sized, F = fn(Option<Anchor>) -> SystemClock> {
    rule: Rule,
    capacity: usize,
    most_bytes: Option<usize>,
    hasher: Option<KeyHasher>,
    state: Option<StatePath>,
    clock: F,
    keys: PhantomData<fn(&K)>,
}

/// The path of a state file, and the hash of a known key of the limiter's type.
struct StatePath {
    path: PathBuf,
    known: fn(&KeyHasher) -> u64,
}

/// # Building
impl<K: ?Sized> Limiter<K> {
    /// Returns the settings of a limiter for a rule, or for one algorithm with its parameters. The
    /// default capacity is 100 000 clients, and the default clock is the system's.
    ///
    /// ```
    /// use earrrl::{Limiter, Rate, Rule};
    /// use earrrl::algorithm::RecentAverage;
    /// use std::time::Duration;
    ///
    /// let parsed: Limiter<str> = Limiter::builder("gcra 1/s burst=9".parse::<Rule>()?).build()?;
    /// let average = RecentAverage::with_half_life(Rate::per_second(1)?, Duration::from_secs(10))?;
    /// let typed: Limiter<u64> = Limiter::builder(average).build()?;
    /// assert!(parsed.check("alice").is_allowed() && typed.check(&7).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(rule: impl Into<Rule>) -> Builder<K> {
        let rule = rule.into();
        Builder {
            capacity: DEFAULT_CAPACITY,
            most_bytes: None,
            rule,
            hasher: None,
            state: None,
            clock: |anchor| anchor.map_or_else(SystemClock::new, SystemClock::with_anchor),
            keys: PhantomData,
        }
    }
}

impl<K: ?Sized, C: Clock, F: FnOnce(Option<Anchor>) -> C> Builder<K, F> {
    /// Sets the number of live clients for which memory is reserved. A client takes 22 bytes if the
    /// rule's states fit words; see [`Limit::fits_words`](crate::Limit::fits_words).
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// # let rule: Rule = "gcra 1/s burst=9".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).capacity(1000).build()?;
    /// # assert!(limiter.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn capacity(self, clients: usize) -> Self {
        Self {
            capacity: clients,
            ..self
        }
    }

    /// Sets the most bytes that the states of larger algorithms (exponential, windows, logs) may
    /// take; beyond it, clients that have been idle for longest are evicted. By default, the states
    /// may take as much as `capacity` busy clients need, but at most half of the memory that is
    /// available when the limiter is built.
    ///
    /// ```
    /// # use earrrl::{Limiter, Rule};
    /// let rule: Rule = "sliding-log 60/1m".parse()?;
    /// let limiter: Limiter<str> = Limiter::builder(rule).max_bytes(16 << 20).build()?;
    /// # assert!(limiter.check("alice").is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_bytes(self, bytes: usize) -> Self {
        Self {
            most_bytes: Some(bytes),
            ..self
        }
    }

    /// Sets the clock. Limiters that share a state file must have clocks that agree; the default
    /// clocks do.
    ///
    /// ```
    /// # use earrrl::{Limiter, ManualClock, Nanos, Rule};
    /// # use std::{sync::Arc, time::Duration};
    /// # let rule: Rule = "fixed-window 1/1m".parse()?;
    /// let clock = Arc::new(ManualClock::new(Nanos::ZERO));
    /// let limiter = Limiter::<str>::builder(rule).clock(clock.clone()).build()?;
    /// limiter.check("alice").ok()?;
    /// clock.advance(Duration::from_secs(60));
    /// limiter.check("alice").ok()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> Builder<K, impl FnOnce(Option<Anchor>) -> D> {
        self.clock_of(move |_| clock)
    }

    /// Sets the function that returns the clock, from the anchor of the state file if there is one.
    #[doc(hidden)]
    #[must_use]
    pub fn clock_of<D: Clock, G: FnOnce(Option<Anchor>) -> D>(self, clock: G) -> Builder<K, G> {
        Builder {
            rule: self.rule,
            capacity: self.capacity,
            most_bytes: self.most_bytes,
            hasher: self.hasher,
            state: self.state,
            clock,
            keys: PhantomData,
        }
    }

    /// Sets a hasher with a known secret, for tests. By default the secret is random, so that no
    /// client can choose its place in the table.
    #[doc(hidden)]
    #[must_use]
    pub fn hasher(self, hasher: KeyHasher) -> Self {
        Self {
            hasher: Some(hasher),
            ..self
        }
    }

    /// Keeps the clients' states in a file, which survives the process, and which any number of
    /// processes can share: together they admit no more than the limit. A decision costs as much as
    /// without a file.
    ///
    /// The file's name gets a tag, which stands for the algorithm and the time on which states depend:
    /// `login.earrrl` is stored as `login.1f2e3d4c.earrrl`, for example. Its directory is
    /// created if only the last part of the path is missing; it must belong to this user, and no
    /// other user may write to it. In `/dev/shm`, `/tmp` and other directories of all users, the file
    /// gets a directory of its own: `/dev/shm/login` is stored as `/dev/shm/login/login.1f2e3d4c.earrrl`.
    ///
    /// A killed process loses nothing. After a power failure, the states are as old as the pages
    /// that the kernel has written; on tmpfs, such as `/dev/shm`, they are gone after a reboot. The
    /// rule's states must fit words ([`Limit::fits_words`](crate::Limit::fits_words)), and the system
    /// must be Linux with ext4, XFS or tmpfs.
    ///
    /// ```
    /// use earrrl::Limiter;
    ///
    /// let path = "/dev/shm/login";
    /// # let path = &format!("{path}-{}", std::process::id());
    /// let limiter = || {
    ///     let rule: earrrl::Rule = "gcra 1/h burst=2".parse()?;
    ///     let limiter: Limiter<str> = Limiter::builder(rule).state_file(path).build()?;
    ///     Ok::<_, Box<dyn std::error::Error>>(limiter)
    /// };
    /// assert!(limiter()?.check("alice").is_allowed());
    /// // Another process, or the same one after a restart:
    /// let other = limiter()?;
    /// assert!(other.check("alice").is_allowed());
    /// assert!(!other.check("alice").is_allowed());
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn state_file(self, path: impl Into<PathBuf>) -> Self
    where
        K: StableKey,
    {
        let known = |hasher: &KeyHasher| K::hash_of_known_key(hasher).bits();
        let path = absolute(path.into());
        Self {
            state: Some(StatePath { path, known }),
            ..self
        }
    }

    /// Builds the limiter.
    ///
    /// ```
    /// # use earrrl::{BuildError, Limiter, Rule};
    /// let rule: Rule = "gcra 1/s burst=9".parse()?;
    /// assert!(Limiter::<str>::builder(rule.clone()).build().is_ok());
    /// let none = Limiter::<str>::builder(rule).capacity(0).build();
    /// assert!(none.is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the capacity is 0 or needs more memory than is available, the processor
    /// has no 128-bit compare-and-swap, the rule's `max_cost` is below 1, or the state file cannot
    /// be used; see [`StateError`].
    pub fn build(self) -> Result<Limiter<K, C>, BuildError> {
        // A rule whose `max_cost` denies every plain request is a configuration error.
        self.rule.accept(Cost::ONE)?;
        let limit = self.rule.limit();
        let most_bytes = self.most_bytes.or(self.rule.max_bytes());
        let (clients, hasher, clock) = match self.state {
            Some(StatePath { path, .. }) if self.hasher.is_some() => {
                let expected = "none, since the file has a key of its own";
                return Err(StateError::refused(&path, "hasher", "set", expected).into());
            }
            Some(StatePath { path, known }) => {
                let wanted = FileSpec {
                    path: &path,
                    limit,
                    capacity: self.capacity,
                    known,
                    key: None,
                    shared: None,
                };
                open(&wanted, self.clock)?
            }
            None => {
                let clients = Clients::new(limit, self.capacity, most_bytes)?;
                (
                    clients,
                    self.hasher.map_or_else(KeyHasher::random, Ok)?,
                    (self.clock)(None),
                )
            }
        };
        Ok(Limiter {
            clients,
            hasher,
            clock: Time::new(clock),
            lag: limit.lag(),
            rule: self.rule,
            capacity: self.capacity,
            most_bytes: self.most_bytes,
            keys: PhantomData,
        })
    }

    /// Builds the limiter as a [`Queue`], whose clients wait for their turns.
    ///
    /// # Errors
    /// Returns the errors of [`build`](Self::build), and an error if the rule is no bucket.
    pub fn build_queue(self) -> Result<Queue<K, C>, BuildError> {
        Ok(Queue::new(self.build()?)?)
    }
}

/// Opens a state file with the clock of its anchor.
fn open<C: Clock>(
    wanted: &FileSpec<'_>,
    clock: impl FnOnce(Option<Anchor>) -> C,
) -> Result<(Clients, KeyHasher, C), BuildError> {
    let mut made = None;
    let (clients, hasher) = Clients::open(wanted, |anchor| made.insert(clock(Some(anchor))).now())?;
    let clock = made.ok_or_else(|| StateError::refused(wanted.path, "clock", "none", "a clock"))?;
    Ok((clients, hasher, clock))
}

impl<K: ?Sized, F> fmt::Debug for Builder<K, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("rule", &self.rule)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
