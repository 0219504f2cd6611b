//! A clock that reads the processor's counter and regularly compares it with boot time.
//!
//! The counter is cheap to read but unreliable: it stops in some sleep states, is set back or ahead
//! when a virtual machine moves to another host, and may run at another pace than was measured. It
//! is therefore trusted only for a *stretch*, the time from one comparison with boot time to the
//! next. The comparison decides how the clock continues:
//!
//! * The clock is behind boot time by at most 2^-10 of the stretch. This is normal, since the
//!   counter is read 2^-12 too slow on purpose. The clock steps forward to boot time.
//! * The clock is off by more, or ahead, for example because boot time itself is being slewed. In the
//!   next stretch every answer reads boot time, while the counter is measured again. If the clock was
//!   ahead of boot time, it stands still until boot time catches up.
//!
//! The first stretch runs at the pace that the source states. If that was wrong, the first comparison detects it.
//!
//! Time never goes back. The last instant of a stretch is known when the stretch begins, which
//! bounds how far ahead any thread can be, whatever the counter does. The next stretch begins there, or later.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};
use std::sync::Mutex;

use crate::lock::lock;

/// The length of a stretch by the counter's own account, in nanoseconds.
pub(super) const STRETCH: u64 = 10_000_000;
/// The time for which the counter is measured, in nanoseconds.
pub(super) const MEASURED: u64 = 20_000_000;
/// The counter is read slow by 2^-12, which is more than the error of its measurement.
const SLOW: u32 = 12;
/// The counter is measured again if the clock lags by more than 2^-10: 2^-12 on purpose, and the
/// rest for the slewing of boot time.
const BEHIND: u32 = 10;
/// The number of fractional bits in the nanoseconds of one count.
pub(super) const FRACTION: u32 = 32;
/// The counter was set back if it is more than this many nanoseconds behind the thread's previous
/// reading. The counters of different processors differ by less.
const SKEW: u64 = 10_000;
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
#[derive(Clone, Copy, Default)]
struct Reading {
    counter: u64,
    boot: u64,
}

/// The numbers of a stretch.
type Published = [AtomicU64; 4];

#[repr(align(64))]
pub(super) struct Counted<S> {
    /// The number of the stretch in use.
    version: AtomicU64,
    /// The present stretch, and the previous one, which the next one overwrites.
    stretches: [Published; 2],
    /// An instant of wall time, and the boot time at that instant.
    anchor: (u64, u64),
    source: S,
    /// The reading at which the stretch in use began. The thread that holds the lock begins the next one.
    began: Mutex<Reading>,
}

impl<S: Source> Counted<S> {
    /// Returns a clock that shows `wall` when boot time is `boot`; `None` stands for the present
    /// boot time.
    pub(super) fn new(source: S, wall: u64, boot: Option<u64>) -> Self {
        let mut clock = Self {
            version: AtomicU64::new(0),
            stretches: Default::default(),
            anchor: (wall, boot.unwrap_or_else(|| source.boot())),
            source,
            began: Mutex::default(),
        };
        let began = clock.read();
        let stated = Some(clock.source.a_count()).filter(|a_count| *a_count >= 1 << SLOW);
        clock.publish(&Stretch::new(
            began,
            clock.instant_at(began.boot),
            stated.map(slower),
        ));
        clock.began = Mutex::new(began);
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
        self.compare(before)
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

    /// Returns the present instant when the counter alone is not enough. `before` is the thread's previous reading of
    /// the counter.
    #[cold]
    #[inline(never)]
    fn compare(&self, before: u64) -> u64 {
        loop {
            let (version, stretch) = self.published();
            let counter = self.source.counter();
            let boot = self.instant_at(self.source.boot());
            let mut locked = None;
            let known = stretch.compared(counter, before, boot).or_else(|| {
                locked = self.began.try_lock().ok();
                // If another thread begins the next stretch, the end of this one is a valid answer.
                let is_ending = locked.is_none() && stretch.is_over(counter);
                is_ending.then(|| stretch.end())
            });
            if !self.is_current(version) {
                continue;
            }
            if let Some(time) = known {
                return time;
            }
            let mut began = locked.unwrap_or_else(|| lock(&self.began));
            if self.is_current(version) {
                return self.begin_next(&mut began, &stretch);
            }
        }
    }

    /// Begins the next stretch, and returns its first instant.
    fn begin_next(&self, began: &mut Reading, stretch: &Stretch) -> u64 {
        let reading = self.read();
        let boot = self.instant_at(reading.boot);
        let a_count = if stretch.is_boot_time() {
            began.a_count_until(reading).map(slower)
        } else {
            let lag = boot.checked_sub(stretch.time_at(reading.counter));
            let is_usual = lag.is_some_and(|lag| lag <= stretch.usual(boot));
            (is_usual && stretch.is_over(reading.counter)).then_some(stretch.a_count)
        };
        let next = Stretch::new(reading, boot.max(stretch.end()), a_count);
        *began = reading;
        self.publish(&next);
        next.time
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

    /// Returns true if `version` is still the present stretch.
    #[inline(always)]
    fn is_current(&self, version: u64) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version
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

    /// Publishes a new stretch. Only the holder of the lock, or the clock's constructor, may call
    /// this.
    fn publish(&self, stretch: &Stretch) {
        let version = self.version.load(Relaxed) + 1;
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
    /// Returns a stretch that begins at `time`. It reads the counter at the given pace; without a pace it reads boot
    /// time.
    fn new(Reading { counter, .. }: Reading, time: u64, a_count: Option<u64>) -> Self {
        let counts = a_count.map_or(0, |a_count| {
            let counts = (u128::from(STRETCH) << FRACTION) / u128::from(a_count.max(1));
            u64::try_from(counts).unwrap_or(u64::MAX).max(1)
        });
        Self {
            counter,
            time,
            a_count: a_count.unwrap_or(0),
            counts,
        }
    }

    /// Returns the present instant, unless the stretch is over or the counter in doubt.
    fn compared(&self, counter: u64, before: u64, boot: u64) -> Option<u64> {
        if self.is_boot_time() {
            return Some(boot.max(self.time)).filter(|time| *time < self.end());
        }
        let set_back = counter < self.counter || self.nanos(before.saturating_sub(counter)) > SKEW;
        let latest = counter.max(before);
        let time = self.time_at(latest);
        let is_usual = !self.is_over(latest) && time.abs_diff(boot) <= self.usual(boot);
        (is_usual && !set_back).then_some(time)
    }

    /// Returns the greatest difference from boot time that is no reason for doubt, in nanoseconds. `boot` is the present
    /// boot time.
    fn usual(&self, boot: u64) -> u64 {
        (boot.saturating_sub(self.time) >> BEHIND) + SKEW
    }

    /// Converts a reading of the counter to an instant.
    fn time_at(&self, counter: u64) -> u64 {
        self.time
            .saturating_add(self.nanos(counter.saturating_sub(self.counter)))
    }

    /// Returns the last instant of the stretch.
    fn end(&self) -> u64 {
        let length = if self.is_boot_time() {
            MEASURED
        } else {
            self.nanos(self.counts)
        };
        self.time.saturating_add(length)
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
