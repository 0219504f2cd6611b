//! Instants in whole nanoseconds, and the clocks that return them.

#[cfg(feature = "std")]
mod counted;
#[cfg(feature = "std")]
mod lately;
#[cfg(feature = "std")]
mod machine;
#[cfg(feature = "std")]
mod monotonic;
#[cfg(feature = "std")]
mod system;

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

#[cfg(feature = "std")]
pub(crate) use machine::boot;
#[cfg(feature = "std")]
pub(crate) use monotonic::Time;
#[cfg(feature = "std")]
pub use system::{Anchor, SystemClock};

/// An instant, in whole nanoseconds since the Unix epoch (1970 to 2554).
///
/// ```
/// use earrrl::Nanos;
/// use std::time::Duration;
/// let t = Nanos::from_secs(10) + Duration::from_millis(250);
/// assert_eq!(t.since(Nanos::from_secs(10)), Duration::from_millis(250));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(u64);

impl Nanos {
    /// The Unix epoch.
    pub const ZERO: Self = Self(0);
    /// The last instant, in the year 2554.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the instant `nanos` nanoseconds after the epoch.
    ///
    /// ```
    /// assert_eq!(earrrl::Nanos::new(1_000_000_000), earrrl::Nanos::from_secs(1));
    /// ```
    #[inline]
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the instant `secs` seconds after the epoch, at most [`Nanos::MAX`].
    ///
    /// ```
    /// # use earrrl::Nanos;
    /// assert_eq!(Nanos::from_secs(2), Nanos::new(2_000_000_000));
    /// ```
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since the epoch.
    ///
    /// ```
    /// assert_eq!(earrrl::Nanos::from_secs(2).get(), 2_000_000_000);
    /// ```
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, and zero if `earlier` is later.
    ///
    /// ```
    /// # use earrrl::Nanos;
    /// # use std::time::Duration;
    /// assert_eq!(Nanos::new(300).since(Nanos::new(100)), Duration::from_nanos(200));
    /// assert_eq!(Nanos::new(100).since(Nanos::new(300)), Duration::ZERO);
    /// ```
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Duration> for Nanos {
    type Output = Self;
    /// Adds a duration; the sum is at most [`Nanos::MAX`].
    fn add(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// A source of the present time. The time must never go back, also between threads.
///
/// ```
/// use earrrl::{Clock, Nanos};
/// use std::time::{Duration, Instant};
///
/// struct SinceStart(Instant);
///
/// impl Clock for SinceStart {
///     fn now(&self) -> Nanos {
///         Nanos::ZERO + self.0.elapsed()
///     }
/// }
/// assert!(SinceStart(Instant::now()).now() < Nanos::from_secs(3600));
/// ```
pub trait Clock: Send + Sync {
    /// Returns the present instant.
    fn now(&self) -> Nanos;

    /// Returns the latest instant that any thread has read, if it is at most `lag` ago and cheaper
    /// than a new reading. Only this crate's clocks return one, since they make sure that no thread
    /// gets an earlier instant than another thread has used.
    #[doc(hidden)]
    #[inline]
    fn lately(&self, _lag: Duration, _: Sealed) -> Option<Nanos> {
        None
    }
}

/// A value that only this crate can construct, so that other crates cannot override the methods
/// that take it.
#[derive(Clone, Copy, Debug)]
pub struct Sealed(pub(crate) ());

impl<C: Clock + ?Sized> Clock for alloc::sync::Arc<C> {
    #[inline]
    fn now(&self) -> Nanos {
        (**self).now()
    }

    #[inline]
    fn lately(&self, lag: Duration, sealed: Sealed) -> Option<Nanos> {
        (**self).lately(lag, sealed)
    }
}

/// A clock that is set by its user, for tests and replays. It never goes back.
///
/// ```
/// use earrrl::{Clock, ManualClock, Nanos};
/// use std::time::Duration;
///
/// let clock = ManualClock::new(Nanos::from_secs(10));
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.now(), Nanos::from_secs(15));
/// clock.set(Nanos::from_secs(12)); // does nothing, since a clock never goes back
/// assert_eq!(clock.now(), Nanos::from_secs(15));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Returns a clock that shows `start`.
    ///
    /// ```
    /// # use earrrl::{Clock, ManualClock, Nanos};
    /// assert_eq!(ManualClock::new(Nanos::from_secs(10)).now(), Nanos::from_secs(10));
    /// ```
    pub const fn new(start: Nanos) -> Self {
        Self(AtomicU64::new(start.0))
    }

    /// Sets the clock to `to`, unless the clock is later already.
    ///
    /// ```
    /// # use earrrl::{Clock, ManualClock, Nanos};
    /// let clock = ManualClock::new(Nanos::from_secs(10));
    /// clock.set(Nanos::from_secs(60));
    /// clock.set(Nanos::from_secs(30));
    /// assert_eq!(clock.now(), Nanos::from_secs(60));
    /// ```
    pub fn set(&self, to: Nanos) {
        self.0.fetch_max(to.0, Ordering::AcqRel);
    }

    /// Moves the clock forward by `by`.
    ///
    /// ```
    /// # use earrrl::{Clock, ManualClock, Nanos};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new(Nanos::from_secs(10));
    /// clock.advance(Duration::from_millis(500));
    /// assert_eq!(clock.now(), Nanos::new(10_500_000_000));
    /// ```
    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A test clock whose last reading is always as old as the caller permits.
    #[derive(Default)]
    pub(crate) struct Lagging(pub(crate) ManualClock);

    impl Clock for Lagging {
        fn now(&self) -> Nanos {
            self.0.now()
        }

        fn lately(&self, lag: Duration, _: Sealed) -> Option<Nanos> {
            let lag = lag.min(Duration::from_millis(4));
            Some(Nanos::new(
                self.now().get() - u64::try_from(lag.as_nanos()).unwrap(),
            ))
        }
    }

    #[test]
    fn a_manual_clock_never_goes_back() {
        let clock = ManualClock::new(Nanos::from_secs(5));
        clock.set(Nanos::from_secs(3));
        assert_eq!(clock.now(), Nanos::from_secs(5));
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.now(), Nanos::from_secs(6));
    }

    #[test]
    fn instants_saturate() {
        assert_eq!(Nanos::MAX + Duration::MAX, Nanos::MAX);
        assert_eq!(Nanos::ZERO.since(Nanos::MAX), Duration::ZERO);
    }
}
