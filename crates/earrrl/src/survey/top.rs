//! The selection of the clients with the highest usage, in memory for the selected ones only.

use core::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::vec::Vec;

use crate::store::{Passed, StateRef};

/// A client among the highest so far.
pub(super) struct Ranked {
    pub(super) fingerprint: u64,
    pub(super) usage: f64,
    pub(super) held: StateRef,
}

/// The clients with the highest usage, at most `count` of them.
pub(super) struct Highest {
    count: usize,
    /// The lowest of the selected clients is on top.
    heap: BinaryHeap<Reverse<Ranked>>,
}

impl Highest {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            heap: BinaryHeap::new(),
        }
    }

    /// Selects a client if it is among the highest so far.
    #[inline]
    pub(super) fn offer(&mut self, passed: Passed) {
        let Passed {
            fingerprint,
            usage,
            held,
            ..
        } = passed;
        let ranked = Ranked {
            fingerprint,
            usage,
            held,
        };
        if self.heap.len() < self.count {
            self.heap.push(Reverse(ranked));
        } else if let Some(mut lowest) = self.heap.peek_mut()
            && ranked > lowest.0
        {
            lowest.0 = ranked;
        }
    }

    /// Returns the selected clients, the highest first, each once.
    pub(super) fn into_sorted(self) -> Vec<Ranked> {
        let mut sorted: Vec<Ranked> = self
            .heap
            .into_sorted_vec()
            .into_iter()
            .map(|Reverse(ranked)| ranked)
            .collect();
        let mut seen = std::collections::HashSet::new();
        sorted.retain(|ranked| seen.insert(ranked.fingerprint));
        sorted
    }
}

impl Ranked {
    /// Returns the order of two clients whose usage is too high for a double.
    fn word(&self) -> i128 {
        match self.held {
            StateRef::Word(word) => word,
            StateRef::Key(_) => 0,
        }
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.usage
            .total_cmp(&other.usage)
            .then_with(|| self.word().cmp(&other.word()))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}
