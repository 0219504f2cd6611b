//! The time of a moment ago, which costs less than the present one.
//!
//! A reading of the counter waits until everything that was begun before it is over. So between two
//! decisions that read it, the second one's state isn't fetched while the first waits for its own:
//! that costs ten times as much as the reading. A thread that reads the counter again and again,
//! within a microsecond each time, needs no new reading for every decision: it gets the last one
//! for a number of times that doubles from reading to reading, up to [`MOST`].
//!
//! Whether the thread has paused meanwhile is told by a clock of the system's own that moves in
//! steps and is read as memory is: once it has moved, the counter is read. So what is told is a
//! microsecond old as a rule, and a step after a pause.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most times that a reading is told again.
const MOST: u64 = 31;
/// Readings this far apart, for each time that one was told, are made one right after the other.
const CLOSE: u64 = 1_000;

/// A thread's last reading of a clock. Each in a cell of its own: a load that is wider than the store just
/// before it waits until that is done, which waits for the decision before.
struct Reading {
    /// Of which clock.
    clock: Cell<u64>,
    /// The system's own clock before it.
    step: Cell<u64>,
    now: Cell<u64>,
    /// How many times it may be told again, from the beginning and still.
    times: Cell<u64>,
    left: Cell<u64>,
}

std::thread_local! {
    static LAST: Reading = const {
        Reading {
            clock: Cell::new(0),
            step: Cell::new(0),
            now: Cell::new(0),
            times: Cell::new(0),
            left: Cell::new(0),
        }
    };
}

/// Tells one clock from another.
pub(super) struct Lately(u64);

impl Lately {
    pub(super) fn new() -> Self {
        static CLOCKS: AtomicU64 = AtomicU64::new(1);
        Self(CLOCKS.fetch_add(1, Relaxed))
    }

    /// The time of this thread's last reading, or the present one. `step` is the system's own clock.
    #[inline]
    pub(super) fn get(&self, step: u64, now: impl FnOnce() -> u64) -> u64 {
        LAST.with(|last| {
            let left = last.left.get();
            if left > 0 && last.step.get() == step && last.clock.get() == self.0 {
                last.left.set(left - 1);
                return last.now.get();
            }
            self.read(last, step, now())
        })
    }

    fn read(&self, last: &Reading, step: u64, now: u64) -> u64 {
        let close = CLOSE * (last.times.get() + 1);
        let goes_on = last.clock.get() == self.0 && now.saturating_sub(last.now.get()) <= close;
        let times = if goes_on { (2 * last.times.get() + 1).min(MOST) } else { 0 };
        last.clock.set(self.0);
        last.step.set(step);
        last.now.set(now);
        last.times.set(times);
        last.left.set(times);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// How many readings so many decisions take, one every so many nanoseconds, and how old the time
    /// is that they get, at most.
    fn ask(lately: &Lately, now: &mut u64, times: usize, every: u64, step: u64) -> (usize, u64) {
        let (mut readings, mut oldest) = (0, 0);
        for _ in 0..times {
            *now += every;
            let told = lately.get(*now / step, || {
                readings += 1;
                *now
            });
            oldest = oldest.max(*now - told);
        }
        (readings, oldest)
    }

    const STEP: u64 = 4_000_000;

    #[test]
    fn who_asks_seldom_is_told_the_present_time() {
        let (lately, mut now) = (Lately::new(), STEP);
        assert_eq!(ask(&lately, &mut now, 100, 2 * CLOSE, STEP), (100, 0));
    }

    #[test]
    fn who_asks_again_and_again_is_told_a_reading_some_times() {
        let (lately, mut now) = (Lately::new(), STEP);
        let (readings, oldest) = ask(&lately, &mut now, 3200, 50, STEP);
        assert!(readings <= 106, "{readings}");
        assert_eq!(oldest, MOST * 50);
    }

    #[test]
    fn after_a_pause_the_time_is_at_most_a_step_old() {
        let (lately, mut now) = (Lately::new(), STEP);
        for pause in [STEP / 2, STEP, 10 * STEP, 1] {
            ask(&lately, &mut now, 100, 50, STEP);
            now += pause;
            let (_, oldest) = ask(&lately, &mut now, 1, 50, STEP);
            assert!(oldest < STEP, "{oldest} after {pause}");
            // And the pause ends the repetitions: once they are over, two readings follow.
            if pause > CLOSE * (MOST + 1) {
                let readings: Vec<_> =
                    (0..40).map(|_| ask(&lately, &mut now, 1, 50, STEP).0).collect();
                let two = readings.windows(2).any(|two| two == [1, 1]);
                assert!(two || pause >= STEP, "{readings:?}");
            }
        }
    }

    #[test]
    fn a_clock_is_not_told_the_time_of_another() {
        let (one, other, mut now) = (Lately::new(), Lately::new(), STEP);
        ask(&one, &mut now, 100, 50, STEP);
        assert_eq!(other.get(now / STEP, || 7), 7);
        assert_eq!(one.get(now / STEP, || 8), 8);
    }
}
