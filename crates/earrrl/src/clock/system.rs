//! The machine's clock, as users have it.

use core::fmt;
use core::time::Duration;

use super::counted::{Counted, Source};
use super::machine::{Machine, boot_id};
use super::{Clock, Nanos, Sealed, counted, lately};

/// The machine's clock: the processor's counter, held to boot time (which goes on while the machine
/// sleeps), and anchored to wall time once, when it is made.
///
/// A step of the wall clock afterwards changes nothing, so it can't prolong or shorten a ban. A
/// counter that stops, is set back, jumps or runs at another pace is noticed at the next comparison
/// with boot time, at most 10 ms of counting later; the clock then tells boot time until the counter
/// is measured again. It never goes back. A reading costs about 10 ns, where `Instant::now` costs 25.
///
/// A reading also waits until all instructions before it are done. On x86-64 Linux, a
/// [`Limiter`](crate::Limiter) in a loop without a microsecond's pause therefore uses the latest reading of
/// any thread up to 31 times, where its rule is slow enough for that. A pause is noticed by the kernel's
/// coarse clock, so the reading is at most a tick old (1 to 10 ms), and time still never goes back from
/// one thread to another.
///
/// Where a process may not read the counter (`PR_SET_TSC`), the clock tells boot time only, if the
/// restriction is there when the clock is made.
pub struct SystemClock {
    counted: Counted<Machine>,
    /// The step of the system's coarse clock; `None` where it is of no use.
    step: Option<Duration>,
}

/// The instant at which boot time was read. Two clocks of one machine with the same anchor agree, also in two
/// processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The instant.
    pub wall: Nanos,
    /// Boot time at that instant: the time since the machine was started.
    pub boot: Duration,
    /// The id of that start of the machine; `None` where the system has none.
    pub boot_id: Option<u128>,
}

impl SystemClock {
    /// Returns a clock anchored to the present wall time. The first one of a process takes up to 200 ms.
    pub fn new() -> Self {
        let machine = Machine::new();
        let wall = machine.wall();
        Self::of(machine, wall, None)
    }

    fn of(machine: Machine, wall: u64, boot: Option<u64>) -> Self {
        let step = machine.step();
        Self { counted: Counted::new(machine, wall, boot), step }
    }

    /// Returns a clock that goes on as the one did whose [`anchor`](Self::anchor) this is, whatever became of
    /// wall time since. After a restart of the machine boot time begins again at zero, so the clock is anchored
    /// to the present wall time, but never before the anchor's.
    ///
    /// ```
    /// use earrrl::{Clock, SystemClock};
    ///
    /// let clock = SystemClock::new();
    /// let other = SystemClock::with_anchor(clock.anchor());
    /// assert!(other.now().since(clock.now()).as_secs() < 1);
    /// ```
    pub fn with_anchor(anchor: Anchor) -> Self {
        let machine = Machine::new();
        let boot = u64::try_from(anchor.boot.as_nanos()).unwrap_or(u64::MAX);
        let same_start = anchor.boot_id.is_some() && anchor.boot_id == boot_id();
        if same_start && boot <= machine.boot() {
            return Self::of(machine, anchor.wall.get(), Some(boot));
        }
        let wall = machine.wall().max(anchor.wall.get());
        Self::of(machine, wall, None)
    }

    /// Returns the anchor that another process needs to have the same time.
    pub fn anchor(&self) -> Anchor {
        let (wall, boot) = self.counted.anchor();
        Anchor { wall: Nanos::new(wall), boot: Duration::from_nanos(boot), boot_id: boot_id() }
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
        let now = self.counted.now();
        lately::publish(counted::last_read());
        Nanos::new(now)
    }

    #[inline]
    fn lately(&self, lag: Duration, _: Sealed) -> Option<Nanos> {
        self.step.filter(|step| *step <= lag)?;
        let step = Machine::coarse();
        let lately = lately::counter(step).and_then(|counter| self.counted.at(counter));
        Some(Nanos::new(lately.unwrap_or_else(|| {
            let now = self.counted.now();
            lately::read(step, counted::last_read());
            now
        })))
    }
}

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SystemClock").field(&self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_allows_no_lag_gets_no_earlier_reading() {
        let clock = SystemClock::new();
        assert_eq!(clock.lately(Duration::ZERO, Sealed(())), None);
        assert_eq!(clock.lately(Duration::MAX, Sealed(())).is_some(), clock.step.is_some());
    }
}
