//! This node among the others: its names, the numbers of its contributions, how many nodes there are.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use earrrl::Nanos;

/// The identity of this node, new at every start.
#[derive(Debug)]
pub(crate) struct Node {
    /// The name under which it claims shares and sends contributions of near rules.
    pub(crate) name: [u8; 8],
    next: AtomicU64,
    nodes: AtomicU32,
    /// The end of the last exchange of all clients, by this node's clock.
    exchanged: AtomicU64,
}

impl Node {
    pub(crate) fn new(nodes: Option<u32>) -> Self {
        Self {
            name: RandomState::new().hash_one(()).to_le_bytes(),
            next: AtomicU64::new(1),
            nodes: AtomicU32::new(nodes.unwrap_or(1)),
            exchanged: AtomicU64::new(0),
        }
    }

    /// Returns the name under which the ledger sends its contributions: their numbers are a sequence of their own.
    pub(crate) fn ledger_name(&self) -> [u8; 8] {
        self.name.map(|byte| !byte)
    }

    /// Returns a number that no other contribution of this node has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of nodes that are alive, as far as is known.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    /// Returns the time since the last exchange of all clients ended, if there was one.
    pub(crate) fn base_age(&self, now: Nanos) -> Option<Duration> {
        let exchanged = self.exchanged.load(Ordering::Relaxed);
        (exchanged > 0).then(|| Duration::from_nanos(now.get().saturating_sub(exchanged)))
    }

    pub(crate) fn set_exchanged(&self, now: Nanos) {
        self.exchanged.store(now.get(), Ordering::Relaxed);
    }
}
