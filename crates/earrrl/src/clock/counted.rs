//! A clock that reads the processor's counter and regularly compares it with boot time.
//!
//! The counter is cheap to read but unreliable: it stops in some sleep states, is set back or ahead
//! when a virtual machine moves to another host, and may run at another pace than was measured. It
//! is therefore trusted only for a *stretch*, the time from one comparison with boot time to the
//! next. The comparison decides how the clock continues:
//!
//! * The clock is behind boot time by at most 2^-10 of the stretch. This is normal, since the
//!   counter is read 2^-12 too slow on purpose. The clock steps forward to boot time.
//! * The clock is ahead of boot time by at most 2^-12 of the stretch and a millisecond, for example
//!   because boot time itself is being slewed. The clock makes no step, and the next stretch runs
//!   slower.
//! * The clock is off by more. Every answer then reads boot time until the counter has been
//!   measured again. If the clock was ahead of boot time, it stands still until boot time catches
//!   up.
//!
//! The first stretch runs at the pace that the source states. If that was wrong, the first comparison detects it.
//!
//! Time never goes back. The last instant of a stretch is known when the stretch begins, which
//! bounds how far ahead any thread can be, whatever the counter does.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU64, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The length of a stretch by the counter's own account, in nanoseconds.
pub(super) const STRETCH: u64 = 10_000_000;
/// The time for which the counter is measured, in nanoseconds.
pub(super) const MEASURED: u64 = 20_000_000;
/// The counter is read slow by 2^-12, which is more than the error of its measurement.
const SLOW: u32 = 12;
/// The counter is measured again if the clock lags by more than 2^-10: 2^-12 on purpose, and the
/// rest for the slewing of boot time.
const BEHIND: u32 = 10;
/// The nanoseconds by which the clock may be ahead, in addition to 2^-12 of the stretch.
pub(super) const AHEAD: u64 = 1_000_000;
/// The number of fractional bits in the nanoseconds of one count.
pub(super) const FRACTION: u32 = 32;
/// The counter was set back if it is more than this many nanoseconds behind the thread's previous
/// reading. The counters of different processors differ by less.
const SKEW: u64 = 10_000;
/// The bit of the version that closes a stretch: no thread may use it any more.
const CLOSED: u64 = 1 << 63;
/// The greatest number of attempts to read boot time, the counter and boot time again within
/// `CLOSE` nanoseconds.
const ATTEMPTS: usize = 8;
const CLOSE: u64 = 1_000;

/// The sources of time, which the tests replace.
pub(super) trait Source: Send + Sync {
    /// Returns the processor's counter.
    fn counter(&self) -> u64;
    /// Returns the nanoseconds per count, times 2^32; 0 if they are not known without a measurement.
    fn a_count(&self) -> u64;
    /// Returns the nanoseconds since the machine was started, including sleep.
    fn boot(&self) -> u64;
}

std::thread_local! {
    /// This thread's previous reading of the counter. If the counter stands still or was set back
    /// since, it is not trusted.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// Returns this thread's latest reading of the counter.
pub(super) fn last_read() -> u64 {
    LAST.get()
}

/// A line from one comparison: how the counter is converted to time until the next comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    /// The counter at the stretch's beginning.
    counter: u64,
    /// The instant at the stretch's beginning. No earlier instant is returned any more.
    time: u64,
    /// The nanoseconds per count, times 2^32; 0 if boot time is read instead of the counter.
    a_count: u64,
    /// The number of counts after which the stretch is over.
    counts: u64,
}

/// The counter and boot time at the same instant.
#[derive(Clone, Copy)]
struct Reading {
    counter: u64,
    boot: u64,
}

/// The numbers of a stretch.
type Published = [AtomicU64; 4];

#[repr(align(64))]
pub(super) struct Counted<S> {
    /// The number of the stretch in use, and the bit [`CLOSED`].
    version: AtomicU64,
    /// The present stretch, and the previous one, which the next one overwrites.
    stretches: [Published; 2],
    /// An instant of wall time, and the boot time at that instant.
    anchor: (u64, u64),
    source: S,
    /// The reading at which the present measurement of the counter began. The thread that holds the lock compares.
    measured_from: Mutex<Option<Reading>>,
}

impl<S: Source> Counted<S> {
    /// Returns a clock that shows `wall` when boot time is `boot`; `None` stands for the present
    /// boot time.
    pub(super) fn new(source: S, wall: u64, boot: Option<u64>) -> Self {
        let boot = boot.unwrap_or_else(|| source.boot());
        let clock = Self {
            version: AtomicU64::new(0),
            stretches: Default::default(),
            anchor: (wall, boot),
            source,
            measured_from: Mutex::new(None),
        };
        let stated = clock.source.a_count();
        let first = if stated >= 1 << SLOW {
            clock.stretch_from(clock.read(), stated)
        } else {
            Stretch::by_boot_time(0)
        };
        clock.publish(&first);
        clock
    }

