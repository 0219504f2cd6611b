//! A counter that is held to boot time.
//!
//! The counter is cheap to read, and not to be trusted: it stops in some sleeps, is set back or
//! ahead when a virtual machine moves, and may run at another pace than it was measured to. So it is
//! believed only for a *stretch*, from one comparison with boot time to the next. What a comparison
//! finds decides how time goes on:
//!
//! - behind boot time by at most 2^-10, as it is meant to be, since the counter is read slow by 2^-12:
//!   a step forward.
//! - ahead by at most 2^-12 of the time since the comparison before and a millisecond (boot time is
//!   slewed, too): no step, and the next stretch runs slower.
//! - anything else: boot time is read for every answer, until the counter has been measured again. If
//!   time was ahead of boot time, it stands still until that has caught up.
//!
//! Time never goes back. The last instant of a stretch is known when it begins, so it is known how
//! far ahead any thread can be, whatever the counter did to it.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU64, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The time for which the counter is believed without a comparison, by its own account, in nanoseconds.
pub(super) const STRETCH: u64 = 10_000_000;
/// The time for which the counter is measured, in nanoseconds.
pub(super) const MEASURED: u64 = 20_000_000;
/// The counter is read slow by 2^-12, more than its measurement errs.
const SLOW: u32 = 12;
/// It is measured again when it lags by more than 2^-10: its own 2^-12 and what boot time is slewed.
const BEHIND: u32 = 10;
/// The nanoseconds by which the counter may be ahead, beside 2^-12 of the time that it counted.
pub(super) const AHEAD: u64 = 1_000_000;
/// Fractional bits of a count's nanoseconds.
const FRACTION: u32 = 32;
/// A counter this many nanoseconds behind what the thread has read before was set back; counters of
/// different processors differ by less.
const SKEW: u64 = 10_000;
/// The bit that closes a version: no thread may use its stretch.
const CLOSED: u64 = 1 << 63;
/// Boot time is read before and after the counter, at most so often, until both are close.
const ATTEMPTS: usize = 8;
const CLOSE: u64 = 1_000;

/// The sources of time. Tests bring one of their own.
pub(super) trait Source: Send + Sync {
    /// Returns the counter, where there is one.
    fn counter(&self) -> Option<u64>;
    /// Nanoseconds since the machine was started, its sleep included.
    fn boot(&self) -> u64;
}

std::thread_local! {
    /// The counter as this thread last read it: one that stands still or was set back is not believed.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// Returns the counter as this thread last read it.
pub(super) fn last_read() -> u64 {
    LAST.get()
}

/// The way in which time goes on from a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    /// The counter when it began.
    counter: u64,
    /// The instant when it began. No instant before it is returned any more.
    time: u64,
    /// The nanoseconds of one count, times 2^32; 0 where boot time is read.
    a_count: u64,
    /// The counts after which it is over.
    counts: u64,
}

/// The counter and boot time at one instant.
#[derive(Clone, Copy)]
struct Reading {
    counter: u64,
    boot: u64,
}

#[derive(Default)]
struct Published {
    counter: AtomicU64,
    time: AtomicU64,
    a_count: AtomicU64,
    counts: AtomicU64,
}

/// The state that only the thread that compares uses.
struct Comparison {
    /// The reading at which the measurement of the counter began.
    measured_from: Option<Reading>,
}

#[repr(align(64))]
pub(super) struct Counted<S> {
    /// The number of the stretch, and whether it is closed.
    version: AtomicU64,
    /// The present stretch and the one before or after it.
    stretches: [Published; 2],
    /// An instant, and boot time then.
    anchor: (u64, u64),
    source: S,
    comparison: Mutex<Comparison>,
}

impl<S: Source> Counted<S> {
    /// Time that is `wall` when boot time is `boot`, or now.
    pub(super) fn new(source: S, wall: u64, boot: Option<u64>) -> Self {
        let boot = boot.unwrap_or_else(|| source.boot());
        let clock = Self {
            version: AtomicU64::new(0),
            stretches: Default::default(),
            anchor: (wall, boot),
            source,
            comparison: Mutex::new(Comparison { measured_from: None }),
        };
        clock.publish(&Stretch { counter: 0, time: 0, a_count: 0, counts: 0 });
        clock
    }

    pub(super) fn anchor(&self) -> (u64, u64) {
        self.anchor
    }

