//! A request as it is sent to Redis: with owned data, checked, and with its keys.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, HoldId, Mode, Nanos, Policy};

use crate::algorithm::{Packed, micros};
use crate::batches::UnitsWanted;
use crate::rules::PreparedRule;

/// A charge with its key in Redis.
#[derive(Clone, Debug)]
pub(crate) struct KeyedCharge {
    pub(crate) rule: Arc<PreparedRule>,
    pub(crate) client: Vec<u8>,
    pub(crate) cost: Cost,
    /// The charge's position in the caller's request.
    pub(crate) place: usize,
    pub(crate) key: Vec<u8>,
    /// The key's slot in a Cluster. The field below is the slot's breaker group.
    pub(crate) slot: u16,
    pub(crate) group: usize,
}

/// A request under one or several rules. Charges with the same rule and key are merged.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) charges: Vec<KeyedCharge>,
    /// The time that the caller gave, in whole microseconds.
    pub(crate) now: Option<Nanos>,
    pub(crate) mode: Mode,
    /// The time for which an answer of Redis matters.
    pub(crate) patience: Duration,
    /// The reservation to store if the request is allowed.
    pub(crate) hold: Option<HoldRequest>,
    /// The units that the server asks for, if the rule is near.
    pub(crate) units: Option<UnitsWanted>,
}

/// The time for which a call matters that brings units for later requests, and so the longest round trip to a Redis
/// that near rules use.
pub(crate) const UNITS_PATIENCE: Duration = Duration::from_secs(1);

/// A reservation that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldRequest {
    pub(crate) id: HoldId,
    pub(crate) ttl: Duration,
    /// True if the caller chose the id, and so can repeat the request.
    pub(crate) is_chosen: bool,
}

impl KeyedCharge {
    pub(crate) fn as_charge(&self) -> Charge<'_> {
        Charge {
            rule: self.rule.id,
            key: &self.client,
            cost: self.cost,
        }
    }
}

impl Request {
    /// Returns the charges with their positions in the caller's request, for [`restore_places`].
    pub(crate) fn places(&self) -> Vec<(usize, Charge<'_>)> {
        self.charges
            .iter()
            .map(|charge| (charge.place, charge.as_charge()))
            .collect()
    }

    /// Returns true if a charge is stored even when the request is denied.
    pub(crate) fn is_strict(&self, place: usize) -> bool {
        self.mode == Mode::Charge
            || self.charges[place].rule.rule.limit().policy() == Policy::Strict
    }

    /// Returns true if any of these charges can be stored.
    pub(crate) fn may_store(&self, places: &[usize]) -> bool {
        self.mode != Mode::Peek
            && places
                .iter()
                .any(|place| !self.charges[*place].cost.is_zero())
    }

    /// Returns the charges of each slot, by their positions in `charges`. Without a Cluster, all
    /// are in one slot.
    pub(crate) fn by_slot(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (place, charge) in self.charges.iter().enumerate() {
            let same = |group: &&mut Vec<usize>| self.charges[group[0]].slot == charge.slot;
            match groups.iter_mut().find(same) {
                Some(group) => group.push(place),
                None => groups.push(vec![place]),
            }
        }
        groups
    }
}

/// Returns the beginning of a script's argument, the caller's time; a number below zero stands for Redis's own
/// time.
pub(crate) fn time_argument(now: Option<Nanos>) -> Packed {
    Packed(now.map_or(-1.0, micros).to_le_bytes().to_vec())
}