    pub(super) fn anchor(&self) -> (u64, u64) {
        self.anchor
    }

    /// Returns the present instant, in nanoseconds since the Unix epoch.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        let (version, stretch) = self.published();
        let counter = self.source.counter();
        let before = LAST.replace(counter);
        let counted = counter.wrapping_sub(stretch.counter);
        if counted < stretch.counts && counter > before && self.is_current(version) {
            return stretch.time + stretch.nanos(counted);
        }
        self.compare(counter, before)
    }

    /// Returns the instant of an earlier reading of the counter, or `None` if the reading is not of
    /// the present stretch.
    #[inline]
    pub(super) fn at(&self, counter: u64) -> Option<u64> {
        let (version, stretch) = self.published();
        let counted = counter.wrapping_sub(stretch.counter);
        let is_known = counted < stretch.counts && self.is_current(version);
        is_known.then(|| stretch.time + stretch.nanos(counted))
    }

    /// Converts boot time to an instant.
    fn instant_at(&self, boot: u64) -> u64 {
        let (wall, since) = self.anchor;
        match boot.checked_sub(since) {
            Some(passed) => wall.saturating_add(passed),
            None => wall.saturating_sub(since - boot),
        }
    }

    /// Returns the present instant when the counter alone is not enough: compares the counter with
    /// boot time first.
    #[cold]
    #[inline(never)]
    fn compare(&self, counter: u64, before: u64) -> u64 {
        loop {
            let (version, stretch) = self.published();
            let time = if stretch.is_boot_time() {
                let boot = self.source.boot();
                if let Ok(mut measured_from) = self.measured_from.try_lock() {
                    self.measure(&mut measured_from, boot);
                }
                self.instant_at(boot).max(stretch.time)
            } else if let Some(mut measured_from) = self.lock(counter, &stretch) {
                if self.is_current(version) {
                    return self.go_on(&mut measured_from, &stretch, before);
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

    /// Locks the comparison. Returns `None` if the stretch is simply over and another thread is
    /// comparing already. The end of the stretch is then a valid answer, so no thread has to wait.
    fn lock(&self, counter: u64, stretch: &Stretch) -> Option<MutexGuard<'_, Option<Reading>>> {
        match self.measured_from.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::WouldBlock) if stretch.is_over(counter) => None,
            Err(_) => Some(
                self.measured_from
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            ),
        }
    }

    /// Compares the counter with boot time and begins the next stretch if necessary. Returns the
    /// present instant.
    fn go_on(&self, measured_from: &mut Option<Reading>, stretch: &Stretch, before: u64) -> u64 {
        let reading = self.read();
        let time = stretch.time_at(reading.counter);
        let boot = self.instant_at(reading.boot);
        let set_back = reading.counter < stretch.counter
            || stretch.nanos(before.saturating_sub(reading.counter)) > SKEW;
        let passed = boot.saturating_sub(stretch.time);
        let usual = (passed >> BEHIND) + SKEW;
        if !set_back && !stretch.is_over(reading.counter) && time.abs_diff(boot) <= usual {
            return time;
        }
        let lag = boot.checked_sub(time).filter(|_| !set_back);
        // A lag of 0 is no step, since counts are rounded down and the next stretch could begin a
        // nanosecond early.
        let next = if lag.is_some_and(|lag| lag > 0 && lag <= usual) {
            Stretch::of(stretch.a_count, reading.counter, boot)
        } else {
            let ahead = time.checked_sub(boot).filter(|_| !set_back);
            let tolerated = ahead.is_some_and(|ahead| ahead <= (passed >> SLOW) + AHEAD);
            self.doubt(measured_from, stretch, reading.counter, set_back, tolerated)
        };
        self.publish(&next);
        next.time
    }

    /// Returns a stretch that begins at an instant no thread has passed. If the counter is only a
    /// little ahead, the stretch runs slower; otherwise boot time is read.
    fn doubt(
        &self,
        measured_from: &mut Option<Reading>,
        stretch: &Stretch,
        counter: u64,
        set_back: bool,
        tolerated: bool,
    ) -> Stretch {
        let reading = self.close();
        // The counter may have been set back since the comparison.
        let set_back = set_back || reading.counter < counter;
        let latest = if set_back {
            stretch.end()
        } else {
            stretch.time_at(reading.counter)
        };
        let time = latest.min(stretch.end()).max(self.instant_at(reading.boot));
        if tolerated && !set_back {
            return Stretch::of(slower(stretch.a_count), reading.counter, time);
        }
        *measured_from = None;
        Stretch::by_boot_time(time)
    }

    /// Measures the counter while boot time is read, and then begins a stretch that uses the
    /// counter.
    fn measure(&self, measured_from: &mut Option<Reading>, boot: u64) {
        let (_, stretch) = self.published();
        let since = measured_from.map(|from| boot.saturating_sub(from.boot));
        if !stretch.is_boot_time() || since.is_some_and(|since| since < MEASURED) {
            return;
        }
        let reading = self.close();
        let a_count = measured_from.and_then(|from| from.a_count_until(reading));
        *measured_from = Some(reading);
        let next = a_count.map(|a_count| self.stretch_from(reading, a_count));
        let next = next.filter(|next| next.time >= stretch.time);
        self.publish(&next.unwrap_or(stretch));
    }

    /// Returns the stretch that begins at a reading, with a pace that was just measured.
    fn stretch_from(&self, reading: Reading, a_count: u64) -> Stretch {
        let time = self.instant_at(reading.boot);
        Stretch::of(slower(a_count), reading.counter, time)
    }

    /// Closes the stretch: no thread gets an instant until the next stretch is published. So no
    /// thread has got an instant later than that of the returned reading.
    fn close(&self) -> Reading {
        self.version.fetch_or(CLOSED, SeqCst);
        self.read()
    }

    /// Reads the counter between two readings of boot time that are close together. Returns the
    /// earlier reading of boot time: if the thread was interrupted in between, the clock lags
    /// rather than being ahead.
    fn read(&self) -> Reading {
        let mut boot = self.source.boot();
        for _ in 0..ATTEMPTS {
            let counter = self.source.counter();
            let after = self.source.boot();
            if after.saturating_sub(boot) <= CLOSE {
                return Reading { counter, boot };
            }
            boot = after;
        }
        Reading {
            counter: self.source.counter(),
            boot,
        }
    }

    /// Returns true if `version` is still the present stretch and the stretch is not closed.
    #[inline(always)]
    fn is_current(&self, version: u64) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version & !CLOSED
    }

    /// Returns the present stretch and its version. The fields may belong to two different
    /// stretches, which [`Self::is_current`] detects.
    #[inline(always)]
    fn published(&self) -> (u64, Stretch) {
        let version = self.version.load(Acquire);
        let published = &self.stretches[version as usize % 2];
        let [counter, time, a_count, counts] = published.each_ref().map(|word| word.load(Relaxed));
        let stretch = Stretch {
            counter,
            time,
            a_count,
            counts,
        };
        (version, stretch)
    }

    /// Publishes a new stretch. Only the holder of the comparison's lock, or the clock's
    /// constructor, may call this.
    fn publish(&self, stretch: &Stretch) {
        let version = (self.version.load(Relaxed) & !CLOSED) + 1;
        fence(Release);
        let published = &self.stretches[version as usize % 2];
        let Stretch {
            counter,
            time,
            a_count,
            counts,
        } = *stretch;
        for (word, number) in published.iter().zip([counter, time, a_count, counts]) {
            word.store(number, Relaxed);
        }
        self.version.store(version, Release);
    }
}