    /// Returns the present instant.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        let (version, stretch) = self.published();
        let Some(counter) = self.source.counter() else { return self.by_boot_time() };
        let before = LAST.replace(counter);
        let counted = counter.wrapping_sub(stretch.counter);
        if counted < stretch.counts && counter > before && self.is_current(version) {
            return stretch.time + stretch.nanos(counted);
        }
        self.compare(counter, before)
    }

    /// Returns the instant at which the counter was so, if the present stretch had begun.
    #[inline]
    pub(super) fn at(&self, counter: u64) -> Option<u64> {
        let (version, stretch) = self.published();
        let counted = counter.wrapping_sub(stretch.counter);
        let is_known = counted < stretch.counts && self.is_current(version);
        is_known.then(|| stretch.time + stretch.nanos(counted))
    }

    /// Without a counter, the first stretch never ends.
    fn by_boot_time(&self) -> u64 {
        self.instant_at(self.source.boot())
    }

    /// Returns the instant that belongs to a boot time.
    fn instant_at(&self, boot: u64) -> u64 {
        let (wall, since) = self.anchor;
        match boot.checked_sub(since) {
            Some(passed) => wall.saturating_add(passed),
            None => wall.saturating_sub(since - boot),
        }
    }

    /// Returns the present instant after a comparison, which a counter that is not to be believed needs.
    #[cold]
    #[inline(never)]
    fn compare(&self, counter: u64, before: u64) -> u64 {
        loop {
            let (version, stretch) = self.published();
            let time = if stretch.is_boot_time() {
                let boot = self.source.boot();
                if let Ok(mut comparison) = self.comparison.try_lock() {
                    self.measure(&mut comparison, boot);
                }
                self.instant_at(boot).max(stretch.time)
            } else if let Some(mut comparison) = self.lock(counter, &stretch) {
                if self.is_current(version) {
                    return self.go_on(&mut comparison, &stretch, before);
                }
                continue;
            } else {
                stretch.end()
            };
            if self.is_current(version) {
                return time;
            }
        }
    }

    /// Locks the comparison. Returns `None` if the stretch is merely over and another thread compares: the
    /// stretch's end is an answer, so no thread waits.
    fn lock(&self, counter: u64, stretch: &Stretch) -> Option<MutexGuard<'_, Comparison>> {
        match self.comparison.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::WouldBlock) if stretch.is_over(counter) => None,
            Err(_) => Some(self.comparison.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Ends a stretch by the counter, and answers the instant at which the next one begins.
    fn go_on(&self, comparison: &mut Comparison, stretch: &Stretch, before: u64) -> u64 {
        let reading = self.read();
        let (time, boot) = (stretch.time_at(reading.counter), self.instant_at(reading.boot));
        let set_back = reading.counter < stretch.counter
            || stretch.nanos(before.saturating_sub(reading.counter)) > SKEW;
        let passed = boot.saturating_sub(stretch.time);
        let usual = (passed >> BEHIND) + SKEW;
        if !set_back && !stretch.is_over(reading.counter) && time.abs_diff(boot) <= usual {
            return time;
        }
        let lag = boot.checked_sub(time).filter(|_| !set_back);
        // At no lag two stretches could differ by a nanosecond, since counts are rounded down.
        let next = if lag.is_some_and(|lag| lag > 0 && lag <= usual) {
            Stretch { time: boot, ..Stretch::of(stretch.a_count, reading.counter) }
        } else {
            let ahead = time.checked_sub(boot).filter(|_| !set_back);
            let tolerated = ahead.is_some_and(|ahead| ahead <= (passed >> SLOW) + AHEAD);
            self.doubt(comparison, stretch, reading.counter, set_back, tolerated)
        };
        self.publish(&next);
        next.time
    }

    /// Returns the stretch that begins at an instant no thread has gone beyond. If the counter is only a little
    /// ahead, the stretch slows it; otherwise boot time is read.
    fn doubt(
        &self,
        comparison: &mut Comparison,
        stretch: &Stretch,
        counter: u64,
        set_back: bool,
        tolerated: bool,
    ) -> Stretch {
        let reading = self.close();
        // It may have been set back since it was compared.
        let set_back = set_back || reading.counter < counter;
        let latest = if set_back { stretch.end() } else { stretch.time_at(reading.counter) };
        let time = latest.min(stretch.end()).max(self.instant_at(reading.boot));
        if tolerated && !set_back {
            let slower = stretch.a_count - (stretch.a_count >> SLOW);
            return Stretch { time, ..Stretch::of(slower, reading.counter) };
        }
        comparison.measured_from = None;
        Stretch { counter: 0, time, a_count: 0, counts: 0 }
    }

    /// Measures the counter while boot time is read, and begins a stretch by the counter when that is done.
    fn measure(&self, comparison: &mut Comparison, boot: u64) {
        let (_, stretch) = self.published();
        let since = comparison.measured_from.map(|from| boot.saturating_sub(from.boot));
        if !stretch.is_boot_time() || since.is_some_and(|since| since < MEASURED) {
            return;
        }
        let reading = self.close();
        let a_count = comparison.measured_from.and_then(|from| from.a_count_until(reading));
        comparison.measured_from = Some(reading);
        let time = self.instant_at(reading.boot);
        let next = match a_count {
            Some(a_count) if time >= stretch.time => {
                let slow = a_count - (a_count >> SLOW);
                Stretch { time, ..Stretch::of(slow, reading.counter) }
            }
            _ => stretch,
        };
        self.publish(&next);
    }

    /// From here until the next stretch is published, no thread gets the time. So what threads have got
    /// by now was no later than this.
    fn close(&self) -> Reading {
        self.version.fetch_or(CLOSED, SeqCst);
        self.read()
    }

    /// Returns the counter, between two readings of boot time that are close: of these the earlier, so that
    /// whoever is held up in between only seems to lag less.
    fn read(&self) -> Reading {
        let mut boot = self.source.boot();
        for _ in 0..ATTEMPTS {
            let counter = self.source.counter().unwrap_or(0);
            let after = self.source.boot();
            if after.saturating_sub(boot) <= CLOSE {
                return Reading { counter, boot };
            }
            boot = after;
        }
        Reading { counter: self.source.counter().unwrap_or(0), boot }
    }

    /// Returns true if the stretch of that number is the one that was read, and time still goes on by it.
    #[inline(always)]
    fn is_current(&self, version: u64) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version & !CLOSED
    }

    /// Returns the present stretch. Its fields may be those of two stretches; [`Self::is_current`] finds out.
    #[inline(always)]
    fn published(&self) -> (u64, Stretch) {
        let version = self.version.load(Acquire);
        let published = &self.stretches[version as usize % 2];
        let stretch = Stretch {
            counter: published.counter.load(Relaxed),
            time: published.time.load(Relaxed),
            a_count: published.a_count.load(Relaxed),
            counts: published.counts.load(Relaxed),
        };
        (version, stretch)
    }

    /// Only for the holder of the lock, or the maker of the clock.
    fn publish(&self, stretch: &Stretch) {
        let version = (self.version.load(Relaxed) & !CLOSED) + 1;
        fence(Release);
        let published = &self.stretches[version as usize % 2];
        published.counter.store(stretch.counter, Relaxed);
        published.time.store(stretch.time, Relaxed);
        published.a_count.store(stretch.a_count, Relaxed);
        published.counts.store(stretch.counts, Relaxed);
        self.version.store(version, Release);
    }
}

