//! Instants in whole nanoseconds, and the clocks that tell them.

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
#[cfg(feature = "std")]
mod ticking;

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

#[cfg(feature = "std")]
pub(crate) use monotonic::Time;
#[cfg(feature = "std")]
pub use system::{Anchor, SystemClock};
#[cfg(feature = "std")]
pub use ticking::TickingClock;

/// An instant: whole nanoseconds since the Unix epoch (1970 to 2554).
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
    /// The last instant there is, in the year 2554.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the epoch.
    #[inline]
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `secs` seconds after the epoch, at most [`Nanos::MAX`].
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to here; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Duration> for Nanos {
    type Output = Self;
    /// Saturates at [`Nanos::MAX`].
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Tells the time. It must never go back.
pub trait Clock: Send + Sync {
    /// The present instant.
    fn now(&self) -> Nanos;

    /// An instant that was the present one at most `lag` ago, where the clock has one that is cheaper to
    /// tell. It is decided by where that makes no difference, or none that counts under its
    /// rule; else [`now`](Self::now) is asked. None, as by default, if that is to be asked always.
    #[inline]
    fn lately(&self, _lag: Duration) -> Option<Nanos> {
        None
    }
}

impl<C: Clock + ?Sized> Clock for alloc::sync::Arc<C> {
    #[inline]
    fn now(&self) -> Nanos {
        (**self).now()
    }

    #[inline]
    fn lately(&self, lag: Duration) -> Option<Nanos> {
        (**self).lately(lag)
    }
}

/// A clock moved by hand, for tests and replays. It refuses to go back.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stands at `start`.
    pub const fn new(start: Nanos) -> Self {
        Self(AtomicU64::new(start.0))
    }

    /// Moves the clock to `to`, or leaves it where it is if that is later.
    pub fn set(&self, to: Nanos) {
        self.0.fetch_max(to.0, Ordering::AcqRel);
    }

    /// Moves the clock forward.
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

    /// A clock whose `lately` is as old as it may be.
    #[derive(Default)]
    pub(crate) struct Lagging(pub(crate) ManualClock);

    impl Clock for Lagging {
        fn now(&self) -> Nanos {
            self.0.now()
        }

        fn lately(&self, lag: Duration) -> Option<Nanos> {
            let lag = lag.min(Duration::from_millis(4));
            Some(Nanos::new(self.now().get() - u64::try_from(lag.as_nanos()).unwrap()))
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
