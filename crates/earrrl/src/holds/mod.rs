//! The live reservations of an engine in memory: a bounded number, each under an id that cannot be
//! guessed, with its expiry.

mod buckets;
mod changed;
mod shard;
mod sharding;

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

pub(crate) use buckets::{BucketHold, BucketHolds};
use shard::Shard;
pub(crate) use shard::{HeldPart, HeldParts};
use sharding::{SHARDS, lock};

use crate::clock::Nanos;
use crate::engine::{EngineError, RuleId};
use crate::hold_id::HoldId;
use crate::store::table::KeyHasher;

/// The default bound on the number of live reservations.
pub const DEFAULT_MAX_HOLDS: usize = 100_000;

/// The numbers of an engine's reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reservations {
    /// The number of live reservations.
    pub live: usize,
    /// The most reservations that may be live at a time.
    pub most: usize,
    /// The bytes of memory that all reservations occupy.
    pub bytes: usize,
    /// The number of reservations that were committed so far.
    pub committed: u64,
    /// The number of reservations that have expired so far.
    pub expired: u64,
}

/// All live reservations of an engine.
pub(crate) struct Holds {
    shards: [Mutex<Shard>; SHARDS],
    /// The reservations of the clients of buckets.
    pub(crate) buckets: BucketHolds,
    /// No reservation expires before this instant, in nanoseconds.
    earliest: AtomicU64,
    live: AtomicUsize,
    most: AtomicUsize,
    committed: AtomicU64,
    expired: AtomicU64,
    /// The number of reservations so far, from which the ids are derived.
    count: AtomicU64,
    /// Keyed with its own secret, so that ids reveal nothing about the hashes of keys.
    ids: KeyHasher,
}

/// The permit for one reservation, which is returned when this is dropped.
pub(crate) struct Permit<'a>(&'a Holds);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Relaxed);
    }
}

impl Holds {
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        Ok(Self {
            shards: Default::default(),
            buckets: BucketHolds::default(),
            earliest: AtomicU64::new(u64::MAX),
            live: AtomicUsize::new(0),
            most: AtomicUsize::new(DEFAULT_MAX_HOLDS),
            committed: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            count: AtomicU64::new(0),
            ids: KeyHasher::random()?,
        })
    }

    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    pub(crate) fn usage(&self) -> Reservations {
        let shards = self.shards.iter().map(|shard| lock(shard).bytes());
        Reservations {
            live: self.live.load(Relaxed),
            most: self.most(),
            bytes: shards.sum::<usize>() + self.buckets.bytes(),
            committed: self.committed.load(Relaxed),
            expired: self.expired.load(Relaxed),
        }
    }

    pub(crate) fn rules(&self, id: HoldId, now: Nanos) -> Result<Vec<RuleId>, EngineError> {
        let (mut shard, place) = self.at(id);
        shard
            .rules(place, id, now)
            .ok_or(EngineError::UnknownReservation(id))
    }

    /// Takes a permit for one more reservation; returns an error if `most` are live.
    pub(crate) fn permit(&self) -> Result<Permit<'_>, EngineError> {
        let most = self.most();
        let permit = Permit(self);
        if self.live.fetch_add(1, Relaxed) < most {
            return Ok(permit);
        }
        drop(permit);
        Err(EngineError::Reservations { most })
    }

    /// Stores a reservation, and returns its id.
    pub(crate) fn insert(
        &self,
        permit: Permit<'_>,
        parts: HeldParts,
        now: Nanos,
        ttl: Duration,
    ) -> HoldId {
        let count = self.count.fetch_add(1, Relaxed);
        let nth = count as usize % SHARDS;
        let most = self.most().div_ceil(SHARDS);
        let id = |place: u32| self.id(count, place * SHARDS as u32 + nth as u32);
        let id = lock(&self.shards[nth]).insert(id, parts, (now, now + ttl), most);
        self.expires(now + ttl);
        std::mem::forget(permit);
        id
    }

    /// Notes that a reservation expires at this instant. Called after its shard was locked, so that
    /// [`expire`](Self::expire) either finds the reservation there or resets `earliest` before.
    fn expires(&self, at: Nanos) {
        if at.get() < self.earliest.load(Relaxed) {
            self.earliest.fetch_min(at.get(), Relaxed);
        }
    }

    /// Returns an id: the place in the low 32 bits, the low half of the count, and 64 bits of a
    /// keyed hash, which nobody can guess.
    fn id(&self, count: u64, place: u32) -> HoldId {
        let low = u64::from(place) | count << 32;
        let tag = self.ids.hash(&(count, place)).bits();
        HoldId::from_bits(u128::from(tag) << 64 | u128::from(low))
    }

    /// Returns true if the id is that of a reservation of this engine, live or not.
    pub(crate) fn has_issued(&self, id: HoldId) -> bool {
        let place = id.bits() as u32;
        let low = (id.bits() >> 32) as u32;
        let Some(latest) = self.count.load(Relaxed).checked_sub(1) else {
            return false;
        };
        let count = latest.checked_sub((latest as u32).wrapping_sub(low).into());
        count.is_some_and(|count| self.id(count, place) == id)
    }

    fn at(&self, id: HoldId) -> (MutexGuard<'_, Shard>, u32) {
        let place = id.bits() as u32;
        (
            lock(&self.shards[place as usize % SHARDS]),
            place / SHARDS as u32,
        )
    }

    /// Passes the parts of a reservation to `commit`, with true if it was committed before. Marks it
    /// as committed unless `commit` returns an error; no other commit or expiry comes in between.
    pub(crate) fn commit<R>(
        &self,
        id: HoldId,
        now: Nanos,
        commit: impl FnOnce(&[HeldPart], bool) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        let (mut shard, place) = self.at(id);
        let mut repeated = false;
        let answer = shard.commit(place, id, now, |parts, is_committed| {
            repeated = is_committed;
            commit(parts, repeated)
        })?;
        drop(shard);
        if !repeated {
            drop(Permit(self));
            self.committed.fetch_add(1, Relaxed);
        }
        Ok(answer)
    }

    /// Moves the expiry of a live reservation to the time from now that `renew` returns. `renew` may
    /// change the parts, and refuse with `None`; no commit or expiry comes in between.
    pub(crate) fn renew(
        &self,
        id: HoldId,
        now: Nanos,
        renew: impl FnOnce(&mut [HeldPart]) -> Option<Duration>,
    ) -> Result<(), EngineError> {
        let (mut shard, place) = self.at(id);
        let expires = |parts: &mut [HeldPart]| renew(parts).map(|ttl| now + ttl);
        let expires = shard.renew(place, id, now, expires);
        self.expires(expires.ok_or(EngineError::UnknownReservation(id))?);
        Ok(())
    }

    /// Removes the reservations that have expired, and returns their parts.
    pub(crate) fn expire(&self, now: Nanos) -> Vec<HeldParts> {
        let mut expired = Vec::new();
        if now.get() < self.earliest.load(Relaxed) {
            return expired;
        }
        self.earliest.store(u64::MAX, Relaxed);
        for shard in &self.shards {
            let next = lock(shard).expire(now, |parts| expired.push(parts));
            self.earliest
                .fetch_min(next.map_or(u64::MAX, Nanos::get), Relaxed);
        }
        expired.iter().for_each(|_| drop(Permit(self)));
        self.expired.fetch_add(expired.len() as u64, Relaxed);
        expired
    }
}

#[cfg(test)]
mod model;
