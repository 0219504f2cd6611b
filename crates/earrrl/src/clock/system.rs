//! Clocks of the operating system: one that is read on every request, one that ticks.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Arc, Weak};
use std::thread;

use super::{Clock, Nanos};

/// How often the counter is compared with boot time.
const CHECK_EVERY: u64 = 100_000_000;
/// The counter is read slow by 2^-12, more than its calibration errs: so it lags, by at most
/// 25 microseconds between two comparisons, and every correction is a step forward.
const SLOW: u32 = 12;
/// Fractional bits of a count's nanoseconds.
const FRACTION: u32 = 32;

/// The machine's clock: the processor's counter, held to boot time (which goes on while the machine
/// sleeps), and anchored to wall time once, when it is made.
///
/// A step of the wall clock afterwards changes nothing, so it can't prolong or shorten a ban. A
/// reading costs about 10 ns, where `Instant::now` costs 25. Making the first one takes up to
/// 200 ms, for calibration.
pub struct SystemClock {
    counter: quanta::Clock,
    /// The nanoseconds of one count, times 2^32.
    a_count: u64,
    /// What the counter, boot time and wall time showed when it was made.
    started: u64,
    boot: u64,
    anchor: u64,
    /// What the counter lags behind boot time, at the last comparison.
    lag: AtomicU64,
    /// The reading from which on the next comparison is due.
    check_at: AtomicU64,
}

impl SystemClock {
    /// A clock anchored to the present wall time.
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let elapsed = counter.delta_as_nanos(0, 1 << 40);
        let a_count = (u128::from(elapsed) << FRACTION >> 40) as u64;
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            started: counter.raw(),
            counter,
            a_count: a_count - (a_count >> SLOW),
            boot: since_boot(),
            anchor: nanos(wall.unwrap_or_default()),
            lag: AtomicU64::new(0),
            check_at: AtomicU64::new(CHECK_EVERY),
        }
    }

    #[inline]
    fn counted(&self) -> u64 {
        let counted = self.counter.raw().saturating_sub(self.started);
        ((u128::from(counted) * u128::from(self.a_count)) >> FRACTION) as u64
    }

    /// Boot time is read first: whoever is held up in between only seems to lag less.
    #[cold]
    fn check(&self) -> u64 {
        let elapsed = since_boot().saturating_sub(self.boot);
        let counted = self.counted();
        self.check_at.fetch_max(counted + CHECK_EVERY, Relaxed);
        self.lag.fetch_max(elapsed.saturating_sub(counted), Relaxed);
        counted
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Nanos {
        let mut counted = self.counted();
        if counted >= self.check_at.load(Relaxed) {
            counted = self.check();
        }
        Nanos::new(self.anchor + counted + self.lag.load(Relaxed))
    }
}

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SystemClock").field(&self.now()).finish()
    }
}

/// Nanoseconds since the machine was started, its sleep included.
#[cfg(target_os = "linux")]
fn since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    nanos(Duration::try_from(now).unwrap_or_default())
}

/// Nanoseconds of a monotonic clock.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> u64 {
    static FIRST: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    nanos(FIRST.get_or_init(std::time::Instant::now).elapsed())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that a thread of its own moves in steps: to read it is to read a word of memory.
///
/// For limits much coarser than the step. Waits that are computed from it are right to a step. The
/// thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct TickingClock(Arc<AtomicU64>);

impl TickingClock {
    /// A clock that moves every `step`; a millisecond is a good one.
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
    fn it_never_goes_back_and_keeps_to_wall_time() {
        let clock = SystemClock::new();
        let mut last = Nanos::ZERO;
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(nanos(wall).abs_diff(clock.now().get()) < 3_600_000_000_000);
    }

    #[test]
    fn a_comparison_only_moves_it_forward() {
        let clock = SystemClock::new();
        clock.lag.store(5_000_000_000, Relaxed);
        let ahead = clock.now();
        clock.check();
        assert!(clock.now() >= ahead);
        let boot = clock.boot.saturating_sub(60_000_000_000);
        let slept = SystemClock { boot, ..SystemClock::new() };
        let before = slept.now();
        slept.check();
        assert!(slept.now().since(before) > Duration::from_secs(59));
    }

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
