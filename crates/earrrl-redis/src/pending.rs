//! The charges of one client that this node made and that Redis lacks.
//!
//! They are kept as the state of a client that has only these charges, computed by the pure
//! functions. States of recent-average and of windows can be added up. Those of a bucket follow
//! from two figures, the sum of the charges and the time at which a pool with only these charges
//! would be full: `full = max(full + sum, alone)`. The result is exactly as if all charges had been
//! made in one place, as long as Redis has the record. A record expires when its pool is full. So while
//! Redis cannot be reached, this node also notes when it knows the pool to be full, for the case that the
//! record is gone. An exponential average cannot be added up, and is never pending.

use earrrl::algorithm::State;
use earrrl::{Cost, Limit, Mode, Nanos};

use crate::algorithm::{self, Adjustment, micros};

/// The most adjustments of one client in one call. Neighbouring entries of a longer log are merged.
const MAX_ADJUSTMENTS: usize = 256;
/// The most charges of one client that one call takes back.
pub(crate) const MAX_TAKE_BACKS: usize = 256;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pending {
    /// The time of the first charge.
    since: Nanos,
    pub(crate) sum: Cost,
    /// The state of a client that has only these charges.
    pub(crate) state: Option<State>,
    /// The time at which the client is as good as new, according to all that this node knew when it
    /// decided the last of these charges without Redis; `None` if that is not certain.
    new_at: Option<Nanos>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.state.is_none()
    }

    /// Adds a charge. `new_at` is the instant at which the client is as good as new, according to this node. This
    /// node may have counted a request twice when an outage began, if its answer was lost and a later answer already
    /// contained it. So `new_at` is used only if at least as much time has passed since the first of the charges
    /// as is left until then.
    pub(crate) fn add(&mut self, limit: &Limit, now: Nanos, cost: Cost, new_at: Nanos) {
        if self.state.is_none() {
            self.since = now;
        }
        limit.admit(&mut self.state, now, cost, Mode::Charge);
        self.sum = self.sum + cost;
        self.new_at = (new_at.since(now) <= now.since(self.since)).then_some(new_at);
    }

    /// Takes back one charge. Returns false if it is not pending. If `charged_at` is `None`, the latest charge is taken
    /// back.
    pub(crate) fn take_back(
        &mut self,
        limit: &Limit,
        cost: Cost,
        charged_at: Option<Nanos>,
        now: Nanos,
    ) -> bool {
        let is_earlier = charged_at.is_some_and(|at| at < self.since);
        if is_earlier || self.sum < cost || self.state.is_none() {
            return false;
        }
        let at = charged_at
            .or_else(|| limit.last_charge(self.state.as_ref()))
            .unwrap_or(now);
        self.state = limit.refund(self.state.take(), now, at, cost);
        self.new_at = None;
        let left = self.sum.billionths().saturating_sub(cost.billionths());
        self.sum = Cost::from_billionths(left);
        if self.state.is_none() {
            *self = Self::default();
        }
        true
    }

    /// Converts these charges from one clock to another. The present is `from` by the old clock and `to`
    /// by the new one.
    pub(crate) fn move_clock(&mut self, limit: &Limit, from: Nanos, to: Nanos) {
        self.new_at = self.new_at.map(|at| to + at.since(from));
        let state = self.state.take();
        self.state = state.map(|state| algorithm::moved(limit, state, from, to));
    }

    /// Returns the adjustments for the client's record at `now`, by Redis's clock.
    pub(crate) fn adjustments(&self, limit: &Limit, now: Nanos) -> Vec<Adjustment> {
        let Some(state) = &self.state else {
            return Vec::new();
        };
        let now = Nanos::new(now.get() / 1000 * 1000);
        let all = algorithm::adjustments(limit, state, self.sum, now);
        let mut all: Vec<_> = all.into_iter().filter(|one| !one.cost.is_zero()).collect();
        for adjustment in &mut all {
            adjustment.new_at = self.new_at.map_or(0.0, micros);
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
