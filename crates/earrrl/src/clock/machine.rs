//! The machine's sources of time: the processor's counter, boot time and wall time.

use core::time::Duration;
use std::time::{SystemTime, UNIX_EPOCH};

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
            let early = Self::early_counter();
            let after = self.counter.raw();
            (before..=after).contains(&early)
        })
    }

    /// Returns the counter as it was up to about a hundred nanoseconds ago: it may be read before
    /// earlier instructions are done. Only for machines that have such a counter.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub(super) fn early_counter() -> u64 {
        // SAFETY: every processor of this architecture has the instruction, which only reads a register.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return unsafe { core::arch::x86_64::_rdtsc() };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        0
    }
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

/// Returns the wall time, in nanoseconds since the Unix epoch.
pub(super) fn wall() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    nanos(wall.unwrap_or_default())
}

/// Returns the nanoseconds since the machine was started, including sleep.
#[cfg(target_os = "linux")]
pub(crate) fn boot() -> u64 {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    nanos(Duration::try_from(boot).unwrap_or_default())
}

/// Returns the nanoseconds of a monotonic clock since this function was called first.
#[cfg(not(target_os = "linux"))]
pub(crate) fn boot() -> u64 {
    use std::{sync::OnceLock, time::Instant};
    static START: OnceLock<Instant> = OnceLock::new();
    nanos(START.get_or_init(Instant::now).elapsed())
}
