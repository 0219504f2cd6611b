use std::boxed::Box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use super::*;

const MILLI: u64 = 1_000_000;
const DAY: u64 = 86_400_000 * MILLI;
/// The counts per microsecond of a 3 GHz processor.
const PACE: u64 = 3_000;
const START: u64 = 1_800_000_000_000 * MILLI;
const BOOT: u64 = 5_000 * MILLI;

/// A machine whose counter and boot time are set by the test.
#[derive(Default)]
struct Hand {
    counter: AtomicU64,
    boot: AtomicU64,
    /// The nanoseconds per count, times 2^32, that the machine states; 0 for none.
    stated: u64,
    /// The number of readings after which the counter is set back to 1; 0 for never.
    falls_after: AtomicU64,
    /// Runs once at the next reading of the counter, as another thread that interrupts this one.
    interrupt: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Source for Hand {
    fn counter(&self) -> u64 {
        let interrupt = self.interrupt.lock().unwrap().take();
        interrupt.into_iter().for_each(|interrupt| interrupt());
        if self.falls_after.load(SeqCst) > 0 && self.falls_after.fetch_sub(1, SeqCst) == 1 {
            self.counter.store(1, SeqCst);
        }
        self.counter.load(SeqCst)
    }

    fn a_count(&self) -> u64 {
        self.stated
    }

    fn boot(&self) -> u64 {
        self.boot.load(SeqCst)
    }
}

impl Hand {
    fn new() -> Self {
        Self {
            counter: AtomicU64::new(1 << 40),
            boot: AtomicU64::new(BOOT),
            stated: 0,
            falls_after: AtomicU64::new(0),
            interrupt: Mutex::default(),
        }
    }