impl Stretch {
    /// One by the counter, at that pace.
    fn of(a_count: u64, counter: u64) -> Self {
        let counts = (u128::from(STRETCH) << FRACTION) / u128::from(a_count.max(1));
        let counts = u64::try_from(counts).unwrap_or(u64::MAX).max(1);
        Self { counter, time: 0, a_count, counts }
    }

    /// Returns the instant that belongs to a count.
    fn time_at(&self, counter: u64) -> u64 {
        self.time.saturating_add(self.nanos(counter.saturating_sub(self.counter)))
    }

    /// Returns the last instant of the stretch.
    fn end(&self) -> u64 {
        self.time.saturating_add(self.nanos(self.counts))
    }

    fn is_over(&self, counter: u64) -> bool {
        counter.checked_sub(self.counter).is_some_and(|counted| counted >= self.counts)
    }

    fn is_boot_time(&self) -> bool {
        self.a_count == 0
    }

    #[inline(always)]
    fn nanos(&self, counts: u64) -> u64 {
        ((u128::from(counts) * u128::from(self.a_count)) >> FRACTION) as u64
    }
}

impl Reading {
    /// Returns the nanoseconds of one count, times 2^32; none for a counter that did not count.
    fn a_count_until(self, later: Self) -> Option<u64> {
        let counts = later.counter.checked_sub(self.counter).filter(|counts| *counts > 0)?;
        let passed = later.boot.checked_sub(self.boot)?;
        let a_count = (u128::from(passed) << FRACTION) / u128::from(counts);
        u64::try_from(a_count).ok().filter(|a_count| *a_count >= 1 << SLOW)
    }
}

#[cfg(test)]
#[path = "counted_tests.rs"]
mod tests;
