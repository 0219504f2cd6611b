//! A request as it is sent to Redis: owned, checked, its keys written.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Mode, Nanos, Policy, Rule, RuleId};

use crate::algorithm::micros;
use crate::rules::PreparedRule;

/// A charge with its key in Redis.
#[derive(Clone, Debug)]
pub(crate) struct KeyedCharge {
    pub(crate) rule: Arc<PreparedRule>,
    pub(crate) client: Vec<u8>,
    pub(crate) cost: Cost,
    /// Its position in the caller's request.
    pub(crate) place: usize,
    pub(crate) key: Vec<u8>,
    /// The key's slot in a Cluster, and the breaker's group of that.
    pub(crate) slot: u16,
    pub(crate) group: usize,
}

/// A request under one or several rules; equal charges are merged.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) charges: Vec<KeyedCharge>,
    /// The caller's own time, in whole microseconds.
    pub(crate) now: Option<Nanos>,
    pub(crate) mode: Mode,
}

impl KeyedCharge {
    /// Returns the charge under the number by which an engine knows its rule.
    pub(crate) fn as_charge(&self, rule: RuleId) -> Charge<'_> {
        Charge { rule, key: &self.client, cost: self.cost }
    }

    /// Returns the script's parameters for the rule and this cost.
    pub(crate) fn parameters(&self, linger: Duration) -> Vec<u8> {
        self.rule.parameters(self.cost, linger, 1.0)
    }
}

impl Request {
    pub(crate) fn rules(&self) -> Vec<(&Rule, Cost)> {
        self.charges.iter().map(|charge| (&charge.rule.rule, charge.cost)).collect()
    }

    /// Returns the charges with their positions, as [`restore_places`] takes them.
    pub(crate) fn places(&self) -> Vec<(usize, Charge<'_>)> {
        self.charges.iter().map(|charge| (charge.place, charge.as_charge(charge.rule.id))).collect()
    }

    /// Returns true if a charge is stored even when the request is denied.
    pub(crate) fn is_strict(&self, place: usize) -> bool {
        self.mode == Mode::Charge
            || self.charges[place].rule.rule.limit().policy() == Policy::Strict
    }

    /// Returns the breaker's group and the slot of charges that share a slot.
    pub(crate) fn group_and_slot(&self, places: &[usize]) -> (usize, u16) {
        let first = places.first().and_then(|place| self.charges.get(*place));
        first.map_or((0, 0), |charge| (charge.group, charge.slot))
    }

    /// Returns true if any of these charges can be stored.
    pub(crate) fn may_store(&self, places: &[usize]) -> bool {
        self.mode != Mode::Peek && places.iter().any(|place| !self.charges[*place].cost.is_zero())
    }

    /// Returns the charges of each slot, by their positions in `charges`; without a Cluster all are in one slot.
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

/// Returns the caller's time as scripts read it; below zero means Redis's own.
pub(crate) fn time_argument(now: Option<Nanos>) -> [u8; 8] {
    now.map_or(-1.0, micros).to_le_bytes()
}