    /// Advances boot time by `micros` microseconds, in each of which the counter counts `pace`.
    fn pass(&self, micros: u64, pace: u64) {
        self.boot.fetch_add(micros * 1_000, SeqCst);
        self.counter.fetch_add(micros * pace, SeqCst);
    }
}

/// Returns the instant that the clock should return.
fn truth(clock: &Counted<Hand>) -> u64 {
    START + clock.source.boot() - BOOT
}

/// Advances time in steps of 10 microseconds. Returns by how many nanoseconds the clock was ahead
/// of and behind the truth at most. Fails if the clock goes back.
fn run(clock: &Counted<Hand>, micros: u64, pace: u64) -> (u64, u64) {
    let mut last = clock.now();
    let mut ahead = 0;
    let mut behind = 0;
    for _ in 0..micros / 10 {
        clock.source.pass(10, pace);
        let now = clock.now();
        assert!(now >= last, "{now} after {last}");
        last = now;
        ahead = ahead.max(now.saturating_sub(truth(clock)));
        behind = behind.max(truth(clock).saturating_sub(now));
    }
    (ahead, behind)
}

fn by_boot_time(clock: &Counted<Hand>) -> bool {
    clock.published().1.is_boot_time()
}

/// Returns a clock that has measured its counter.
fn measured() -> Counted<Hand> {
    let clock = Counted::new(Hand::new(), START, None);
    assert_eq!(run(&clock, MEASURED / 1_000, PACE), (0, 0));
    run(&clock, 1_000, PACE);
    assert!(!by_boot_time(&clock));
    clock
}

/// Asserts that the clock uses its counter again and is within its error bounds.
fn assert_settled(clock: &Counted<Hand>, pace: u64) {
    run(clock, 80_000, pace);
    assert!(!by_boot_time(clock));
    let (ahead, behind) = run(clock, 1_000_000, pace);
    assert_eq!(ahead, 0);
    assert!(behind <= STRETCH >> (SLOW - 1), "{behind}");
}

#[test]
fn a_good_counter_is_behind_by_microseconds() {
    assert_settled(&measured(), PACE);
}

#[test]
fn a_slow_counter_of_a_small_processor_serves() {
    let clock = Counted::new(Hand::new(), START, None);
    assert_settled(&clock, 24);
}

/// A machine that states a wrong pace is no worse off than one whose pace changes: the clock reads boot time once
/// the first stretch is over, and stands still if it was ahead.
#[test]
fn a_stated_pace_is_used_at_once_and_compared() {
    for stated in [PACE, PACE * 2, PACE / 2, PACE * 5, PACE / 100] {
        let hand = Hand {
            stated: (1_000 << FRACTION) / stated,
            ..Hand::new()
        };
        let clock = Counted::new(hand, START, None);
        assert!(!by_boot_time(&clock));
        let (ahead, behind) = run(&clock, 5_000, PACE);
        assert!(stated != PACE || ahead == 0 && behind <= STRETCH >> SLOW);
        let (ahead, _) = run(&clock, 100_000, PACE);
        assert!(ahead <= STRETCH, "{stated}: {ahead}");
        assert_settled(&clock, PACE);
    }
}

#[test]
fn a_counter_that_is_reset_does_not_stop_the_clock() {
    for counter in [0, 1, (1 << 40) - 1, (1 << 40) + 20_000 * PACE] {
        let clock = measured();
        clock.source.counter.store(counter, SeqCst);
        let (ahead, behind) = run(&clock, 100_000, PACE);
        assert!(
            ahead <= STRETCH && behind <= STRETCH >> BEHIND,
            "{counter}: {ahead} {behind}"
        );
        assert_settled(&clock, PACE);
    }
}

/// An instant that was read before the counter went back is ahead of boot time, so the clock stands
/// still.
#[test]
fn a_counter_that_jumps_ahead_and_back_leaves_time_where_it_is() {
    for back_to in [0, (1 << 40) + 40_000 * PACE] {
        let clock = measured();
        clock.source.counter.fetch_add(5_000 * PACE, SeqCst);
        let before = clock.now();
        assert!(before > truth(&clock));
        clock.source.counter.store(back_to, SeqCst);
        // The first answer comes from the comparison, the next one from boot time.
        for _ in 0..2 {
            clock.source.pass(1, PACE);
            assert!(clock.now() >= before);
        }
        let (ahead, _) = run(&clock, 20_000, PACE);
        assert!(ahead <= STRETCH, "{ahead}");
        assert_settled(&clock, PACE);
    }
}

#[test]
fn a_counter_that_jumps_by_days_does_not_move_the_clock() {
    for days in [1, 30, 10_000] {
        let clock = measured();
        clock
            .source
            .counter
            .fetch_add(days * DAY / 1_000 * PACE, SeqCst);
        let (ahead, _) = run(&clock, 100_000, PACE);
        assert!(ahead <= STRETCH, "{days}: {ahead}");
        assert_settled(&clock, PACE);
    }
}

#[test]
fn a_counter_that_stops_is_replaced_by_boot_time() {
    let clock = measured();
    let (ahead, behind) = run(&clock, 1_000_000, 0);
    assert!(ahead <= STRETCH && behind <= 100_000, "{ahead} {behind}");
    assert!(by_boot_time(&clock));
    assert_settled(&clock, PACE);
}

#[test]
fn a_counter_that_stood_still_in_a_sleep_is_caught_up() {
    let clock = measured();
    clock.source.boot.fetch_add(30 * DAY, SeqCst);
    let (ahead, behind) = run(&clock, 100_000, PACE);
    assert!(ahead == 0 && behind <= 30 * DAY, "{ahead} {behind}");
    assert_settled(&clock, PACE);
}

#[test]
fn another_pace_is_measured() {
    for pace in [
        PACE * 105 / 100,
        PACE * 95 / 100,
        PACE * 2,
        PACE / 2,
        PACE * 1_000,
        PACE / 9,
    ] {
        let clock = measured();
        let (ahead, behind) = run(&clock, 100_000, pace);
        // The clock uses the wrong pace until the stretch is over by the counter's own account.
        let late = (STRETCH * PACE / pace).max(STRETCH) + 20_000;
        assert!(
            ahead <= STRETCH && behind <= late,
            "{pace}: {ahead} {behind}"
        );
        assert_settled(&clock, pace);
    }
}

/// Boot time is slewed by up to 1/2000. The clock measures the counter again, and errs by microseconds.
#[test]
fn a_slewed_boot_time_is_followed() {
    for pace in [PACE * 1_999 / 2_000, PACE * 2_001 / 2_000] {
        let clock = measured();
        let (ahead, behind) = run(&clock, 10_000_000, pace);
        assert!(ahead <= 10_000 && behind <= 10_000, "{ahead} {behind}");
    }
}

#[test]
fn two_clocks_of_one_anchor_agree() {
    let one = measured();
    let hand = Hand::new();
    hand.boot.store(one.source.boot(), SeqCst);
    let (wall, boot) = one.anchor();
    let other = Counted::new(hand, wall, Some(boot));
    assert_eq!(other.now(), truth(&one));
}

/// The counter runs fast, so the clock is ahead; the counter is set back while a comparison finds
/// this out.
#[test]
fn a_counter_set_back_during_a_comparison() {
    for readings in 1..=6 {
        let clock = measured();
        clock.source.pass(1_000, 4 * PACE);
        let ahead = clock.now();
        assert!(ahead > truth(&clock) + 2 * MILLI);
        clock.source.pass(1_700, 4 * PACE);
        clock.source.falls_after.store(readings, SeqCst);
        let now = clock.now();
        assert!(now >= ahead, "{readings}: {now} after {ahead}");
        assert_settled(&clock, PACE);
    }
}

/// Eight threads read the clock while the counter is disturbed. No thread gets an earlier instant
/// than any thread got before.
#[test]
fn time_never_goes_back_between_threads() {
    let clock = Arc::new(measured());
    let latest = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let clock = clock.clone();
            let latest = latest.clone();
            let over = over.clone();
            thread::spawn(move || {
                while !over.load(SeqCst) {
                    let before = latest.load(SeqCst);
                    let now = clock.now();
                    assert!(now >= before, "{now} after {before}");
                    latest.fetch_max(now, SeqCst);
                }
            })
        })
        .collect();
    for nth in 0..20_000_u64 {
        let pace = if nth % 2_000 < 1_500 {
            PACE
        } else {
            [0, PACE / 2][nth as usize % 2]
        };
        clock.source.pass(nth * 7_919 % 400, pace);
        match nth {
            _ if nth % 3_000 == 0 => clock.source.counter.store(nth, SeqCst),
            _ if nth % 5_000 == 1 => {
                clock.source.counter.fetch_add(DAY / 1_000 * PACE, SeqCst);
            }
            _ => {}
        }
    }
    over.store(true, SeqCst);
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
    assert_settled(&clock, PACE);
}

