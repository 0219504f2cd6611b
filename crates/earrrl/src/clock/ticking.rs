//! A clock that is a word of memory.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Arc, Weak};
use std::thread;

use super::{Clock, Nanos, SystemClock};

/// A clock that a thread of its own moves in steps: to read it is to read a word of memory.
///
/// For limits much coarser than the step. Waits that are computed from it are right to a step. The
/// thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct TickingClock(Arc<AtomicU64>);

impl TickingClock {
    /// Returns a clock that moves every `step`; a millisecond is a good one.
    ///
    /// # Errors
    /// When the thread can't be started.
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
