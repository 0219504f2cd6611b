//! A clock that costs one memory load to read.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Arc, Weak};
use std::thread;

use super::{Clock, Nanos, SystemClock};

/// A clock that a thread of its own advances in steps. Reading it loads one word of memory.
///
/// It suits limits that are much coarser than the step, since the waits that are computed from it
/// are exact only to a step. The thread ends when the last clone of the clock is dropped.
///
/// ```
/// use earrrl::{Limiter, Rule};
/// use earrrl::internal::TickingClock;
/// use std::time::Duration;
///
/// let rule: Rule = "recent-average 1/s half-life=10s".parse()?;
/// let clock = TickingClock::new(Duration::from_millis(1))?;
/// let limiter = Limiter::<str>::builder(rule).clock(clock).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TickingClock(Arc<AtomicU64>);

impl TickingClock {
    /// Returns a clock that advances every `step`; a millisecond suits most limits.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn new(step: Duration) -> std::io::Result<Self> {
        let clock = SystemClock::new();
        let now = Arc::new(AtomicU64::new(clock.now().get()));
        let word = Arc::downgrade(&now);
        thread::Builder::new()
            .name("earrrl-clock".into())
            .spawn(move || tick(&clock, &word, step))?;
        Ok(Self(now))
    }
}

fn tick(clock: &SystemClock, word: &Weak<AtomicU64>, step: Duration) {
    while let Some(word) = word.upgrade() {
        word.store(clock.now().get(), Relaxed);
        drop(word);
        thread::sleep(step);
    }
}

impl Clock for TickingClock {
    #[inline]
    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticking_clock_moves() {
        let clock = TickingClock::new(Duration::from_micros(10)).unwrap();
        let first = clock.now();
        while clock.clone().now() == first {
            thread::yield_now();
        }
        assert!(clock.now() > first);
    }
}
