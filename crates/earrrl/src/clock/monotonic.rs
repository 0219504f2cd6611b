//! Time that never goes back, whether it comes from a clock or from callers.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::time::Duration;

use super::{Clock, Nanos, Sealed};

/// A clock and the latest instants that were used. No later instant precedes them.
pub(crate) struct Time<C> {
    clock: C,
    /// The latest instant that a caller has given.
    given: AtomicU64,
    /// True once the clock itself was used. From then on, an instant that a caller gives is raised
    /// to the clock's present instant. The flag is written only once; a shared record of the latest
    /// instant would be written by every request.
    used: AtomicBool,
}

impl<C: Clock> Time<C> {
    pub(crate) fn new(clock: C) -> Self {
        Self {
            clock,
            given: AtomicU64::new(0),
            used: AtomicBool::new(false),
        }
    }

    /// Returns the clock's present instant, or the latest given instant if that is later.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.used(self.clock.now())
    }

    /// Returns the instant for what decides nothing, such as a survey: the latest one that a caller has
    /// given if all were given by callers, and the present one otherwise. The clock does not count
    /// as used, so that a replay's later instants keep their meaning.
    pub(crate) fn latest(&self) -> Nanos {
        let given = Nanos::new(self.given.load(Relaxed));
        if given > Nanos::ZERO && !self.used.load(Relaxed) {
            return given;
        }
        self.clock.now().max(given)
    }

    /// Returns the latest instant that any thread has read, if that is cheaper than a new reading;
    /// see [`Clock::lately`].
    #[inline]
    pub(crate) fn lately(&self, lag: Duration) -> Option<Nanos> {
        self.clock
            .lately(lag, Sealed(()))
            .map(|lately| self.used(lately))
    }

    /// Returns the present instant, or the given one as [`at`](Self::at) raises it.
    #[inline]
    pub(crate) fn at_or_now(&self, given: Option<Nanos>) -> Nanos {
        given.map_or_else(|| self.now(), |given| self.at(given))
    }

    #[inline]
    fn used(&self, read: Nanos) -> Nanos {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        read.max(Nanos::new(self.given.load(Relaxed)))
    }

    /// Returns the given instant, or the latest one that was used if that is later.
    #[inline]
    pub(crate) fn at(&self, given: Nanos) -> Nanos {
        let before = Nanos::new(self.given.fetch_max(given.get(), Relaxed));
        let floor = if self.used.load(Relaxed) {
            self.clock.now()
        } else {
            Nanos::ZERO
        };
        given.max(before).max(floor)
    }
}
