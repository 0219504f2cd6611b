//! Charges of one client that were made here and that Redis lacks.
//!
//! They are kept as the state of a client that was charged nothing else, by the pure functions. States of recent-average
//! and of windows add up. A bucket's follow from two figures, the sum of what was charged and the time at which a pool
//! would be full that had seen nothing else: `full = max(full + sum, alone)`, exactly as if all had been charged in one
//! place. An exponential average does not add, and is never pending.

use earrrl::{Cost, Limit, Mode, Nanos, State};

use crate::algorithm::{self, Adjustment, micros};

/// The most adjustments of one client in one call; of a log that has more, neighbours are merged.
const MAX_ADJUSTMENTS: usize = 256;
/// The most take-backs of one client in one call.
pub(crate) const MAX_TAKE_BACKS: usize = 256;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pending {
    /// The time of the first charge.
    since: Nanos,
    pub(crate) sum: Cost,
    /// The state of a client that was charged nothing else.
    pub(crate) state: Option<State>,
}

/// Changes of a client's record as they are sent: they change no more, and Redis makes them once however often they are
/// sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contribution {
    pub(crate) number: u64,
    pub(crate) pending: Pending,
    /// Charges that Redis has stored and that are taken back, with times of Redis's clock.
    pub(crate) take_backs: Vec<Adjustment>,
}

impl Contribution {
    /// Returns the changes of the client's record at `now`, by Redis's clock.
    pub(crate) fn adjustments(&self, limit: &Limit, now: Nanos) -> Vec<Adjustment> {
        let mut all = self.pending.adjustments(limit, now);
        all.extend(&self.take_backs);
        all
    }
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.state.is_none()
    }

    pub(crate) fn add(&mut self, limit: &Limit, now: Nanos, cost: Cost) {
        if self.state.is_none() {
            self.since = now;
        }
        limit.admit(&mut self.state, now, cost, Mode::Charge);
        self.sum = self.sum + cost;
    }

    /// Takes one charge out again and returns the time it is counted at; returns `None` if it is not among them. Without
    /// `charged_at` it is the last one.
    pub(crate) fn take_back(
        &mut self,
        limit: &Limit,
        cost: Cost,
        charged_at: Option<Nanos>,
        now: Nanos,
    ) -> Option<Nanos> {
        let is_earlier = charged_at.is_some_and(|at| at < self.since);
        if is_earlier || self.sum < cost || self.state.is_none() {
            return None;
        }
        let at = charged_at.or_else(|| limit.last_charge(self.state.as_ref())).unwrap_or(now);
        self.state = limit.refund(self.state.take(), now, at, cost);
        let left = self.sum.billionths().saturating_sub(cost.billionths());
        self.sum = Cost::from_billionths(left);
        if self.state.is_none() {
            *self = Self::default();
        }
        Some(at)
    }

    /// Changes the state by a function, such as a conversion or a move to another clock.
    pub(crate) fn map(&mut self, change: impl FnOnce(State) -> Option<State>) {
        self.state = self.state.take().and_then(change);
    }

    /// Adds these charges to a state that lacks them.
    pub(crate) fn added_to(&self, limit: &Limit, state: Option<State>) -> Option<State> {
        match (state, &self.state) {
            (Some(state), Some(pending)) => {
                Some(algorithm::of(limit).merged(state, pending, self.sum))
            }
            (None, pending) => pending.clone(),
            (state, None) => state,
        }
    }

    /// Returns what is to be added to the client's record at `now`, by Redis's clock.
    fn adjustments(&self, limit: &Limit, now: Nanos) -> Vec<Adjustment> {
        let Some(state) = &self.state else { return Vec::new() };
        let now = Nanos::new(now.get() / 1000 * 1000);
        let all = algorithm::of(limit).adjustments(state, self.sum, now);
        let mut all: Vec<_> = all.into_iter().filter(|one| !one.cost.is_zero()).collect();
        for adjustment in &mut all {
            if adjustment.when < 0.0 {
                adjustment.when = micros(now);
            }
        }
        let together = all.len().div_ceil(MAX_ADJUSTMENTS).max(1);
        let merge = |some: &[Adjustment]| {
            let (last, before) = some.split_last()?;
            let cost = before.iter().fold(last.cost, |sum, one| sum + one.cost);
            Some(Adjustment { cost, ..*last })
        };
        all.chunks(together).filter_map(merge).collect()
    }
}
