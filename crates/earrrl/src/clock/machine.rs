//! The machine's sources of time: the processor's counter, boot time and wall time.

use core::time::Duration;

use super::counted::{FRACTION, Source};

/// The processor's counter and the machine's boot time.
///
/// Where `prctl(PR_SET_TSC)` forbids it, reading the counter kills the process, and so do the
/// system's usual clock functions, which read the counter too. Such a process uses no counter, and
/// reads boot time from a kernel timer.
pub(super) struct Machine {
    counter: Option<quanta::Clock>,
    boot: Boot,
}

impl Machine {
    pub(super) fn new() -> Self {
        let boot = Boot::new();
        let counter = boot.may_read_the_counter().then(quanta::Clock::new);
        Self { counter, boot }
    }

    /// Returns the wall time, in nanoseconds since the Unix epoch.
    pub(super) fn wall(&self) -> u64 {
        self.boot.wall()
    }

    /// Returns true if [`early_counter`](Self::early_counter) returns the same counter.
    pub(super) fn has_early_counter(&self) -> bool {
        let Some(counter) = &self.counter else {
            return false;
        };
        // One attempt may fail, since `early` may be read before `before`.
        (0..16).any(|_| {
            let before = counter.raw();
            let early = early::counter();
            let after = counter.raw();
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
    let boot = Boot::new();
    (boot.wall(), boot.now())
}

impl Source for Machine {
    #[inline(always)]
    fn counter(&self) -> Option<u64> {
        self.counter.as_ref().map(quanta::Clock::raw)
    }

    /// Returns the pace that `quanta` measured once, for some 500 µs, when the process made its first clock.
    fn a_count(&self) -> Option<u64> {
        let counter = self.counter.as_ref()?;
        Some(counter.delta_as_nanos(0, 1 << FRACTION))
    }

    fn boot(&self) -> u64 {
        self.boot.now()
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
        // SAFETY: the instruction only reads a register. It is available to every process that may
        // read the counter, and others have no clock that calls this.
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
use linux::Boot;

#[cfg(target_os = "linux")]
mod linux {
    use core::time::Duration;
    use std::os::fd::OwnedFd;

    use rustix::process::{TimeStampCounterReadability, time_stamp_counter_readability};
    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
        clock_gettime, timerfd_create, timerfd_gettime, timerfd_settime,
    };

    use super::nanos;

    /// The boot time at which the timer would expire, in seconds: 136 years.
    const FAR: i64 = 1 << 32;

    /// The source of boot time: nanoseconds since the machine was started, including sleep.
    pub(super) enum Boot {
        /// The system's clock, which reads the counter and needs no system call.
        Clock,
        /// A timer that expires in the far future. Its remaining time is read by a system call.
        Timer(OwnedFd),
    }

    impl Boot {
        pub(super) fn new() -> Self {
            let trapped = Ok(TimeStampCounterReadability::RaiseSIGSEGV);
            if time_stamp_counter_readability() != trapped {
                return Self::Clock;
            }
            far_timer().map_or(Self::Clock, Self::Timer)
        }

        pub(super) fn may_read_the_counter(&self) -> bool {
            matches!(self, Self::Clock)
        }

        pub(super) fn now(&self) -> u64 {
            let left = match self {
                Self::Clock => return nanos_of(clock_gettime(ClockId::Boottime)),
                Self::Timer(timer) => timerfd_gettime(timer).map(|timer| timer.it_value),
            };
            let left = left.map_or(0, nanos_of);
            nanos(Duration::from_secs(FAR.unsigned_abs())).saturating_sub(left)
        }

        /// Returns the wall time. It may be some milliseconds late if the process may not read the
        /// counter.
        pub(super) fn wall(&self) -> u64 {
            match self {
                Self::Clock => nanos_of(clock_gettime(ClockId::Realtime)),
                Self::Timer(_) => nanos_of(clock_gettime(ClockId::RealtimeCoarse)),
            }
        }
    }

    fn far_timer() -> rustix::io::Result<OwnedFd> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let far = Itimerspec {
            it_interval: zero,
            it_value: Timespec {
                tv_sec: FAR,
                ..zero
            },
        };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &far)?;
        Ok(timer)
    }

    pub(super) fn nanos_of(time: Timespec) -> u64 {
        nanos(Duration::try_from(time).unwrap_or_default())
    }
}

#[cfg(not(target_os = "linux"))]
use other::Boot;

#[cfg(not(target_os = "linux"))]
mod other {
    use std::time::{Instant, SystemTime, UNIX_EPOCH};

    use super::nanos;

    /// A monotonic clock that counts from the construction of this value.
    pub(super) struct Boot(Instant);

    impl Boot {
        pub(super) fn new() -> Self {
            Self(Instant::now())
        }

        pub(super) fn may_read_the_counter(&self) -> bool {
            true
        }

        pub(super) fn now(&self) -> u64 {
            nanos(self.0.elapsed())
        }

        pub(super) fn wall(&self) -> u64 {
            nanos(
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default(),
            )
        }
    }
}
