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

/// The most times that a reading is told again.
const MOST: u64 = 31;
/// Readings that are so many counts apart, for each time that one was told, are made one right after the
/// other: a microsecond or two.
const CLOSE: u64 = 4_000;

/// A thread's last reading, whatever the clock. Each part in a cell of its own: a load that is wider than the
/// store just before it waits until that is done, which waits for the decision before.
struct Reading {
    counter: Cell<u64>,
    /// The system's own clock before it.
    step: Cell<u64>,
    /// How many times it may be told again, from the beginning and still.
    times: Cell<u64>,
    left: Cell<u64>,
}

std::thread_local! {
    static LAST: Reading = const {
        Reading {
            counter: Cell::new(0),
            step: Cell::new(0),
            times: Cell::new(0),
            left: Cell::new(0),
        }
    };
}

/// The counter as this thread last read it, if it need not be read now. `step` is the system's own clock.
#[inline]
pub(super) fn counter(step: u64) -> Option<u64> {
    LAST.with(|last| {
        let left = last.left.get();
        if left == 0 || last.step.get() != step {
            return None;
        }
        last.left.set(left - 1);
        Some(last.counter.get())
    })
}

/// The counter was read, after the system's own clock.
pub(super) fn read(step: u64, counter: u64) {
    LAST.with(|last| {
        let close = CLOSE * (last.times.get() + 1);
        let goes_on = counter.wrapping_sub(last.counter.get()) <= close;
        let times = if goes_on { (2 * last.times.get() + 1).min(MOST) } else { 0 };
        last.counter.set(counter);
        last.step.set(step);
        last.times.set(times);
        last.left.set(times);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const STEP: u64 = 4_000 * CLOSE;

    /// How many readings so many decisions take, one every so many counts, and how old the counter
    /// is that they get, at most.
    fn ask(now: &mut u64, times: usize, every: u64) -> (usize, u64) {
        let (mut readings, mut oldest) = (0, 0);
        for _ in 0..times {
            *now += every;
            let told = counter(*now / STEP).unwrap_or_else(|| {
                readings += 1;
                read(*now / STEP, *now);
                *now
            });
            oldest = oldest.max(*now - told);
        }
        (readings, oldest)
    }

    #[test]
    fn who_asks_seldom_is_told_the_present_time() {
        assert_eq!(ask(&mut STEP.clone(), 100, 2 * CLOSE), (100, 0));
    }

    #[test]
    fn who_asks_again_and_again_is_told_a_reading_some_times() {
        let (readings, oldest) = ask(&mut STEP.clone(), 3200, 50);
        assert!(readings <= 106, "{readings}");
        assert_eq!(oldest, MOST * 50);
    }

    #[test]
    fn after_a_pause_the_time_is_at_most_a_step_old() {
        let mut now = STEP;
        for pause in [STEP / 2, STEP, 10 * STEP] {
            ask(&mut now, 100, 50);
            now += pause;
            assert!(ask(&mut now, 1, 50).1 < STEP, "after {pause}");
            // The pause has ended the repetitions: the next two readings follow each other.
            let readings: Vec<_> = (0..40).map(|_| ask(&mut now, 1, 50).0).collect();
            assert!(readings.windows(2).any(|two| two == [1, 1]) || pause >= STEP, "{readings:?}");
        }
    }
}
