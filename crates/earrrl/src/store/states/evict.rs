//! The choice of the client that a full shard evicts.
//!
//! An eviction looks at the clients that have been idle for longest until it has found a few within their
//! limit, and evicts the one with the lowest rate. A client over its limit is evicted only if no other was found.
//! A client with live reservations under concurrent is never evicted: the bound on reservations bounds these.

use smallvec::SmallVec;

/// The number of clients within their limit among which an eviction chooses.
const CANDIDATES: usize = 5;
/// The number of clients that evictions look at, on average. Together with [`MAX_SCANNED`] it bounds the cost
/// of a flood of clients that are all over their limit.
pub(super) const SCANNED_PER_EVICTION: usize = 16;
/// The most clients that one eviction looks at: more than the offenders of one attack that share a shard.
pub(super) const MAX_SCANNED: usize = 1024;

/// The number of clients that evictions may look at beyond their average, saved up by evictions that looked at
/// fewer.
pub(super) struct ScanBudget {
    saved: usize,
    #[cfg(test)]
    pub(super) scanned: usize,
}

impl Default for ScanBudget {
    fn default() -> Self {
        Self {
            saved: MAX_SCANNED,
            #[cfg(test)]
            scanned: 0,
        }
    }
}

impl ScanBudget {
    /// Returns the number of clients that an eviction may look at.
    pub(super) fn granted(&self) -> usize {
        (self.saved + SCANNED_PER_EVICTION).min(MAX_SCANNED)
    }

    /// Deducts the clients that an eviction has looked at.
    pub(super) fn spend(&mut self, scan: &Scan) {
        self.saved = self.granted() - scan.scanned;
        #[cfg(test)]
        {
            self.scanned += scan.scanned;
        }
    }
}

/// A client that an eviction looks at.
pub(super) struct Client {
    pub(super) key: u64,
    pub(super) standing: Standing,
    /// True if the client has live reservations that must not be forgotten.
    pub(super) is_kept: bool,
}

/// The rank of a client in the order of eviction: idle clients first, then those within their limits, each by
/// rate.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Standing {
    pub(super) is_active: bool,
    pub(super) is_over: bool,
    pub(super) rate: f64,
}

/// The result of a search for a client to evict.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) lowest: Option<(u64, Standing)>,
    /// The clients over their limit, or with live reservations, that the scan met.
    pub(super) passed_over: SmallVec<[u64; CANDIDATES]>,
    scanned: usize,
}

/// Looks at clients, the longest idle first, until it has found enough that are within their limit.
///
/// Offenders of one attack lie side by side, so the scan goes on past them. The caller moves them to
/// the end of the queue: they are looked at again only after all others.
pub(super) fn scan(clients: impl Iterator<Item = Client>) -> Scan {
    let mut scan = Scan::default();
    let mut candidates = 0;
    for Client {
        key,
        standing,
        is_kept,
    } in clients
    {
        if !is_kept && scan.lowest.is_none_or(|(_, lowest)| standing < lowest) {
            scan.lowest = Some((key, standing));
        }
        scan.scanned += 1;
        if is_kept || standing.is_over {
            scan.passed_over.push(key);
        } else {
            candidates += 1;
        }
        if candidates == CANDIDATES {
            break;
        }
    }
    scan
}
