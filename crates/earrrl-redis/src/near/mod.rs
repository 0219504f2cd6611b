//! Decisions without a trip: a node goes by what Redis last told of a client and by what it has charged since.
//!
//! - Over the limit by both: denied. Strict attempts join what is unsent.
//! - Within what this node may spend of what was left ([`client::Client`]): allowed.
//! - Otherwise Redis is asked now, and gets what is unsent in the same call.
//!
//! What a node may spend is claimed in Redis, where the other nodes' scripts see it: so all of them
//! together never spend more than was left, however old what they know is. A claim ends by itself
//! ([`lease`]).
//!
//! Every [`Options::sync`](crate::Options::sync) the clients of whom something was decided here are exchanged,
//! many in one write: those at once of whom others must hear, or whose claim is half spent or half over. Of
//! the others there may be a hundred thousand; they take turns. What a node has counted carries its number,
//! and Redis adds it once, however often it is sent.

pub(crate) mod client;
pub(crate) mod decide;
pub(crate) mod exchange;
mod lines;
pub(crate) mod offset;
pub(crate) mod rounds;
pub(crate) mod shard;
pub(crate) mod table;
pub(crate) mod tables;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use earrrl::{Action, Limit, Nanos, Quota, Rule, RuleError};

use crate::algorithm;
use offset::Offset;

/// What is the same for every client.
#[derive(Debug)]
pub(crate) struct Near {
    /// What this node is called in claims.
    pub(crate) node: [u8; 8],
    /// How far Redis's clock is from this node's, for every breaker's group.
    pub(crate) offsets: Vec<Offset>,
    next: AtomicU64,
    nodes: AtomicU32,
    /// When the last exchange of all clients ended, by this node's clock.
    exchanged: AtomicU64,
}

impl Near {
    pub(crate) fn new(groups: usize, nodes: Option<u32>) -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self {
            node: RandomState::new().hash_one(()).to_le_bytes(),
            offsets: (0..groups).map(|_| Offset::default()).collect(),
            next: AtomicU64::new(1),
            nodes: AtomicU32::new(nodes.unwrap_or(1)),
            exchanged: AtomicU64::new(0),
        }
    }

    /// What it is called where it hands over what it counted alone: those numbers are a sequence of their own.
    pub(crate) fn ledger(&self) -> [u8; 8] {
        self.node.map(|byte| !byte)
    }

    /// A number that no other contribution of this node has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// How many nodes are alive.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    /// How long ago the last exchange of all clients ended.
    pub(crate) fn age(&self, now: Nanos) -> Option<Duration> {
        let exchanged = self.exchanged.load(Ordering::Relaxed);
        (exchanged > 0).then(|| Duration::from_nanos(now.get().saturating_sub(exchanged)))
    }

    pub(crate) fn exchanged(&self, now: Nanos) {
        self.exchanged.store(now.get(), Ordering::Relaxed);
    }
}

/// How long what Redis told of a client will do to deny it by.
pub(crate) fn fresh(sync: Duration) -> Duration {
    2 * sync + Duration::from_secs(1)
}

/// How long a claim holds: long enough for clients that come seldom, and not so long that what an idle node
/// claims is missed for more than twice the time in which the limit has all to give again.
pub(crate) fn lease(limit: &Limit, sync: Duration) -> Duration {
    let window = Quota::of(limit).window.unwrap_or(1);
    let lease = Duration::from_secs(window.saturating_mul(2).clamp(10, 60));
    lease.max(fresh(sync))
}

/// Checks that a rule's clients can be decided without a trip.
///
/// # Errors
/// When what several nodes count does not add up, or a request may be held back.
pub fn check_near(rule: &Rule) -> Result<(), RuleError> {
    let wrong = |problem: &str| Err(RuleError::new(problem.to_owned()).of("consistency"));
    if !algorithm::of(rule.limit()).adds() {
        return wrong("near is not for exponential: what several nodes counted can't be added up");
    }
    if let Action::Delay { .. } = rule.action() {
        return wrong("near is not for the action delay: requests of all nodes are in one queue");
    }
    Ok(())
}
