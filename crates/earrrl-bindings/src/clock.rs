//! The clock of limiters and engines: the system's, one that a test moves, or one that follows the clock of the
//! package's language, such as Python's `time.time`, which a test replaces.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earrrl::internal::{Anchor, Sealed};
use earrrl::{ManualClock, Nanos, SystemClock};

use crate::error::Error;

/// A clock of a package.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for each limiter, and a box would cost each decision an access to memory"
)]
pub enum Clock {
    /// The system's clock.
    System(SystemClock),
    /// A clock that moves only when a test moves it.
    Manual(Arc<ManualClock>),
}

impl Clock {
    /// Returns the clock that a test has given, or the system's; that of a file has the file's anchor.
    pub fn new(manual: Option<Arc<ManualClock>>, anchor: Option<Anchor>) -> Self {
        let system = || anchor.map_or_else(SystemClock::new, SystemClock::with_anchor);
        manual.map_or_else(|| Self::System(system()), Self::Manual)
    }
}

impl earrrl::Clock for Clock {
    #[inline]
    fn now(&self) -> Nanos {
        match self {
            Self::System(clock) => clock.now(),
            Self::Manual(clock) => clock.now(),
        }
    }

    #[inline]
    fn lately(&self, lag: Duration, sealed: Sealed) -> Option<Nanos> {
        match self {
            Self::System(clock) => clock.lately(lag, sealed),
            Self::Manual(_) => None,
        }
    }
}

/// A clock of a test. `F` stands for the function that it follows.
#[derive(Clone)]
pub struct TestClock<F> {
    clock: Arc<ManualClock>,
    follows: Option<F>,
    /// The last reading of the function, in nanoseconds since the epoch.
    last: Arc<AtomicU64>,
}

impl<F> TestClock<F> {
    /// Returns a clock that a test moves.
    pub fn moved(clock: Arc<ManualClock>) -> Self {
        Self {
            clock,
            follows: None,
            last: Arc::default(),
        }
    }

    /// Returns a clock that follows a function, whose time since the epoch is `now`.
    pub fn following(function: F, now: Duration) -> Self {
        let clock = Self {
            follows: Some(function),
            ..Self::moved(Arc::default())
        };
        clock.follow(now);
        clock
    }

    /// Returns the library's clock.
    pub fn shared(&self) -> Arc<ManualClock> {
        Arc::clone(&self.clock)
    }

    /// Moves the clock as far as the function has moved since its last reading. It stands still when the function goes
    /// back. A floating-point number has the time to the microsecond only.
    fn follow(&self, now: Duration) {
        let micros = now.saturating_add(Duration::from_nanos(500)).as_micros();
        let now = Nanos::ZERO + Duration::from_micros(micros.try_into().unwrap_or(u64::MAX));
        let last = Nanos::new(self.last.swap(now.get(), Relaxed));
        self.clock.advance(now.since(last));
    }
}

/// A value that decides by a clock, which may be a test's.
pub struct Timed<T, F> {
    value: T,
    clock: Option<TestClock<F>>,
}

impl<T, F> Timed<T, F> {
    /// Returns the value, beside the clock of a test by which it decides.
    pub fn new(value: T, clock: Option<TestClock<F>>) -> Self {
        Self { value, clock }
    }

    /// Returns the value for a decision: a clock that follows a function is set to its time, which `read` returns. The
    /// function is called here since no lock is held here.
    ///
    /// # Errors
    /// Returns the errors of `read`.
    #[inline]
    pub fn now<E>(&self, read: impl FnOnce(&F) -> Result<Duration, E>) -> Result<&T, E> {
        if let Some(clock) = &self.clock
            && let Some(function) = &clock.follows
        {
            clock.follow(read(function)?);
        }
        Ok(&self.value)
    }

    /// Returns the library's clock of a test.
    pub fn clock(&self) -> Option<Arc<ManualClock>> {
        self.clock.as_ref().map(TestClock::shared)
    }

    /// Returns the time from the epoch to the end of a wait.
    pub fn end_of(&self, wait: Duration) -> Duration {
        let now = match &self.clock {
            Some(test) => earrrl::Clock::now(&*test.clock).since(Nanos::ZERO),
            None => since_epoch(),
        };
        now + wait
    }
}

impl<T, F> Deref for Timed<T, F> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Returns midnight of the present day, in UTC, so that windows of up to a day begin when a test begins.
pub fn start_of_day() -> Duration {
    const DAY: u64 = 86_400;
    Duration::from_secs(since_epoch().as_secs() / DAY * DAY)
}

/// Returns the time since the epoch by the system's clock.
pub fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// Checks that a test's clock is not combined with a path: other processes that share the path have the system's clock.
///
/// # Errors
/// Returns an error for a clock beside a path.
pub fn check_clock(has_clock: bool, has_path: bool) -> Result<(), Error> {
    if has_clock && has_path {
        let problem =
            "clock: processes that share a path have the system's clock; expected one of both";
        return Err(Error::Invalid(problem.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_follows_a_function() {
        let clock = TestClock::following((), Duration::from_secs(100));
        let timed = Timed::new((), Some(clock));
        for (read, expected) in [(100.0, 100.0), (160.3, 160.3), (20.0, 160.3), (25.5, 165.8)] {
            let read = |(): &()| Ok::<_, Error>(Duration::from_secs_f64(read));
            timed.now(read).unwrap();
            assert_eq!(
                timed.end_of(Duration::ZERO),
                Duration::from_secs_f64(expected)
            );
        }
    }
}
