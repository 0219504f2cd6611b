//! The machine's clock.

use core::fmt;
use core::time::Duration;

use super::counted::{Counted, Source};
use super::machine::{Machine, boot, boot_id, wall};
use super::{Clock, Nanos, Sealed, counted, lately};

/// The machine's clock. It reads the processor's counter, corrects it by boot time (which includes
/// sleep), and is anchored to wall time when it is made.
///
/// Later steps of the wall clock have no effect, so they cannot prolong or shorten a ban. If the
/// counter stops, is set back, jumps or changes its pace, the next comparison with boot time
/// detects that, after at most 10 ms of counting; the clock then shows boot time until it has
/// measured the counter again. The clock never goes back. A reading costs about 10 ns;
/// `Instant::now` costs 25 ns.
///
/// A reading also waits until all instructions before it are done. On x86-64, a
/// [`Limiter`](crate::Limiter) that is called in a loop, with pauses of less than a microsecond,
/// therefore uses the latest reading of any thread up to 31 times if its rule is slow enough. The
/// counter itself bounds the age of such a reading to a millisecond. Time still never goes back
/// from one thread to another.
///
/// ```
/// use earrrl::{Clock, SystemClock};
///
/// let clock = SystemClock::new();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
pub struct SystemClock {
    counted: Counted<Machine>,
    /// True if the counter can be read without waiting, so that the age of a reading is known.
    knows_age: bool,
}

/// An instant of wall time and the boot time at that instant. Two clocks with the same anchor on
/// one machine agree, even in different processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The instant of wall time.
    pub wall: Nanos,
    /// The boot time at that instant, which is the time since the machine was started.
    pub boot: Nanos,
    /// The id of the machine's boot, which changes at every restart; `None` if the system has no
    /// such id.
    pub boot_id: Option<u128>,
}

impl Anchor {
    /// Returns the present instant.
    pub(crate) fn present() -> Self {
        Self {
            wall: Nanos::new(wall()),
            boot: Nanos::new(boot()),
            boot_id: boot_id(),
        }
    }
}

impl SystemClock {
    /// Returns a clock that is anchored to the present wall time. The first clock of a process
    /// takes up to 200 ms to make.
    pub fn new() -> Self {
        let machine = Machine::new();
        let wall = wall();
        Self::of(machine, wall, None)
    }

    fn of(machine: Machine, wall: u64, boot: Option<u64>) -> Self {
        let knows_age = machine.has_early_counter();
        Self {
            counted: Counted::new(machine, wall, boot),
            knows_age,
        }
    }

    /// Returns a clock that continues the time of the clock that [`anchor`](Self::anchor) was
    /// called on, even if wall time was changed since. After a restart of the machine, boot time
    /// begins at zero again, so the clock is anchored to the present wall time, but never before
    /// the anchor's instant.
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
        let boot = anchor.boot.get();
        let same_start = anchor.boot_id.is_some() && anchor.boot_id == boot_id();
        if same_start && boot <= machine.boot() {
            return Self::of(machine, anchor.wall.get(), Some(boot));
        }
        let wall = wall().max(anchor.wall.get());
        Self::of(machine, wall, None)
    }

    /// Returns the anchor with which another process can make a clock with the same time.
    pub fn anchor(&self) -> Anchor {
        let (wall, boot) = self.counted.anchor();
        Anchor {
            wall: Nanos::new(wall),
            boot: Nanos::new(boot),
            boot_id: boot_id(),
        }
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
        if !self.knows_age || lag < lately::OLDEST_AGE {
            return None;
        }
        let lately = lately::counter(Machine::early_counter());
        let lately = lately.and_then(|counter| self.counted.at(counter));
        Some(Nanos::new(lately.unwrap_or_else(|| {
            let now = self.counted.now();
            lately::read(counted::last_read());
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
        assert_eq!(
            clock.lately(Duration::MAX, Sealed(())).is_some(),
            clock.knows_age
        );
    }

    #[test]
    fn a_clock_that_was_just_made_reads_the_counter() {
        let clock = SystemClock::new();
        clock.now();
        let is_counted = clock.counted.at(counted::last_read()).is_some();
        assert!(is_counted || !clock.knows_age);
    }

    #[test]
    fn a_clock_of_another_start_of_the_machine_does_not_go_back() {
        let wall = SystemClock::new().now() + Duration::from_secs(3600);
        let anchor = Anchor {
            wall,
            boot: Nanos::from_secs(7),
            boot_id: None,
        };
        let ahead = SystemClock::with_anchor(anchor).now().since(wall);
        assert!(ahead < Duration::from_secs(60), "{ahead:?}");
        assert!(SystemClock::with_anchor(anchor).now() >= wall);
        let past = Anchor {
            wall: Nanos::from_secs(1),
            ..anchor
        };
        let minute = Duration::from_secs(60);
        assert!(SystemClock::with_anchor(past).now() + minute > SystemClock::new().now());
    }

    #[test]
    fn a_reading_of_the_present_time_is_published_once_a_thread_has_looped() {
        let clock = SystemClock::new();
        assert!(
            (0..1000).all(|_| clock.lately(Duration::MAX, Sealed(())).is_some() == clock.knows_age)
        );
        clock.now();
        assert!(!clock.knows_age || lately::latest() >= counted::last_read());
    }
}
