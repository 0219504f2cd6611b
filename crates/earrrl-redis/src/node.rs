//! The identity of this node: its name, and the numbers of its contributions.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of this node, which is new at every start: the numbers of its contributions begin again.
#[derive(Debug)]
pub(crate) struct NodeIdentity {
    name: [u8; 8],
    next: AtomicU64,
}

impl NodeIdentity {
    pub(crate) fn new() -> Self {
        Self {
            name: RandomState::new().hash_one(()).to_le_bytes(),
            next: AtomicU64::new(1),
        }
    }

    /// Returns the name under which the node sends contributions.
    pub(crate) fn name(&self) -> [u8; 8] {
        self.name
    }

    /// Returns a number that no other contribution of this node has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}
