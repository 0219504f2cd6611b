//! The reservations of an engine in memory: a bounded number, each under its id, with its expiry.
//!
//! A reservation is live until it is committed or expires. A committed one is remembered for a while, so that a
//! repeated commit, or a repeated reservation under an id that the caller chose, changes nothing.

#[cfg(target_os = "linux")]
mod record;
#[cfg(target_os = "linux")]
mod stored;

use core::cmp::Reverse;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

use smallvec::SmallVec;

use crate::clock::Nanos;
use crate::engine::{EngineError, RuleId};
use crate::hold_id::HoldId;
use crate::lock::lock;
use crate::rules::reserve::Reserved;
#[cfg(target_os = "linux")]
use crate::store::file::records::RecordFile;
use crate::store::table::{KeyHash, KeyHasher};
use crate::store::{Identity, random_id};

/// The default bound on the number of live reservations.
pub const DEFAULT_MAX_HOLDS: usize = 100_000;

/// The number of shards, a power of two.
const SHARDS: usize = 16;
/// The time for which a committed reservation is remembered, unless its place is needed earlier.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The bits of an id that its caller may choose. The others are a keyed hash of these.
const CHOSEN: u128 = u128::MAX >> 32;
/// The number of reservations that a client may always have under a rule.
const LEAST_SHARE: usize = 64;

/// Returns how many of the `most` reservations of an engine one client of a rule may have: a sixteenth, which
/// is more than a client can usefully do at a time, so that no client takes the places of all others.
#[must_use]
pub fn share_of_client(most: usize) -> usize {
    (most / 16).max(LEAST_SHARE)
}

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

/// The part of a reservation that concerns one rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldPart {
    pub(crate) rule: RuleId,
    /// The hash of the rule's name, which a later process knows the rule by.
    pub(crate) name: u64,
    pub(crate) key: KeyHash,
    pub(crate) reserved: Reserved,
    /// The place of the part in the file of reservations.
    pub(crate) record: Option<u32>,
}

pub(crate) type HeldParts = SmallVec<[HeldPart; 1]>;

/// All reservations of an engine.
pub(crate) struct Holds {
    shards: [Mutex<Shard>; SHARDS],
    /// No reservation expires before this instant, in nanoseconds.
    earliest: AtomicU64,
    live: AtomicUsize,
    most: AtomicUsize,
    committed: AtomicU64,
    expired: AtomicU64,
    /// The number of ids so far, beginning at random, from which the next ones are derived.
    count: AtomicU64,
    /// Keyed, so that ids cannot be guessed.
    ids: KeyHasher,
    #[cfg(target_os = "linux")]
    file: OnceLock<RecordFile>,
    /// The instant from which the file may be asked for again.
    #[cfg(target_os = "linux")]
    next_take: AtomicU64,
    /// The reservations of an earlier process under each rule that is not prepared yet, by the hash of its name.
    #[cfg(target_os = "linux")]
    waiting: Mutex<HashMap<u64, Vec<HoldId>>>,
}

