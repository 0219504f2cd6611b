//! The reservations of one client of a bucket, netted: the refill time that was reserved, less the
//! time that commits have given back.
//!
//! A commit must know how long its bucket could have been full, and for that, how far commits of
//! *older* reservations have lowered the time at which the bucket is full. Commits of newer ones do
//! not matter, since their own charges came after: their net is never below zero. So the greatest
//! fall of the net below its value at the reservation is an upper bound of what older reservations
//! have given back.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Mutex;
use std::vec::Vec;

use super::sharding::{SHARDS, lock};
use crate::engine::RuleId;
use crate::store::table::KeyHash;

/// The most minima that are kept for one client. Beyond that, every second one is dropped, and a
/// commit may give back less.
const MOST: usize = 32;

type Clients = HashMap<(RuleId, KeyHash), (u32, NetReserved)>;

/// The nets of all clients that have live reservations, with the number of these.
#[derive(Debug, Default)]
pub(crate) struct Nets([Mutex<Clients>; SHARDS]);

impl Nets {
    /// Counts a reservation whose estimate refills in `time`.
    pub(crate) fn reserve(&self, rule: RuleId, key: KeyHash, time: Duration) -> NetSnapshot {
        let mut clients = lock(self.shard(key));
        let (live, net) = clients.entry((rule, key)).or_default();
        *live += 1;
        net.reserve(time)
    }

    /// Returns the time that older reservations of the client have given back since the mark, at
    /// most.
    pub(crate) fn given_back_since(
        &self,
        rule: RuleId,
        key: KeyHash,
        mark: NetSnapshot,
    ) -> Duration {
        let clients = lock(self.shard(key));
        let client = clients.get(&(rule, key));
        client.map_or(Duration::ZERO, |(_, net)| net.given_back_since(mark))
    }

    /// Counts the end of a reservation that gave back what refills in `time`.
    pub(crate) fn finish(&self, rule: RuleId, key: KeyHash, time: Duration) {
        let mut clients = lock(self.shard(key));
        if let Some((live, net)) = clients.get_mut(&(rule, key)) {
            *live -= 1;
            net.give_back(time);
            if *live == 0 {
                clients.remove(&(rule, key));
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let client = size_of::<((RuleId, KeyHash), (u32, NetReserved))>();
        self.0.iter().map(|clients| lock(clients).capacity() * client).sum()
    }

    fn shard(&self, key: KeyHash) -> &Mutex<Clients> {
        &self.0[key.bits() as usize % SHARDS]
    }
}

/// The net of one client, in nanoseconds of refill.
#[derive(Debug, Default)]
pub(crate) struct NetReserved {
    net: i64,
    /// The number of commits so far that gave something back.
    commits: u64,
    /// The least net from a commit on, by the commit's number: both numbers ascend.
    minima: Vec<(u64, i64)>,
}

/// The net of a client at the time of a reservation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetSnapshot {
    commits: u64,
    net: i64,
}

impl NetReserved {
    /// Counts a reservation whose estimate refills in `time`.
    pub(crate) fn reserve(&mut self, time: Duration) -> NetSnapshot {
        self.net = self.net.saturating_add(nanos(time));
        NetSnapshot { commits: self.commits, net: self.net }
    }

    /// Counts a commit that gives back what refills in `time`.
    pub(crate) fn give_back(&mut self, time: Duration) {
        if time.is_zero() {
            return;
        }
        self.net = self.net.saturating_sub(nanos(time));
        while self.minima.pop_if(|(_, least)| *least >= self.net).is_some() {}
        self.minima.push((self.commits, self.net));
        self.commits += 1;
        if self.minima.len() > MOST {
            self.thin_out();
        }
    }

    /// Returns the time that older reservations have given back since the mark, at most.
    pub(crate) fn given_back_since(&self, mark: NetSnapshot) -> Duration {
        let first = self.minima.partition_point(|(commit, _)| *commit < mark.commits);
        let least = self.minima.get(first).map_or(mark.net, |(_, least)| *least);
        Duration::from_nanos(u64::try_from(mark.net.saturating_sub(least)).unwrap_or(0))
    }

    /// Merges pairs of minima: the later commit keeps the lower net, which was the earlier one's.
    fn thin_out(&mut self) {
        let pairs = self.minima.chunks(2);
        let merge = |pair: &[(u64, i64)]| Some((pair.last()?.0, pair.first()?.1));
        self.minima = pairs.filter_map(merge).collect();
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn only_commits_of_older_reservations_lower_the_mark() {
        let mut net = NetReserved::default();
        let older = net.reserve(secs(50));
        let newer = net.reserve(secs(30));
        net.give_back(secs(30));
        assert_eq!(net.given_back_since(older), Duration::ZERO);
        net.reserve(secs(10));
        net.give_back(secs(50));
        assert_eq!(net.given_back_since(newer), secs(70));
        assert_eq!(net.given_back_since(older), secs(40));
    }

    #[test]
    fn many_minima_are_bounded_and_err_towards_more() {
        let mut net = NetReserved::default();
        let mut marks = Vec::new();
        for step in 0..1000 {
            marks.push((net.reserve(secs(20)), step));
            net.give_back(secs(5));
        }
        assert!(net.minima.len() <= MOST + 1);
        for (mark, _) in marks {
            assert!(net.given_back_since(mark) >= secs(5));
        }
    }
}
