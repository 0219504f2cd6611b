//! The live reservations of the clients of buckets, in the order in which they were made.
//!
//! A commit must know how long its bucket could have been full: refill is lost meanwhile. Each
//! commit of an *older* reservation that gives something back makes the bucket full that much
//! earlier, so every live reservation keeps the sum of what older ones have given back since it was
//! made. Commits of newer reservations do not matter, since these were charged later.

use core::hash::BuildHasherDefault;
use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use smallvec::SmallVec;

use super::sharding::{SHARDS, lock};
use crate::engine::RuleId;
use crate::held::Held;
use crate::store::Identity;
use crate::store::table::KeyHash;

/// The most groups of one client. Beyond that, neighbours share a group, and a commit may give back
/// less.
const MOST: usize = 32;

/// The number of a live reservation of a client of a bucket. Newer reservations have greater ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketHold(NonZeroU64);

/// The reservations of the clients of rules, found by the client's hash alone.
type Clients = HashMap<(RuleId, KeyHash), ClientHolds, BuildHasherDefault<Identity>>;

/// The live reservations of all clients of buckets.
#[derive(Debug, Default)]
pub(crate) struct BucketHolds([Mutex<Clients>; SHARDS]);

impl BucketHolds {
    /// Counts a reservation.
    pub(crate) fn reserve(&self, rule: RuleId, key: KeyHash) -> BucketHold {
        lock(self.shard(key))
            .entry((rule, key))
            .or_default()
            .reserve()
    }

    /// Counts the end of a reservation that gives nothing back.
    pub(crate) fn keep(&self, rule: RuleId, key: KeyHash, hold: Option<BucketHold>) {
        if let Some(hold) = hold {
            self.finish(rule, key, hold, |_| Duration::ZERO);
        }
    }

    /// Counts the end of a reservation that is about to be corrected, and returns it lowered by what
    /// older reservations of the client have given back since it was made. `given_back` returns the
    /// refill time of what this one gives back.
    pub(crate) fn correct(
        &self,
        (rule, key): (RuleId, KeyHash),
        hold: Option<BucketHold>,
        held: Held,
        given_back: impl FnOnce(&Held) -> Duration,
    ) -> Held {
        let Some(hold) = hold else { return held };
        held.lowered(self.finish(rule, key, hold, |older| given_back(&held.lowered(older))))
    }

    /// Counts the end of a reservation, and returns the refill time of what older reservations have
    /// given back since it was made, at most. `given_back` turns that into the refill time of what
    /// this reservation gives back, which matters only to other reservations of the client.
    fn finish(
        &self,
        rule: RuleId,
        key: KeyHash,
        hold: BucketHold,
        given_back: impl FnOnce(Duration) -> Duration,
    ) -> Duration {
        let mut clients = lock(self.shard(key));
        let Entry::Occupied(mut client) = clients.entry((rule, key)) else {
            return Duration::ZERO;
        };
        let older = client.get().given_back_before(hold);
        match &client.get().groups[..] {
            [Group { live: 1, .. }] => drop(client.remove()),
            _ => client.get_mut().finish(hold, given_back(older)),
        }
        older
    }

    pub(super) fn bytes(&self) -> usize {
        let client = size_of::<((RuleId, KeyHash), ClientHolds)>();
        self.0
            .iter()
            .map(|clients| lock(clients).capacity() * client)
            .sum()
    }

    fn shard(&self, key: KeyHash) -> &Mutex<Clients> {
        &self.0[key.bits() as usize % SHARDS]
    }
}

/// The live reservations of one client, the oldest first.
#[derive(Debug)]
struct ClientHolds {
    next: NonZeroU64,
    groups: SmallVec<[Group; 1]>,
}

/// Neighbouring reservations of one client.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// The number of the oldest one.
    first: NonZeroU64,
    live: u32,
    /// The greatest refill time that reservations older than one of these have given back since.
    given_back: Duration,
}

impl Default for ClientHolds {
    fn default() -> Self {
        Self {
            next: NonZeroU64::MIN,
            groups: SmallVec::new(),
        }
    }
}