impl Holds {
    /// Returns no reservations. Their ids are derived with a key that only `hasher` knows.
    pub(crate) fn new(hasher: &KeyHasher) -> Self {
        let half = |text: &[u8]| hasher.hash_bytes(text).bits().to_ne_bytes();
        let [high, low] = [half(b"ids of reservations"), half(b"and their other half")];
        let mut key = [0; 16];
        key[..8].copy_from_slice(&high);
        key[8..].copy_from_slice(&low);
        Self {
            shards: Default::default(),
            earliest: AtomicU64::new(u64::MAX),
            live: AtomicUsize::new(0),
            most: AtomicUsize::new(DEFAULT_MAX_HOLDS),
            committed: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            count: AtomicU64::new(random_id()),
            ids: KeyHasher::with_key(&key),
            #[cfg(target_os = "linux")]
            file: OnceLock::new(),
            #[cfg(target_os = "linux")]
            next_take: AtomicU64::new(0),
            #[cfg(target_os = "linux")]
            waiting: Mutex::default(),
        }
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
            bytes: shards.sum(),
            committed: self.committed.load(Relaxed),
            expired: self.expired.load(Relaxed),
        }
    }

    /// Returns the id of a new reservation: that of the bits which the caller chose, or one that nobody can guess.
    pub(crate) fn id(&self, chosen: Option<HoldId>) -> HoldId {
        let bits = chosen.map_or_else(
            || {
                let count = self.count.fetch_add(1, Relaxed);
                u128::from(self.ids.hash(&count).bits()) << 32 | u128::from(count as u32)
            },
            HoldId::bits,
        );
        self.marked(bits & CHOSEN)
    }

    /// Returns true if the id is that of a reservation of this engine, live or not.
    pub(crate) fn has_issued(&self, id: HoldId) -> bool {
        self.marked(id.bits() & CHOSEN) == id
    }

    fn marked(&self, bits: u128) -> HoldId {
        let mark = self.ids.hash(&bits).bits() as u32;
        HoldId::from_bits(u128::from(mark) << 96 | bits)
    }

    /// Locks the shard in which a reservation is, or will be.
    pub(crate) fn lock(&self, id: HoldId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(id.bits() >> 96) as usize % SHARDS])
    }

    /// Counts one more live reservation; returns an error if `most` are live.
    pub(crate) fn count_live(&self) -> Result<(), EngineError> {
        let most = self.most();
        if self.live.fetch_add(1, Relaxed) < most {
            return Ok(());
        }
        self.discount_live(1);
        Err(EngineError::Reservations { most })
    }

    /// Counts the end of live reservations.
    pub(crate) fn discount_live(&self, ended: usize) {
        self.live.fetch_sub(ended, Relaxed);
    }

    /// Stores a reservation in its shard, which the caller has locked.
    pub(crate) fn insert(&self, shard: &mut Shard, id: HoldId, mut hold: Hold, now: Nanos) {
        self.expires(hold.expires);
        let most = self.most().div_ceil(SHARDS);
        shard.forget(now, most, |parts| self.erase(parts));
        self.write(id, &mut hold.parts, hold.expires, false);
        shard.insert(id, hold);
    }

    /// Notes that a reservation of a locked shard expires at this instant. So [`expire`](Self::expire) finds the
    /// reservation there, or has set `earliest` before.
    fn expires(&self, at: Nanos) {
        if at.get() < self.earliest.load(Relaxed) {
            self.earliest.fetch_min(at.get(), Relaxed);
        }
    }

    /// Passes the parts of a reservation to `commit`, with true if it was committed before, and a function that marks
    /// it as committed in the file: a process that is killed then does not give back twice. Marks it
    /// as committed unless `commit` returns an error; no other commit or expiry comes in between.
    pub(crate) fn commit<R>(
        &self,
        id: HoldId,
        now: Nanos,
        commit: impl FnOnce(&[HeldPart], bool, &dyn Fn()) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        let mut shard = self.lock(id);
        let mark = |parts: &[HeldPart]| {
            if self.has_file() {
                let mut parts = HeldParts::from_slice(parts);
                self.write(id, &mut parts, now + REMEMBERED, true);
            }
        };
        let commit = |parts: &[HeldPart], repeated| commit(parts, repeated, &|| mark(parts));
        let (answer, repeated) = shard.commit(id, now, commit)?;
        if !repeated {
            self.discount_live(1);
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
        let mut shard = self.lock(id);
        let expires = shard.renew(id, now, |parts| {
            let expires = now + renew(parts)?;
            self.write(id, parts, expires, false);
            Some(expires)
        });
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
            let mut shard = lock(shard);
            let next = shard.expire(now, |parts| {
                self.erase(&parts);
                expired.push(parts);
            });
            self.expires(next.unwrap_or(Nanos::new(u64::MAX)));
        }
        self.discount_live(expired.len());
        self.expired.fetch_add(expired.len() as u64, Relaxed);
        expired
    }
}

/// Where there are no state files, there is no file of reservations either.
#[cfg(not(target_os = "linux"))]
impl Holds {
    pub(crate) fn has_file(&self) -> bool {
        false
    }

    fn write(&self, _id: HoldId, _parts: &mut [HeldPart], _expires: Nanos, _is_committed: bool) {}

    fn erase(&self, _parts: &[HeldPart]) {}
}

/// A reservation.
pub(crate) struct Hold {
    parts: HeldParts,
    /// The instant at which a live reservation expires, and a committed one is forgotten.
    expires: Nanos,
    is_live: bool,
}

impl Hold {
    pub(crate) fn new(parts: HeldParts, expires: Nanos) -> Self {
        Self {
            parts,
            expires,
            is_live: true,
        }
    }
}

