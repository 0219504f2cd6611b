//! The identity of this node: its names, the numbers of its contributions, and the number of nodes.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use earrrl::Nanos;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

/// The time after its announcement for which a node assumes that other nodes are starting too.
pub(crate) const SETTLING: Duration = Duration::from_secs(3);
/// The number of nodes that are assumed to start together. A greater number costs round trips
/// during that time, a smaller one costs denials.
const STARTING: u32 = 8;

/// The time for which a node counts as alive after a heartbeat, and for which a number of live nodes is
/// believed although a smaller one was read since. Redis may have lost its list of nodes: until all have
/// reported again, a node would take itself for the only one and claim what the others need.
pub(crate) const ALIVE: Duration = Duration::from_secs(10);

/// The length of the part of a node's name that is the same at every start, if it is configured.
const LASTING: usize = 5;

/// The identity of this node, which is new at every start.
#[derive(Debug)]
pub(crate) struct NodeIdentity {
    /// The name under which the node claims shares and sends contributions of near rules. If a name
    /// is configured, the name begins with a hash of that, by which `near.lua` finds the claims of
    /// earlier processes.
    pub(crate) name: [u8; 8],
    next: AtomicU64,
    /// The number of nodes that are alive; 0 before this node is announced.
    nodes: watch::Sender<u32>,
    announced: OnceLock<Instant>,
    /// When this number of live nodes was read.
    read: Mutex<Instant>,
    /// True if the number of nodes is configured.
    is_known: bool,
    /// The time at which the last exchange of all clients ended, by this node's clock.
    exchanged: AtomicU64,
    /// True if this node makes no more claims, since its process ends.
    leaving: AtomicBool,
}

impl NodeIdentity {
    pub(crate) fn new(nodes: Option<u32>, configured: Option<&str>) -> Self {
        let mut name = RandomState::new().hash_one(()).to_le_bytes();
        if let Some(configured) = configured {
            name[..LASTING].copy_from_slice(&Sha256::digest(configured)[..LASTING]);
        }
        Self {
            name,
            next: AtomicU64::new(1),
            nodes: watch::Sender::new(nodes.unwrap_or(0)),
            announced: OnceLock::new(),
            read: Mutex::new(Instant::now()),
            is_known: nodes.is_some(),
            exchanged: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
        }
    }

    /// Returns the name under which the ledger sends its contributions. It differs from `name`
    /// because the ledger's numbers are a separate sequence.
    pub(crate) fn ledger_name(&self) -> [u8; 8] {
        self.name.map(|byte| !byte)
    }

    /// Returns a number that no other contribution of this node has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of live nodes, as far as known.
    pub(crate) fn nodes(&self) -> u32 {
        (*self.nodes.borrow()).max(1)
    }

    /// Returns the number of nodes that share a limit, as far as known; at least [`STARTING`] while
    /// other nodes may be starting too.
    pub(crate) fn sharers(&self) -> u32 {
        if self.is_settling() {
            self.nodes().max(STARTING)
        } else {
            self.nodes()
        }
    }

    /// Returns true if nodes that started together with this one may still be unknown.
    pub(crate) fn is_settling(&self) -> bool {
        !self.is_known
            && self
                .announced
                .get()
                .is_none_or(|at| at.elapsed() < SETTLING)
    }

    /// Notes that this node is announced, and the number of live nodes that was read at `now`.
    pub(crate) fn announced(&self, nodes: u32, now: Instant) {
        self.announced.get_or_init(|| now);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes >= self.nodes() || now.duration_since(*read) > ALIVE {
            *read = now;
            self.nodes.send_replace(nodes.max(1));
        }
    }

    pub(crate) fn is_announced(&self) -> bool {
        *self.nodes.borrow() > 0
    }

    pub(crate) async fn wait_for_announcement(&self) {
        self.nodes
            .subscribe()
            .wait_for(|nodes| *nodes > 0)
            .await
            .ok();
    }

    /// Notes that this node makes no more claims.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Returns the time since the last exchange of all clients ended, or `None` if there was none.
    pub(crate) fn base_age(&self, now: Nanos) -> Option<Duration> {
        let exchanged = self.exchanged.load(Ordering::Relaxed);
        (exchanged > 0).then(|| Duration::from_nanos(now.get().saturating_sub(exchanged)))
    }

    pub(crate) fn set_exchanged(&self, now: Nanos) {
        self.exchanged.store(now.get(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_nodes_are_believed_after_ten_seconds() {
        let node = NodeIdentity::new(None, None);
        let start = Instant::now();
        assert!(!node.is_announced());
        for (second, nodes, expected) in [
            (0, 1, 1),
            (1, 3, 3),
            (2, 1, 3),
            (11, 2, 3),
            (12, 2, 2),
            (13, 3, 3),
            (14, 2, 3),
        ] {
            node.announced(nodes, start + Duration::from_secs(second));
            assert_eq!(node.nodes(), expected, "{second} s");
        }
    }
}