impl ClientHolds {
    fn reserve(&mut self) -> BucketHold {
        if self.groups.len() == MOST {
            self.groups = self.groups.chunks(2).map(merge).collect();
        }
        let first = self.next;
        self.next = first.saturating_add(1);
        self.groups.push(Group {
            first,
            live: 1,
            given_back: Duration::ZERO,
        });
        BucketHold(first)
    }

    fn given_back_before(&self, hold: BucketHold) -> Duration {
        self.place(hold)
            .map_or(Duration::ZERO, |place| self.groups[place].given_back)
    }

    /// Counts what a reservation has given back for all newer ones, and for the others of its group.
    fn finish(&mut self, hold: BucketHold, time: Duration) {
        let Some(place) = self.place(hold) else {
            return;
        };
        for group in &mut self.groups[place..] {
            group.given_back = group.given_back.saturating_add(time);
        }
        self.groups[place].live -= 1;
        if self.groups[place].live == 0 {
            self.groups.remove(place);
        }
    }

    /// Returns the place of a live reservation's group.
    fn place(&self, hold: BucketHold) -> Option<usize> {
        self.groups
            .partition_point(|group| group.first <= hold.0)
            .checked_sub(1)
    }
}

/// Returns the group of the reservations of neighbouring groups.
fn merge(groups: &[Group]) -> Group {
    Group {
        first: groups[0].first,
        live: groups.iter().map(|group| group.live).sum(),
        given_back: groups
            .iter()
            .map(|group| group.given_back)
            .max()
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn only_commits_of_older_reservations_count() {
        let mut client = ClientHolds::default();
        let holds = [(); 4].map(|()| client.reserve());
        client.finish(holds[1], secs(30));
        client.finish(holds[3], secs(50));
        let newest = client.reserve();
        let found = [holds[0], holds[2], newest].map(|hold| client.given_back_before(hold));
        assert_eq!(found, [secs(0), secs(30), secs(0)]);
        client.finish(holds[0], secs(7));
        let found = [holds[2], newest].map(|hold| client.given_back_before(hold));
        assert_eq!(found, [secs(37), secs(7)]);
        client.finish(newest, secs(9));
        assert_eq!(client.given_back_before(holds[2]), secs(37));
        client.finish(holds[2], secs(1));
        assert!(client.groups.is_empty());
    }

    #[test]
    fn groups_are_bounded_and_err_towards_more() {
        let mut client = ClientHolds::default();
        let holds: Vec<_> = (0..1000).map(|_| client.reserve()).collect();
        assert!(client.groups.len() <= MOST);
        for (place, hold) in holds.iter().enumerate() {
            let given_back = client.given_back_before(*hold);
            assert!(
                given_back >= secs(5) * place as u32,
                "{place}: {given_back:?}"
            );
            client.finish(*hold, secs(5));
        }
        assert!(client.groups.is_empty());
    }

    #[test]
    fn a_merged_group_has_given_back_the_most() {
        let mut client = ClientHolds::default();
        let holds: Vec<_> = (0..MOST).map(|_| client.reserve()).collect();
        client.finish(holds[0], secs(5));
        // The first of these is merged with the last of those before.
        let newer = [(); 2].map(|()| client.reserve());
        let found =
            [holds[MOST - 1], newer[0], newer[1]].map(|hold| client.given_back_before(hold));
        assert_eq!(found, [secs(5), secs(5), secs(0)]);
    }

    #[test]
    fn clients_without_reservations_take_no_memory() {
        let holds = BucketHolds::default();
        let rule = RuleId(1);
        let key = KeyHash::from_bits(7);
        let two = [(); 2].map(|()| holds.reserve(rule, key));
        let clients = || {
            holds
                .0
                .iter()
                .map(|clients| lock(clients).len())
                .sum::<usize>()
        };
        holds.keep(rule, key, Some(two[0]));
        assert_eq!(clients(), 1);
        holds.keep(rule, key, Some(two[1]));
        assert_eq!(clients(), 0);
    }
}