impl Stretch {
    /// Returns a stretch that begins at `time`, when the counter was `counter`, with the given pace.
    fn of(a_count: u64, counter: u64, time: u64) -> Self {
        let counts = (u128::from(STRETCH) << FRACTION) / u128::from(a_count.max(1));
        let counts = u64::try_from(counts).unwrap_or(u64::MAX).max(1);
        Self {
            counter,
            time,
            a_count,
            counts,
        }
    }

    /// Returns a stretch in which boot time is read.
    fn by_boot_time(time: u64) -> Self {
        Self {
            counter: 0,
            time,
            a_count: 0,
            counts: 0,
        }
    }

    /// Converts a reading of the counter to an instant.
    fn time_at(&self, counter: u64) -> u64 {
        self.time
            .saturating_add(self.nanos(counter.saturating_sub(self.counter)))
    }

    /// Returns the last instant of the stretch.
    fn end(&self) -> u64 {
        self.time.saturating_add(self.nanos(self.counts))
    }

    fn is_over(&self, counter: u64) -> bool {
        counter
            .checked_sub(self.counter)
            .is_some_and(|counted| counted >= self.counts)
    }

    fn is_boot_time(&self) -> bool {
        self.a_count == 0
    }

    #[inline(always)]
    fn nanos(&self, counts: u64) -> u64 {
        ((u128::from(counts) * u128::from(self.a_count)) >> FRACTION) as u64
    }
}

/// Returns a pace that is slower by 2^-12.
fn slower(a_count: u64) -> u64 {
    a_count - (a_count >> SLOW)
}

impl Reading {
    /// Returns the nanoseconds per count, times 2^32; `None` if the counter did not advance.
    fn a_count_until(self, later: Self) -> Option<u64> {
        let counts = later
            .counter
            .checked_sub(self.counter)
            .filter(|counts| *counts > 0)?;
        let passed = later.boot.checked_sub(self.boot)?;
        let a_count = (u128::from(passed) << FRACTION) / u128::from(counts);
        u64::try_from(a_count)
            .ok()
            .filter(|a_count| *a_count >= 1 << SLOW)
    }
}

#[cfg(test)]
#[path = "counted_tests.rs"]
mod tests;
