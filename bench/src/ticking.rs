//! A clock that costs one memory load to read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use earrrl::{Clock, Nanos, SystemClock};

/// A clock that a thread of its own advances in steps. Reading it loads one word of memory.
///
/// It suits limits that are much coarser than the step, since the waits that are computed from it
/// are exact only to a step. The thread ends when the last clone of the clock is dropped.
#[derive(Clone, Debug)]
pub struct TickingClock(Arc<AtomicU64>);

impl TickingClock {
    /// Returns a clock that advances every `step`; a millisecond suits most limits.
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
