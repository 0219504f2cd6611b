//! The last reading of the counter, for threads that decide in a loop.
//!
//! A reading of the counter waits until all instructions before it are done. Between two decisions,
//! it prevents the second decision's state from being fetched while the first waits for its own,
//! which costs ten times as much as the reading itself. A thread that reads the counter within a
//! microsecond of its previous reading therefore uses a reading several times: a number that
//! doubles with each reading, up to [`MAX_USES`].
//!
//! Time must not go back from one thread's request to the next one's, so the reading is shared: all
//! threads publish their readings in [`LATEST`], and a thread in a loop uses the latest of all.
//! Threads that do not loop publish only once some thread has looped ([`LOOPED`]).
//!
//! A pause of the thread shows in the counter itself. It is read once more for each decision, but
//! without waiting for the instructions before, so this reading may be too early by as long as the
//! processor looks ahead. It only bounds the age of the latest reading, to [`OLDEST`] counts, and is
//! no instant of a decision.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;

/// The greatest number of times that a reading is used again.
const MAX_USES: u64 = 31;
/// The counts between two readings below which the thread is in a loop, per use of the first
/// reading: one or two microseconds.
const CLOSE: u64 = 4_000;
/// The greatest age of a reading that is used again, in counts. A processor counts at least 0.6
/// times a nanosecond, so this is less than [`OLDEST_AGE`]; mostly it is a quarter of that.
const OLDEST: u64 = 600_000;
/// An upper bound of the age of a reading that is used again.
pub(super) const OLDEST_AGE: Duration = Duration::from_millis(1);

/// A counter in a cache line of its own, since all threads in loops read it.
#[repr(align(128))]
struct LatestCounter(AtomicU64);

static LATEST: LatestCounter = LatestCounter(AtomicU64::new(0));
/// True once any thread may have used [`LATEST`].
static LOOPED: AtomicBool = AtomicBool::new(false);

/// A thread's last reading. Each field has a cell of its own: a load that is wider than the store
/// just before it would wait for that store, and so for the previous decision.
struct ThreadReading {
    counter: Cell<u64>,
    /// The number of uses that this reading began with; the field below has those that are left.
    uses: Cell<u64>,
    left: Cell<u64>,
}

std::thread_local! {
    static LAST: ThreadReading = const {
        ThreadReading {
            counter: Cell::new(0),
            uses: Cell::new(0),
            left: Cell::new(0),
        }
    };
}

/// Returns the latest reading of all threads, or `None` if this thread has to read the counter.
/// `about` is the counter, read at about this instant.
#[inline]
pub(super) fn counter(about: u64) -> Option<u64> {
    LAST.with(|last| {
        let left = last.left.get();
        if left == 0 {
            return None;
        }
        last.left.set(left - 1);
        let latest = LATEST.0.load(Relaxed);
        // Another thread may have published a reading after `about` was read.
        let is_close = about.wrapping_sub(latest).wrapping_add(OLDEST) <= 2 * OLDEST;
        is_close.then_some(latest)
    })
}

/// Publishes a reading for the threads that use the latest one.
#[inline]
pub(super) fn publish(counter: u64) {
    if LOOPED.load(Relaxed) {
        LATEST.0.fetch_max(counter, Relaxed);
    }
}

/// Records that this thread read the counter.
pub(super) fn read(counter: u64) {
    LAST.with(|last| {
        let close = CLOSE * (last.uses.get() + 1);
        let is_loop = counter.wrapping_sub(last.counter.get()) <= close;
        // Other threads publish only from the first loop on, so that loop does not use a shared
        // reading yet.
        let may_use = is_loop && (LOOPED.load(Relaxed) || LOOPED.swap(true, Relaxed));
        let uses = if may_use {
            (2 * last.uses.get() + 1).min(MAX_USES)
        } else {
            0
        };
        last.counter.set(counter);
        last.uses.set(uses);
        last.left.set(uses);
    });
    publish(counter);
}

/// Returns the latest published reading.
#[cfg(test)]
pub(super) fn latest() -> u64 {
    LATEST.0.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::vec::Vec;

    /// Lets one of these tests at a time publish readings, all of which are later than those of the
    /// tests before.
    fn begin() -> (MutexGuard<'static, u64>, u64) {
        static BEGUN: Mutex<u64> = Mutex::new(1 << 60);
        let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        *begun += 1 << 50;
        let now = *begun;
        (begun, now)
    }

    /// Makes `times` decisions, one every `every` counts. Returns the number of readings they took,
    /// and the age of the oldest reading that they used, in counts.
    fn ask(now: &mut u64, times: usize, every: u64) -> (usize, u64) {
        let mut readings = 0;
        let mut oldest = 0;
        for _ in 0..times {
            *now += every;
            let used = counter(*now).unwrap_or_else(|| {
                readings += 1;
                read(*now);
                *now
            });
            oldest = oldest.max(*now - used);
        }
        (readings, oldest)
    }

    #[test]
    fn a_thread_that_asks_seldom_gets_the_present_time() {
        let (_alone, mut now) = begin();
        assert_eq!(ask(&mut now, 100, 2 * CLOSE), (100, 0));
    }

    #[test]
    fn a_thread_in_a_loop_uses_a_reading_several_times() {
        let (_alone, mut now) = begin();
        let (readings, oldest) = ask(&mut now, 3200, 50);
        assert!(readings <= 107, "{readings}");
        assert_eq!(oldest, MAX_USES * 50);
    }

    /// However late the kernel's tick is, since no clock of the kernel is asked.
    #[test]
    fn after_a_pause_no_old_reading_is_used() {
        let (_alone, mut now) = begin();
        for pause in [OLDEST / 2, OLDEST, 10 * OLDEST] {
            ask(&mut now, 100, 50);
            now += pause;
            assert!(ask(&mut now, 1, 50).1 <= OLDEST, "after {pause}");
            // The pause ends the loop, so the next two decisions both read the counter.
            let readings: Vec<_> = (0..40).map(|_| ask(&mut now, 1, 50).0).collect();
            let both = readings.windows(2).any(|two| two == [1, 1]);
            assert!(both || pause >= OLDEST, "{readings:?}");
        }
    }

    #[test]
    fn a_counter_that_was_set_back_is_read() {
        let (_alone, mut now) = begin();
        ask(&mut now, 100, 50);
        let used: Vec<_> = (0..MAX_USES)
            .filter_map(|_| counter(now - 2 * OLDEST))
            .collect();
        assert!(used.is_empty(), "{used:?}");
    }

    #[test]
    fn a_thread_in_a_loop_uses_the_reading_of_another() {
        for publish in [publish, read] {
            let (_alone, mut now) = begin();
            ask(&mut now, 100, 50);
            let later = now + OLDEST;
            std::thread::spawn(move || publish(later)).join().unwrap();
            let used: Vec<_> = (0..2).filter_map(|_| counter(now + 50)).collect();
            assert!(
                !used.is_empty() && used.iter().all(|counter| *counter == later),
                "{used:?}"
            );
        }
    }

    #[test]
    fn an_earlier_reading_does_not_replace_a_later_one() {
        let (_alone, mut now) = begin();
        ask(&mut now, 100, 50);
        let later = now + OLDEST / 2;
        publish(later);
        publish(now);
        assert_eq!(latest(), later);
    }
}
