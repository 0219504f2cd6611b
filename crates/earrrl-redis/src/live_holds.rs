//! The reservations that this node has made and that are live, as far as it knows. They are only
//! counted here, so that clients cannot fill Redis.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use earrrl::{DEFAULT_MAX_HOLDS, EngineError, HoldId, Nanos};

/// The live reservations of this node, a bounded number.
#[derive(Debug)]
pub(crate) struct LiveHolds {
    most: AtomicUsize,
    live: Mutex<ByExpiry>,
}

/// Reservations, also in the order in which they expire.
#[derive(Debug, Default)]
struct ByExpiry {
    expiries: HashMap<HoldId, Nanos>,
    due: BTreeSet<(Nanos, HoldId)>,
}

impl ByExpiry {
    fn remove(&mut self, id: HoldId) -> bool {
        let expires = self.expiries.remove(&id);
        expires.is_some_and(|expires| self.due.remove(&(expires, id)))
    }

    fn insert(&mut self, id: HoldId, expires: Nanos) {
        self.expiries.insert(id, expires);
        self.due.insert((expires, id));
    }
}

impl Default for LiveHolds {
    fn default() -> Self {
        Self { most: AtomicUsize::new(DEFAULT_MAX_HOLDS), live: Mutex::default() }
    }
}

impl LiveHolds {
    fn lock(&self) -> MutexGuard<'_, ByExpiry> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// Counts a reservation. Returns an error if as many as the bound are live.
    pub(crate) fn take(&self, id: HoldId, now: Nanos, expires: Nanos) -> Result<(), EngineError> {
        let (mut live, most) = (self.lock(), self.most.load(Relaxed));
        while let Some(&(expired, id)) = live.due.first().filter(|(expires, _)| *expires <= now) {
            live.due.remove(&(expired, id));
            live.expiries.remove(&id);
        }
        if live.due.len() >= most {
            return Err(EngineError::Reservations { most });
        }
        live.insert(id, expires);
        Ok(())
    }

    /// Counts the end of a reservation, if this node has made it.
    pub(crate) fn end(&self, id: HoldId) {
        self.lock().remove(id);
    }

    /// Notes that a reservation of this node expires at another time.
    pub(crate) fn renew(&self, id: HoldId, expires: Nanos) {
        let mut live = self.lock();
        if live.remove(id) {
            live.insert(id, expires);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_bounded_until_reservations_end_or_expire() {
        let live = LiveHolds::default();
        live.set_most(2);
        let take =
            |id, now| live.take(HoldId::from_bits(id), Nanos::new(now), Nanos::new(now + 10));
        assert!(take(1, 0).is_ok() && take(2, 1).is_ok());
        assert_eq!(take(3, 9), Err(EngineError::Reservations { most: 2 }));
        live.end(HoldId::from_bits(2));
        live.end(HoldId::from_bits(2));
        assert!(take(3, 9).is_ok());
        live.renew(HoldId::from_bits(1), Nanos::new(50));
        live.renew(HoldId::from_bits(7), Nanos::new(50));
        assert!(take(4, 18).is_err());
        assert!(take(4, 19).is_ok() && take(5, 49).is_ok() && take(6, 50).is_ok());
        let live = live.lock();
        assert_eq!(live.expiries.len(), live.due.len());
    }
}