/// The reservations whose ids have the same lowest bits in their mark.
#[derive(Default)]
pub(crate) struct Shard {
    /// Found by the marks of the ids, which are hashes already.
    holds: HashMap<HoldId, Hold, BuildHasherDefault<Identity>>,
    /// The instants at which live reservations expire, the earliest first. The entry of one that was committed or
    /// renewed stays until then, or until most entries are such.
    due: BinaryHeap<Reverse<(Nanos, HoldId)>>,
    /// The committed reservations, the oldest first, with the instant at which each is forgotten.
    committed: VecDeque<(Nanos, HoldId)>,
}

impl Shard {
    /// Returns a reservation that is live or committed.
    fn known(&mut self, id: HoldId, now: Nanos) -> Option<&mut Hold> {
        self.holds.get_mut(&id).filter(|hold| hold.expires > now)
    }

    /// Returns the parts of a reservation that is live or committed.
    pub(crate) fn parts(&mut self, id: HoldId, now: Nanos) -> Option<&[HeldPart]> {
        self.known(id, now).map(|hold| &hold.parts[..])
    }

    fn insert(&mut self, id: HoldId, hold: Hold) {
        let expires = hold.expires;
        self.holds.insert(id, hold);
        self.queue(id, expires);
    }

    fn queue(&mut self, id: HoldId, expires: Nanos) {
        self.due.push(Reverse((expires, id)));
        if self.due.len() > 2 * self.holds.len() + 16 {
            let live = self.holds.iter().filter(|(_, hold)| hold.is_live);
            self.due = live
                .map(|(id, hold)| Reverse((hold.expires, *id)))
                .collect();
        }
    }

    /// See [`Holds::commit`]. Also returns true if the reservation was committed before.
    fn commit<R>(
        &mut self,
        id: HoldId,
        now: Nanos,
        commit: impl FnOnce(&[HeldPart], bool) -> Result<R, EngineError>,
    ) -> Result<(R, bool), EngineError> {
        let hold = self
            .known(id, now)
            .ok_or(EngineError::UnknownReservation(id))?;
        let repeated = !hold.is_live;
        let answer = commit(&hold.parts, repeated)?;
        if !repeated {
            let until = now + REMEMBERED;
            hold.is_live = false;
            hold.expires = until;
            self.committed.push_back((until, id));
        }
        Ok((answer, repeated))
    }

    /// See [`Holds::renew`]. Returns the instant of the expiry; `None` if the reservation is not live, or `renew`
    /// has refused.
    fn renew(
        &mut self,
        id: HoldId,
        now: Nanos,
        renew: impl FnOnce(&mut [HeldPart]) -> Option<Nanos>,
    ) -> Option<Nanos> {
        let hold = self.known(id, now).filter(|hold| hold.is_live)?;
        let expires = renew(&mut hold.parts)?;
        hold.expires = expires;
        self.queue(id, expires);
        Some(expires)
    }

    /// Removes the reservations that have expired by `now`, and passes the parts of each to
    /// `expired`. Returns an instant before which none expires.
    fn expire(&mut self, now: Nanos, mut expired: impl FnMut(HeldParts)) -> Option<Nanos> {
        while let Some(Reverse((at, id))) = self.due.peek().copied() {
            if at > now {
                return Some(at);
            }
            self.due.pop();
            let is_due = |hold: &Hold| hold.is_live && hold.expires <= now;
            if self.holds.get(&id).is_some_and(is_due)
                && let Some(hold) = self.holds.remove(&id)
            {
                expired(hold.parts);
            }
        }
        None
    }

    /// Forgets committed reservations that need not be remembered any longer, or whose places are needed
    /// since there are `most` reservations.
    fn forget(&mut self, now: Nanos, most: usize, mut erase: impl FnMut(&[HeldPart])) {
        while let Some((until, id)) = self.committed.front().copied() {
            if until > now && self.holds.len() < most {
                break;
            }
            self.committed.pop_front();
            if let Some(hold) = self.holds.remove(&id) {
                erase(&hold.parts);
            }
        }
    }

    fn bytes(&self) -> usize {
        let spilled = self.holds.values().filter(|hold| hold.parts.spilled());
        let parts: usize = spilled.map(|hold| hold.parts.capacity()).sum();
        self.holds.capacity() * size_of::<(HoldId, Hold)>()
            + self.due.capacity() * size_of::<(Nanos, HoldId)>()
            + self.committed.capacity() * size_of::<(Nanos, HoldId)>()
            + parts * size_of::<HeldPart>()
    }
}

#[cfg(test)]
mod model;
