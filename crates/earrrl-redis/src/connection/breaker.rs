//! Circuit breakers. After several failures in a row, Redis is not asked any more, so that a
//! decision during an outage costs one flag and not the wait for a deadline. Only the supervisor,
//! which probes Redis in the background, closes a breaker, also at the start.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The number of Cluster slots that share a breaker. One shard's outage affects only its own
/// breakers.
const SLOTS_A_GROUP: u16 = 256;
const GROUPS: u16 = 16_384 / SLOTS_A_GROUP;

#[derive(Debug, Default)]
struct Breaker {
    failures: AtomicU32,
    closed: AtomicBool,
    /// True while Redis answers, but later than the deadline.
    far: AtomicBool,
}

/// The breakers: one for a single Redis, or one for each group of slots of a Cluster.
#[derive(Debug)]
pub(crate) struct Breakers {
    groups: Vec<Breaker>,
    /// The number of failures in a row that opens a breaker.
    most: u32,
}

impl Breakers {
    pub(crate) fn new(cluster: bool, most: u32) -> Self {
        let groups = if cluster { usize::from(GROUPS) } else { 1 };
        Self {
            groups: (0..groups).map(|_| Breaker::default()).collect(),
            most: most.max(1),
        }
    }

    /// Returns the group of a slot.
    pub(crate) fn group(&self, slot: u16) -> usize {
        usize::from(slot / SLOTS_A_GROUP) % self.groups.len()
    }

    /// Returns the indices of all groups.
    pub(crate) fn groups(&self) -> std::ops::Range<usize> {
        0..self.groups.len()
    }

    pub(crate) fn is_open(&self, group: usize) -> bool {
        !self.groups[group].closed.load(Ordering::Acquire)
    }

    /// Returns true while a group's Redis answers, but too late for decisions.
    pub(crate) fn is_far(&self, group: usize) -> bool {
        self.groups[group].far.load(Ordering::Acquire)
    }

    pub(crate) fn set_far(&self, group: usize, is_far: bool) {
        self.groups[group].far.store(is_far, Ordering::Release);
    }

    /// Returns the number of open breakers.
    pub(crate) fn open_groups(&self) -> usize {
        self.groups().filter(|group| self.is_open(*group)).count()
    }

    pub(crate) fn succeeded(&self, group: usize) {
        let failures = &self.groups[group].failures;
        if failures.load(Ordering::Relaxed) != 0 {
            failures.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failure. Returns true if it opened the breaker. A failure that is `certain`, such
    /// as a lost connection, opens it at once.
    pub(crate) fn failed(&self, group: usize, certain: bool) -> bool {
        let breaker = &self.groups[group];
        let failures = breaker.failures.fetch_add(1, Ordering::Relaxed) + 1;
        (certain || failures >= self.most) && breaker.closed.swap(false, Ordering::AcqRel)
    }

    /// Closes a group's breaker.
    pub(crate) fn close(&self, group: usize) {
        self.groups[group].failures.store(0, Ordering::Relaxed);
        self.groups[group].closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_open_it_and_only_closing_lets_back_in() {
        let breakers = Breakers::new(false, 3);
        assert!(breakers.is_open(0), "at the start");
        breakers.close(0);
        assert!(!breakers.failed(0, false) && !breakers.failed(0, false));
        breakers.succeeded(0);
        assert!(!breakers.failed(0, false) && !breakers.failed(0, false));
        assert!(breakers.failed(0, false), "the third in a row");
        assert!(!breakers.failed(0, false), "opened once");
        breakers.succeeded(0);
        assert!(breakers.is_open(0), "a late success does not close it");
        breakers.close(0);
        assert!(!breakers.is_open(0) && breakers.failed(0, true));
    }

    #[test]
    fn a_cluster_has_a_breaker_a_group_of_slots() {
        let breakers = Breakers::new(true, 1);
        breakers.groups().for_each(|group| breakers.close(group));
        assert!(breakers.failed(breakers.group(16_383), false));
        assert!(!breakers.is_open(breakers.group(0)));
        assert_eq!(breakers.open_groups(), 1);
    }
}
