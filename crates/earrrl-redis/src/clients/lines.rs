//! The index of the clients of all shards: an array with one cache line per client, by open
//! addressing. A decision by a lease reads only the client's line.
//!
//! A shard's lines are read and written only by the holder of that shard's lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use earrrl::internal::room_for;

use super::client::Lease;

/// The number of 64-bit words of a lease.
pub(super) const LEASE_WORDS: usize = 6;

/// The index entry of a client, with its lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseLine {
    /// The hash of the client's key, never 0.
    pub(super) hash: u64,
    pub(super) entry: u32,
    /// The group of Cluster slots, with a circuit breaker of its own, to which the client belongs.
    pub(super) group: u32,
    pub(super) lease: Lease,
}

/// A line as it is stored. The first word is the client's hash, or 0 for a free line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Words([AtomicU64; 2 + LEASE_WORDS]);

#[derive(Debug)]
pub(super) struct LeaseLines {
    words: Vec<Words>,
    /// The number of lines per shard.
    each: usize,
}

/// The position of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At(usize);

impl LeaseLines {
    /// Allocates the lines of all shards. Returns `None` if there is not enough memory.
    pub(super) fn new(shards: usize, each: usize) -> Option<Self> {
        let mut words = room_for(shards.checked_mul(each)?)?;
        words.resize_with(shards * each, Words::default);
        Some(Self { words, each })
    }

    /// Returns the number of lines per shard.
    pub(super) fn each(&self) -> usize {
        self.each
    }

    #[inline]
    pub(super) fn find(&self, shard: usize, hash: u64) -> Option<At> {
        let mut at = self.home(shard, hash);
        loop {
            match self.hash(at) {
                0 => return None,
                found if found == hash => return Some(at),
                _ => at = self.next(shard, at),
            }
        }
    }

    #[inline]
    pub(super) fn read(&self, At(at): At) -> LeaseLine {
        let words = self.words[at].0.each_ref().map(|word| word.load(Relaxed));
        let [hash, place, lease @ ..] = words;
        let entry = place as u32;
        let group = (place >> 32) as u32;
        LeaseLine {
            hash,
            entry,
            group,
            lease: Lease::from_words(lease),
        }
    }

    #[inline]
    pub(super) fn write(&self, At(at): At, line: &LeaseLine) {
        let [a, b, c, d, e, f] = line.lease.words();
        let place = u64::from(line.entry) | u64::from(line.group) << 32;
        let new = [line.hash, place, a, b, c, d, e, f];
        self.words[at]
            .0
            .iter()
            .zip(new)
            .for_each(|(word, new)| word.store(new, Relaxed));
    }

    /// Stores a client in a free line of its shard. At least two lines must be free, since a search
    /// ends at a free line.
    pub(super) fn insert(&self, shard: usize, line: &LeaseLine) {
        let mut at = self.home(shard, line.hash);
        while self.hash(at) != 0 {
            at = self.next(shard, at);
        }
        self.write(at, line);
    }

    /// Frees a line. Moves up later lines whose searches pass it, so that they are still found.
    pub(super) fn remove(&self, shard: usize, at: At) {
        let mut free = at;
        let mut next = self.next(shard, at);
        while self.hash(next) != 0 {
            let home = self.home(shard, self.hash(next));
            if self.distance(home, next) >= self.distance(free, next) {
                self.write(free, &self.read(next));
                free = next;
            }
            next = self.next(shard, next);
        }
        self.words[free.0].0[0].store(0, Relaxed);
    }

    /// Frees all lines of a shard.
    pub(super) fn clear(&self, shard: usize) {
        self.of(shard)
            .for_each(|At(at)| self.words[at].0[0].store(0, Relaxed));
    }

    /// Returns the lines of a shard that hold clients.
    pub(super) fn of(&self, shard: usize) -> impl Iterator<Item = At> {
        let all = (shard * self.each..(shard + 1) * self.each).map(At);
        all.filter(|at| self.hash(*at) != 0)
    }

    #[inline]
    fn hash(&self, At(at): At) -> u64 {
        self.words[at].0[0].load(Relaxed)
    }

    /// Returns the line at which the search for a hash begins, computed from the topmost bits.
    #[inline]
    fn home(&self, shard: usize, hash: u64) -> At {
        let place = (u128::from(hash) * self.each as u128) >> 64;
        At(shard * self.each + place as usize)
    }

    #[inline]
    fn next(&self, shard: usize, At(at): At) -> At {
        let next = at + 1;
        At(if next == (shard + 1) * self.each {
            shard * self.each
        } else {
            next
        })
    }

    /// Returns the number of lines from one to another in a shard, in the direction of a search.
    fn distance(&self, from: At, to: At) -> usize {
        (to.0 + self.each - from.0) % self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(hash: u64) -> LeaseLine {
        LeaseLine {
            hash,
            entry: hash as u32,
            group: 0,
            lease: Lease::default(),
        }
    }

    #[test]
    fn clients_are_found_after_others_were_removed() {
        let lines = LeaseLines::new(3, 8).unwrap();
        let hashes: Vec<u64> = [7, 7, 0, 6, 7, 1]
            .iter()
            .zip(1..)
            .map(|(home, n)| home << 61 | n)
            .collect();
        for gone in 0..hashes.len() {
            hashes.iter().for_each(|hash| lines.insert(1, &line(*hash)));
            for (nth, hash) in hashes[gone..].iter().chain(&hashes[..gone]).enumerate() {
                let at = lines.find(1, *hash).unwrap();
                assert_eq!(lines.read(at).entry, *hash as u32);
                lines.remove(1, at);
                assert_eq!(lines.find(1, *hash), None);
                assert_eq!(lines.of(1).count(), hashes.len() - nth - 1);
                let left = hashes[gone..].iter().chain(&hashes[..gone]).skip(nth + 1);
                assert!(left.clone().all(|hash| lines.find(1, *hash).is_some()));
            }
        }
        assert_eq!(
            lines.of(0).count() + lines.of(2).count(),
            0,
            "other shards have lines of their own"
        );
    }
}
