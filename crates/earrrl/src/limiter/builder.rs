use core::fmt;
use core::marker::PhantomData;
use std::boxed::Box;

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
    /// Returns the settings of a limiter for a rule, or for one algorithm with its parameters. The
    /// default capacity is 100 000 clients, and the default clock is the system's.
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
    /// Sets the number of live clients for which memory is reserved. A client takes 22 bytes if the
    /// rule's algorithm is recent-average, token-bucket or gcra.
    #[must_use]
    pub fn capacity(self, clients: usize) -> Self {
        Self { capacity: clients, ..self }
    }

    /// Sets the most bytes that the states of larger algorithms (exponential, windows, logs) may
    /// take; beyond it, clients that have been idle for longest are evicted. By default, the states
    /// may take as much as `capacity` busy clients need, but at most half of the memory that is
    /// available when the limiter is built.
    #[must_use]
    pub fn max_bytes(self, bytes: usize) -> Self {
        Self { most_bytes: Some(bytes), ..self }
    }

    /// Sets the clock.
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

    /// Sets a hasher with a known secret, for tests. By default the secret is random, so that no
    /// client can choose its place in the table.
    #[must_use]
    pub fn hasher(self, hasher: KeyHasher) -> Self {
        Self { hasher: Some(hasher), ..self }
    }

    /// Builds the limiter.
    ///
    /// # Errors
    /// Returns an error if the capacity is 0 or needs more memory than is available, the processor
    /// has no 128-bit compare-and-swap, or the rule's `max_cost` is below 1.
    pub fn build(self) -> Result<Limiter<K, C>, BuildError> {
        // A rule whose `max_cost` denies every plain request is a configuration error.
        self.rule.accept(Cost::ONE)?;
        Ok(Limiter {
            clients: Clients::new(self.rule.limit(), self.capacity, self.most_bytes)?,
            hasher: self.hasher.map_or_else(KeyHasher::random, Ok)?,
            clock: Time::new((self.clock)()),
            lag: self.rule.limit().lag(),
            rule: self.rule,
            capacity: self.capacity,
            most_bytes: self.most_bytes,
            nets: Box::default(),
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
