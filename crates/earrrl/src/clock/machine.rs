//! The machine's sources of time: the processor's counter, boot time and wall time.

use core::time::Duration;

use super::counted::{FRACTION, Source};

/// The processor's counter, and the machine's boot time.
pub(super) struct Machine {
    counter: quanta::Clock,
}

impl Machine {
    pub(super) fn new() -> Self {
        Self {
            counter: quanta::Clock::new(),
        }
    }

    /// Returns true if [`early_counter`](Self::early_counter) returns the same counter.
    pub(super) fn has_early_counter(&self) -> bool {
        // One attempt may fail, since `early` may be read before `before`.
        (0..16).any(|_| {
            let before = self.counter.raw();
            let early = early::counter();
            let after = self.counter.raw();
            (before..=after).contains(&early)
        })
    }

    /// Returns the counter as it was up to about a hundred nanoseconds ago: it may be read before
    /// earlier instructions are done. Only for machines that have such a counter.
    #[inline]
    pub(super) fn early_counter() -> u64 {
        early::counter()
    }
}

/// Returns the wall time and the boot time, in nanoseconds.
pub(crate) fn wall_and_boot() -> (u64, u64) {
    (wall(), boot())
}

impl Source for Machine {
    #[inline(always)]
    fn counter(&self) -> u64 {
        self.counter.raw()
    }

    /// Returns the pace that `quanta` measured once, for some 500 µs, when the process made its first clock.
    fn a_count(&self) -> u64 {
        self.counter.delta_as_nanos(0, 1 << FRACTION)
    }

    fn boot(&self) -> u64 {
        boot()
    }
}

/// Returns the id of the machine's present boot, which changes at every restart; `None` if the
/// system has no such id.
pub(super) fn boot_id() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod early {
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(super) fn counter() -> u64 {
        // SAFETY: every processor of this architecture has the instruction, which only reads a
        // register.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod early {
    pub(super) fn counter() -> u64 {
        0
    }
}

#[cfg(target_os = "linux")]
use linux::boot;
#[cfg(target_os = "linux")]
pub(super) use linux::wall;

#[cfg(target_os = "linux")]
mod linux {
    use core::time::Duration;

    use rustix::time::{ClockId, Timespec, clock_gettime};

    use super::nanos;

    /// Returns the nanoseconds since the machine was started, including sleep.
    pub(super) fn boot() -> u64 {
        nanos_of(clock_gettime(ClockId::Boottime))
    }

    /// Returns the wall time, in nanoseconds since the Unix epoch.
    pub(crate) fn wall() -> u64 {
        nanos_of(clock_gettime(ClockId::Realtime))
    }

    fn nanos_of(time: Timespec) -> u64 {
        nanos(Duration::try_from(time).unwrap_or_default())
    }
}

#[cfg(not(target_os = "linux"))]
use other::boot;
#[cfg(not(target_os = "linux"))]
pub(super) use other::wall;

#[cfg(not(target_os = "linux"))]
mod other {
    use std::sync::OnceLock;
    use std::time::{Instant, SystemTime, UNIX_EPOCH};

    use super::nanos;

    /// Returns the nanoseconds of a monotonic clock since this function was called first.
    pub(super) fn boot() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        nanos(START.get_or_init(Instant::now).elapsed())
    }

    /// Returns the wall time, in nanoseconds since the Unix epoch.
    pub(crate) fn wall() -> u64 {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        nanos(wall.unwrap_or_default())
    }
}
