//! The time of a state file: the anchor by which all processes compute the same instants, and the
//! latest instant that is known to have been used.
//!
//! Within one boot of the machine, time is the anchor's wall time plus the boot time since, so
//! steps of the wall clock have no effect. After a restart of the machine the first process writes
//! a new anchor: the wall time, but never before the latest instant.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::vec::Vec;
use std::{format, io};

use super::error::StateError;
use super::header::FIXED;
use crate::clock::{Anchor, Nanos};
use crate::store::checksum;
use crate::store::table::region::Region;

/// The number of words of the live part.
pub(super) const WORDS: usize = 16;
/// The words of the anchor before its checksum: wall time, boot time, both halves of the boot's id,
/// and the offset of the time namespace.
const ANCHOR: usize = 5;
/// The place of the latest instant, which is in a cache line of its own.
const LATEST: usize = 8;
/// The nanoseconds by which the latest instant has to grow before it is written again.
const STEP: u64 = 100_000_000;
/// The time by which a file may be ahead of the wall clock: ten years.
const AHEAD: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The words of a file that hold its time.
pub(super) struct Live(pub(super) Region<AtomicU64>);

/// The machine's present time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present {
    pub(super) anchor: Anchor,
    /// The offset of boot time in this process's time namespace, in nanoseconds.
    pub(super) offset: i64,
}

impl Present {
    /// Reads the machine's clocks. Returns `None` if the system has no boot id.
    pub(super) fn read() -> Option<Self> {
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        let offset = boot_offset(&offsets);
        let anchor = Anchor::present();
        anchor.boot_id.map(|_| Self { anchor, offset })
    }
}

/// Returns the nanoseconds of the line `boottime SECONDS NANOSECONDS`; 0 if there is none.
fn boot_offset(offsets: &str) -> i64 {
    let line = offsets
        .lines()
        .find_map(|line| line.strip_prefix("boottime"));
    let numbers = line
        .unwrap_or_default()
        .split_whitespace()
        .map(|word| word.parse::<i64>().ok());
    match numbers.collect::<Vec<_>>()[..] {
        [Some(secs), Some(nanos)] => secs.saturating_mul(1_000_000_000).saturating_add(nanos),
        _ => 0,
    }
}

impl Live {
    /// Returns a copy of a file's time.
    pub(super) fn copy_of(file: &File) -> io::Result<Self> {
        let mut words = [[0; 8]; WORDS];
        file.read_exact_at(words.as_flattened_mut(), FIXED as u64)?;
        let words = words.map(|word| AtomicU64::new(u64::from_ne_bytes(word)));
        Ok(Self(Region::allocated(words.into())))
    }

    /// Returns the anchor for a process that is the first to use the file, and writes it if the
    /// stored one is damaged or of another boot.
    pub(super) fn renew(&self, present: &Present) -> Result<Anchor, StateError> {
        let latest = Nanos::new(self.0[LATEST].load(Relaxed));
        let wall = present.anchor.wall;
        if latest > wall + AHEAD {
            let expected = format!("at most ten years after the wall clock, {wall:?}");
            return Err(StateError::fault("time", format!("{latest:?}"), expected));
        }
        if let Ok(anchor) = self.anchor(present) {
            return Ok(anchor);
        }
        let wall = wall.max(latest);
        let anchor = Anchor {
            wall,
            ..present.anchor
        };
        self.write(&anchor, present);
        Ok(anchor)
    }

    /// Writes an anchor of the present boot. Only the first user of the file may do that.
    pub(super) fn write(&self, anchor: &Anchor, present: &Present) {
        let words = words(anchor, present.offset);
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.0[ANCHOR].store(sum(&words), Release);
        self.reached(anchor.wall.get());
    }

    /// Returns the anchor that the other users of the file have.
    pub(super) fn anchor(&self, present: &Present) -> Result<Anchor, StateError> {
        let checksum = self.0[ANCHOR].load(Acquire);
        let stored: [u64; ANCHOR] = core::array::from_fn(|nth| self.0[nth].load(Relaxed));
        let fault = |field, found, expected| Err(StateError::fault(field, found, expected));
        if sum(&stored) != checksum {
            let found = format!("{checksum:016x}");
            let expected = format!("{:016x}: the clock is damaged", sum(&stored));
            return fault("checksum of the clock", found, expected);
        }
        let [wall, boot, high, low, offset] = stored;
        let anchor = Anchor {
            wall: Nanos::new(wall),
            boot: Nanos::new(boot),
            boot_id: Some(u128::from(high) << 64 | u128::from(low)),
        };
        let known = present.anchor;
        if anchor.boot_id != known.boot_id {
            let ids = [anchor.boot_id, known.boot_id].map(Option::unwrap_or_default);
            let [found, expected] = ids.map(|id| format!("{id:032x}"));
            return fault("boot id", found, expected);
        }
        if offset as i64 != present.offset {
            let [found, expected] = [offset as i64, present.offset].map(|by| format!("{by} ns"));
            return fault("time namespace", found, expected);
        }
        if anchor.boot > known.boot {
            let expected = format!("at most {} ns", known.boot.get());
            return fault("boot time", format!("{boot} ns"), expected);
        }
        Ok(anchor)
    }

