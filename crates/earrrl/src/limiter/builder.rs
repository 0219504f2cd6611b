use core::fmt;
use core::marker::PhantomData;

use crate::clock::{Clock, SystemClock, Time};
use crate::cost::Cost;
use crate::rule::Rule;
use crate::store::table::KeyHasher;
use crate::store::{BuildError, Clients};

use super::Limiter;

const DEFAULT_CAPACITY: usize = 100_000;

/// The settings of a limiter; see [`Limiter::builder`].
pub struct Builder<K: ?Sized, F = fn() -> SystemClock> {
    rule: Rule,
    capacity: usize,
    most_bytes: Option<usize>,
    hasher: Option<KeyHasher>,
    clock: F,
    keys: PhantomData<fn(&K)>,
}

impl<K: ?Sized> Limiter<K> {
    /// Begins a limiter of a rule, or of one algorithm with its parameters. Its defaults are a
    /// capacity of 100 000 clients and the system's clock.
    pub fn builder(rule: impl Into<Rule>) -> Builder<K> {
        let rule = rule.into();
        Builder {
            capacity: DEFAULT_CAPACITY,
            most_bytes: rule.max_bytes(),
            rule,
            hasher: None,
            clock: SystemClock::new,
            keys: PhantomData,
        }
    }
}

impl<K: ?Sized, C: Clock, F: FnOnce() -> C> Builder<K, F> {
    /// For this many live clients: 22 bytes each where the rule's state is one time.
    #[must_use]
    pub fn capacity(self, clients: usize) -> Self {
        Self { capacity: clients, ..self }
    }

    /// Bounds the bytes of states that are more than one time (exponential, windows, logs): where they
    /// come to that, the longest idle clients are forgotten. Otherwise they may take what `capacity`
    /// busy clients need, but no more than half of the memory that is left when the limiter is built.
    #[must_use]
    pub fn max_bytes(self, bytes: usize) -> Self {
        Self { most_bytes: Some(bytes), ..self }
    }

    /// Another clock.
    #[must_use]
    pub fn clock<D: Clock>(self, clock: D) -> Builder<K, impl FnOnce() -> D> {
        Builder {
            rule: self.rule,
            capacity: self.capacity,
            most_bytes: self.most_bytes,
            hasher: self.hasher,
            clock: move || clock,
            keys: PhantomData,
        }
    }

    /// Returns a hash with a known key, for tests. Without it, the key is random, so that no client can choose
    /// its place in the table.
    #[must_use]
    pub fn hasher(self, hasher: KeyHasher) -> Self {
        Self { hasher: Some(hasher), ..self }
    }

    /// Returns the limiter.
    ///
    /// # Errors
    /// When the capacity is 0 or beyond memory, the processor has no 128-bit compare-and-swap, or
    /// the rule's `max_cost` is below 1.
    pub fn build(self) -> Result<Limiter<K, C>, BuildError> {
        // A rule whose `max_cost` refuses plain requests is a mistake.
        self.rule.accept(Cost::ONE)?;
        Ok(Limiter {
            clients: Clients::new(self.rule.limit(), self.capacity, self.most_bytes)?,
            hasher: self.hasher.map_or_else(KeyHasher::random, Ok)?,
            clock: Time::new((self.clock)()),
            lag: self.rule.limit().lag(),
            rule: self.rule,
            capacity: self.capacity,
            most_bytes: self.most_bytes,
            keys: PhantomData,
        })
    }
}

impl<K: ?Sized, F> fmt::Debug for Builder<K, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("rule", &self.rule)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
