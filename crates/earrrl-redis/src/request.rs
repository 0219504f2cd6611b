//! A request as it goes to Redis: owned, checked, its keys written.

use std::sync::Arc;
use std::time::Duration;

use earrrl::{Charge, Cost, Mode, Nanos, Policy, Rule, RuleId};

use crate::algorithm::micros;
use crate::rules::PreparedRule;

/// One charge.
#[derive(Clone, Debug)]
pub(crate) struct AskedCharge {
    pub(crate) rule: Arc<PreparedRule>,
    pub(crate) client: Vec<u8>,
    pub(crate) cost: Cost,
    /// Its place in the caller's request.
    pub(crate) place: usize,
    pub(crate) key: Vec<u8>,
    /// Where Cluster keeps it, and the breaker of that.
    pub(crate) slot: u16,
    pub(crate) group: usize,
}

/// A request under one or several rules, equal ones merged.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) asked: Vec<AskedCharge>,
    /// The caller's own time, in whole microseconds.
    pub(crate) now: Option<Nanos>,
    pub(crate) mode: Mode,
}

impl AskedCharge {
    /// The charge under the number that an engine knows its rule by.
    pub(crate) fn charge(&self, rule: RuleId) -> Charge<'_> {
        Charge { rule, key: &self.client, cost: self.cost }
    }

    /// The parameters of the rule and of this cost.
    pub(crate) fn parameters(&self, linger: Duration) -> Vec<u8> {
        self.rule.parameters(self.cost, linger, 1.0)
    }
}

impl Request {
    pub(crate) fn rules(&self) -> Vec<(&Rule, Cost)> {
        self.asked.iter().map(|asked| (&asked.rule.rule, asked.cost)).collect()
    }

    /// The charges with their places, as [`restore_places`] takes them.
    pub(crate) fn places(&self) -> Vec<(usize, Charge<'_>)> {
        self.asked.iter().map(|asked| (asked.place, asked.charge(asked.rule.id))).collect()
    }

    /// Whether a charge is stored even where the request is denied.
    pub(crate) fn is_strict(&self, place: usize) -> bool {
        self.mode == Mode::Charge || self.asked[place].rule.rule.limit().policy() == Policy::Strict
    }

    /// The breaker's group and the slot of charges that are all in one.
    pub(crate) fn group_and_slot(&self, places: &[usize]) -> (usize, u16) {
        let first = places.first().and_then(|place| self.asked.get(*place));
        first.map_or((0, 0), |asked| (asked.group, asked.slot))
    }

    /// Whether any of these charges can be stored.
    pub(crate) fn may_store(&self, places: &[usize]) -> bool {
        self.mode != Mode::Peek && places.iter().any(|place| !self.asked[*place].cost.is_zero())
    }

    /// The charges of each slot, by their places in `asked`; all in one where there are no slots.
    pub(crate) fn by_slot(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (place, asked) in self.asked.iter().enumerate() {
            let same = |group: &&mut Vec<usize>| self.asked[group[0]].slot == asked.slot;
            match groups.iter_mut().find(same) {
                Some(group) => group.push(place),
                None => groups.push(vec![place]),
            }
        }
        groups
    }
}

/// The caller's time for a script: below zero asks for Redis's own.
pub(crate) fn time_argument(now: Option<Nanos>) -> [u8; 8] {
    now.map_or(-1.0, micros).to_le_bytes()
}