    /// Records that requests were decided at `now`, in steps of 100 ms.
    #[inline]
    pub(super) fn reached(&self, now: u64) {
        if now > self.0[LATEST].load(Relaxed).saturating_add(STEP) {
            self.0[LATEST].fetch_max(now, Relaxed);
        }
    }
}

fn words(anchor: &Anchor, offset: i64) -> [u64; ANCHOR] {
    let boot_id = anchor.boot_id.unwrap_or_default();
    [
        anchor.wall.get(),
        anchor.boot.get(),
        (boot_id >> 64) as u64,
        boot_id as u64,
        offset as u64,
    ]
}

fn sum(words: &[u64; ANCHOR]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    checksum(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: u64 = 366 * 86_400 * 1_000_000_000;
    const FIRST: Present = present(50 * YEAR, 1000, 7);

    const fn present(wall: u64, boot: u64, boot_id: u128) -> Present {
        Present {
            anchor: Anchor {
                wall: Nanos::new(wall),
                boot: Nanos::new(boot),
                boot_id: Some(boot_id),
            },
            offset: 0,
        }
    }

    fn first_wall() -> u64 {
        FIRST.anchor.wall.get()
    }

    fn live() -> Live {
        Live(Region::allocated(
            (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
        ))
    }

    #[test]
    fn steps_of_the_wall_clock_within_a_boot_change_nothing() {
        let live = live();
        let anchor = live.renew(&FIRST).unwrap();
        for wall in [first_wall() - YEAR, first_wall() + YEAR] {
            let later = present(wall, 5000, 7);
            assert_eq!(live.renew(&later), Ok(anchor));
            assert_eq!(live.anchor(&later), Ok(anchor));
        }
    }

    #[test]
    fn a_new_boot_continues_at_the_wall_clock_but_never_goes_back() {
        for (wall, begins) in [(49, 50), (51, 51)] {
            let live = live();
            live.renew(&FIRST).unwrap();
            let second = present(wall * YEAR, 10, 8);
            assert_eq!(live.anchor(&second).unwrap_err().field(), "boot id");
            let anchor = live.renew(&second).unwrap();
            assert_eq!(
                (anchor.wall, anchor.boot.get()),
                (Nanos::new(begins * YEAR), 10)
            );
            assert_eq!(live.anchor(&second), Ok(anchor));
        }
    }

    #[test]
    fn the_latest_instant_outlives_a_boot() {
        let live = live();
        live.renew(&FIRST).unwrap();
        live.reached(first_wall() + YEAR);
        live.reached(first_wall());
        let second = present(first_wall(), 1000, 8);
        assert_eq!(
            live.renew(&second).unwrap().wall,
            Nanos::new(first_wall() + YEAR)
        );
    }

    #[test]
    fn a_file_from_the_far_future_is_refused() {
        let live = live();
        live.reached(first_wall() + 11 * YEAR);
        assert_eq!(live.renew(&FIRST).unwrap_err().field(), "time");
    }

    #[test]
    fn a_damaged_clock_is_refused_while_it_is_in_use_and_repaired_otherwise() {
        for word in 0..=ANCHOR {
            let live = live();
            live.renew(&FIRST).unwrap();
            live.0[word].fetch_xor(1 << 40, Relaxed);
            assert_eq!(
                live.anchor(&FIRST).unwrap_err().field(),
                "checksum of the clock"
            );
            assert_eq!(live.renew(&FIRST).unwrap().wall, Nanos::new(first_wall()));
            assert!(live.anchor(&FIRST).is_ok());
        }
    }

    #[test]
    fn processes_of_other_time_namespaces_are_refused() {
        let live = live();
        live.renew(&FIRST).unwrap();
        let other = Present {
            offset: boot_offset("monotonic 1 2\nboottime 3 4\n"),
            ..FIRST
        };
        assert_eq!(other.offset, 3_000_000_004);
        assert_eq!(live.anchor(&other).unwrap_err().field(), "time namespace");
        assert_eq!(boot_offset(""), 0);
    }
}
