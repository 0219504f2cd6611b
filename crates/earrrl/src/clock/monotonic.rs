//! Time that never goes back, whether a clock tells it or a caller.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use super::{Clock, Nanos};

/// A clock, and the latest instants that were used: time never goes back.
pub(crate) struct Time<C> {
    clock: C,
    /// The latest instant that somebody gave.
    given: AtomicU64,
    /// Whether the clock itself was used; then every given instant is at least its present one.
    /// One flag, written once, in place of a word that every request would write.
    used: AtomicBool,
}

impl<C: Clock> Time<C> {
    pub(crate) fn new(clock: C) -> Self {
        Self { clock, given: AtomicU64::new(0), used: AtomicBool::new(false) }
    }

    /// The present instant.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.used(self.clock.now())
    }

    /// One of a moment ago; see [`Clock::lately`].
    #[inline]
    pub(crate) fn lately(&self, lag: Duration) -> Option<Nanos> {
        self.clock.lately(lag).map(|lately| self.used(lately))
    }

    /// The same for a request that is not of a given instant.
    #[inline]
    pub(crate) fn lately_unless(&self, given: Option<Nanos>, lag: Duration) -> Option<Nanos> {
        if given.is_some() { None } else { self.lately(lag) }
    }

    /// The given instant as [`at`](Self::at) has it, or the present one.
    #[inline]
    pub(crate) fn at_or_now(&self, given: Option<Nanos>) -> Nanos {
        given.map_or_else(|| self.now(), |given| self.at(given))
    }

    #[inline]
    fn used(&self, told: Nanos) -> Nanos {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        told.max(Nanos::new(self.given.load(Relaxed)))
    }

    /// A given instant, or the latest one used if that is later.
    #[inline]
    pub(crate) fn at(&self, given: Nanos) -> Nanos {
        let before = Nanos::new(self.given.fetch_max(given.get(), Relaxed));
        let floor = if self.used.load(Relaxed) { self.clock.now() } else { Nanos::ZERO };
        given.max(before).max(floor)
    }
}

impl<C: Clock> Clock for Time<C> {
    fn now(&self) -> Nanos {
        self.now()
    }
}
