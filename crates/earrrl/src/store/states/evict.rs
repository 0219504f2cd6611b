//! The choice of the client that a full shard evicts.
//!
//! An eviction looks at the clients that have been idle for longest until it has found a few within their
//! limit, and evicts the one with the lowest rate. Under every algorithm a client over its limit has a higher
//! rate than all clients within it, so such a client is evicted only if no other was found.

use smallvec::SmallVec;

use super::bytes;
use super::shard::Shard;
use crate::algorithm::Limit;
use crate::clock::Nanos;
use crate::store::table::KeyHash;

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
    fn granted(&self) -> usize {
        (self.saved + SCANNED_PER_EVICTION).min(MAX_SCANNED)
    }

    /// Deducts the clients that an eviction has looked at.
    fn spend(&mut self, scanned: usize) {
        self.saved = self.granted() - scanned;
        #[cfg(test)]
        {
            self.scanned += scanned;
        }
    }
}

/// The rank of a client in the order of eviction: idle clients first, then by rate.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Standing {
    is_active: bool,
    rate: f64,
}

/// The result of a search for a client to evict.
#[derive(Default)]
struct Scan {
    lowest: Option<(u64, Standing)>,
    /// The clients over their limit that the scan met.
    offenders: SmallVec<[u64; CANDIDATES]>,
    scanned: usize,
}

impl Shard {
    /// Evicts one of the clients that have been idle for longest.
    pub(super) fn evict(&mut self, limit: &Limit, now: Nanos) {
        // The most recent visitor is the one that needs the place.
        let most = self.scan_budget.granted().min(self.states.len() - 1);
        let scan = self.scan(most, limit, now);
        self.scan_budget.spend(scan.scanned);
        for key in &scan.offenders {
            self.states.promote(key);
        }
        if let Some((key, Standing { is_active, .. })) = scan.lowest {
            self.remove(KeyHash::from_bits(key));
            self.displaced += u64::from(is_active);
        }
    }

    /// Looks at the longest idle clients until it has found enough that are within their limit, and at no
    /// more than `most`.
    ///
    /// Offenders of one attack lie side by side, so the scan goes on past them. The caller moves them to
    /// the end of the queue: they are looked at again only after all others.
    fn scan(&mut self, most: usize, limit: &Limit, now: Nanos) -> Scan {
        let mut scan = Scan::default();
        let mut candidates = 0;
        for (key, state) in self.states.iter_mut().rev().take(most) {
            self.bytes -= bytes(state);
            let (allowed, rate) = limit.standing(state, now);
            self.bytes += bytes(state);
            let standing = Standing { is_active: state.is_some(), rate };
            if scan.lowest.is_none_or(|(_, lowest)| standing < lowest) {
                scan.lowest = Some((*key, standing));
            }
            scan.scanned += 1;
            if allowed {
                candidates += 1;
            } else {
                scan.offenders.push(*key);
            }
            if candidates == CANDIDATES {
                break;
            }
        }
        scan
    }
}