/// An earlier reading of the counter belongs to the present stretch, or gives no instant.
#[test]
fn an_earlier_counter_tells_no_later_instant() {
    let clock = measured();
    let mut known = 0;
    let mut counter = clock.source.counter();
    for nth in 0..100_000 {
        let before = clock.now();
        if let Some(then) = clock.at(counter) {
            assert!(then <= before, "{then} at {before}");
            known += 1;
        }
        counter = clock.source.counter();
        clock.source.pass(10, PACE);
        if nth % 30_000 == 29_999 {
            clock.source.counter.store(nth, SeqCst);
        }
    }
    assert!(known > 90_000, "{known}");
}

/// A thread reads the stretch, is interrupted, and reads the counter after another thread has ended
/// the stretch.
#[test]
fn a_stretch_that_has_ended_meanwhile_is_not_used() {
    let clock = Arc::new(measured());
    let other = Arc::clone(&clock);
    let next = Arc::new(AtomicU64::new(0));
    let begun = Arc::clone(&next);
    let end_the_stretch = move || {
        let stretch = other.published().1;
        begun.store(other.begin_next(&mut lock(&other.began), &stretch), SeqCst);
        other.source.counter.fetch_add(100 * PACE, SeqCst);
    };
    *clock.source.interrupt.lock().unwrap() = Some(Box::new(end_the_stretch));
    let now = clock.now();
    assert!(now >= next.load(SeqCst) && next.load(SeqCst) > 0, "{now}");
    assert!(clock.now() >= now);
}

/// A step back that is too short for a difference from boot time is found by the thread's previous reading.
#[test]
fn a_counter_set_back_by_microseconds_does_not_set_time_back() {
    let clock = measured();
    clock.source.pass(1_000, PACE);
    let mut last = clock.now();
    clock.source.counter.fetch_sub(15 * PACE, SeqCst);
    for _ in 0..20 {
        clock.source.pass(1, PACE);
        let now = clock.now();
        assert!(now >= last, "{now} after {last}");
        last = now;
    }
    assert_settled(&clock, PACE);
}
