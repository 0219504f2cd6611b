//! The reservations that this node has made and that are live, as far as it knows. They are counted, so
//! that clients cannot fill Redis, and their requests are kept, so that a commit need not read them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use earrrl::internal::{DEFAULT_MAX_HOLDS, share_of_client};
use earrrl::{EngineError, HoldId, Nanos};

use crate::request::Request;

/// The live reservations of this node, a bounded number, also in the order in which they expire.
#[derive(Debug)]
pub(crate) struct LiveHolds {
    /// The most reservations that may be live.
    pub(crate) most: usize,
    live: HashMap<HoldId, (Nanos, Arc<Request>)>,
    due: BTreeSet<(Nanos, HoldId)>,
    /// The number of each client's reservations, by the key of its record.
    of_clients: HashMap<Vec<u8>, usize>,
}

impl Default for LiveHolds {
    fn default() -> Self {
        Self {
            most: DEFAULT_MAX_HOLDS,
            live: HashMap::new(),
            due: BTreeSet::new(),
            of_clients: HashMap::new(),
        }
    }
}

impl LiveHolds {
    /// Counts the end of a reservation, if this node has made it.
    pub(crate) fn remove(&mut self, id: HoldId) -> Option<Arc<Request>> {
        let (expires, request) = self.live.remove(&id)?;
        self.due.remove(&(expires, id));
        for charge in &request.charges {
            let count = self.of_clients.entry(charge.key.clone()).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_clients.remove(&charge.key);
            }
        }
        Some(request)
    }

    fn insert(&mut self, id: HoldId, expires: Nanos, request: Arc<Request>) {
        for charge in &request.charges {
            *self.of_clients.entry(charge.key.clone()).or_default() += 1;
        }
        self.live.insert(id, (expires, request));
        self.due.insert((expires, id));
    }

    /// Counts the reservation of a request. Returns the place of a charge whose client has its share already, so
    /// that nothing is counted; an error if as many as the bound are live.
    pub(crate) fn take(
        &mut self,
        id: HoldId,
        request: Arc<Request>,
        now: Nanos,
        expires: Nanos,
    ) -> Result<Option<usize>, EngineError> {
        let most = self.most;
        while let Some(&(_, id)) = self.due.first().filter(|(expires, _)| *expires <= now) {
            self.remove(id);
        }
        // The script finds out which of two calls with one id made the reservation.
        self.remove(id);
        if self.due.len() >= most {
            return Err(EngineError::Reservations { most });
        }
        let share = share_of_client(most);
        let of_client = |key: &Vec<u8>| self.of_clients.get(key).is_some_and(|live| *live >= share);
        if let Some(charge) = request.charges.iter().find(|charge| of_client(&charge.key)) {
            return Ok(Some(charge.place));
        }
        self.insert(id, expires, request);
        Ok(None)
    }

    /// Returns the request of a live reservation that this node has made.
    pub(crate) fn request(&self, id: HoldId) -> Option<Arc<Request>> {
        self.live.get(&id).map(|(_, request)| request.clone())
    }

    /// Notes that a reservation of this node expires at another time.
    pub(crate) fn renew(&mut self, id: HoldId, expires: Nanos) {
        if let Some(request) = self.remove(id) {
            self.insert(id, expires, request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use earrrl::Mode;

    use super::*;

    #[test]
    fn the_number_is_bounded_until_reservations_end_or_expire() {
        let mut live = LiveHolds {
            most: 2,
            ..LiveHolds::default()
        };
        let charges = Vec::new();
        let mode = Mode::Check;
        let request = Arc::new(Request {
            charges,
            now: None,
            mode,
            patience: Duration::ZERO,
            hold: None,
            units: None,
        });
        let take = |live: &mut LiveHolds, id, now| {
            let id = HoldId::from_bits(id);
            let expires = Nanos::new(now + 10);
            live.take(id, request.clone(), Nanos::new(now), expires)
        };
        assert!(take(&mut live, 1, 0).is_ok() && take(&mut live, 2, 1).is_ok());
        assert_eq!(
            take(&mut live, 3, 9),
            Err(EngineError::Reservations { most: 2 })
        );
        assert!(live.request(HoldId::from_bits(2)).is_some());
        live.remove(HoldId::from_bits(2));
        live.remove(HoldId::from_bits(2));
        assert!(live.request(HoldId::from_bits(2)).is_none());
        assert!(take(&mut live, 3, 9).is_ok());
        live.renew(HoldId::from_bits(1), Nanos::new(50));
        live.renew(HoldId::from_bits(7), Nanos::new(50));
        assert!(take(&mut live, 4, 18).is_err());
        assert!(
            take(&mut live, 4, 19).is_ok()
                && take(&mut live, 5, 49).is_ok()
                && take(&mut live, 6, 50).is_ok()
        );
        assert_eq!(live.live.len(), live.due.len());
    }
}
