//! Reservations whose limit has changed since: a commit corrects what the client's state still has of the
//! estimate. Its other parts were refilled or forgotten under the earlier limit.

use crate::algorithm::{Limit, Mode};
use crate::clock::Nanos;
use crate::cost::Cost;
use crate::held::Held;

/// Returns true if a state has the times of its requests, by which a commit finds what is left.
fn has_times(limit: &Limit) -> bool {
    matches!(
        limit,
        Limit::SlidingLog(_) | Limit::SlidingWindow(_) | Limit::Concurrent(_)
    )
}

impl Held {
    /// Returns the reservation and its actual cost as they are to be corrected at `now` under `new`, if
    /// the estimate was charged under `old` and the client's state was converted at an unknown instant
    /// since.
    #[doc(hidden)]
    #[must_use]
    pub fn under(&self, old: &Limit, new: &Limit, now: Nanos, actual: Cost) -> (Self, Cost) {
        if old == new || has_times(new) {
            return (*self, actual);
        }
        // The later the conversion, the less is left under some pairs of limits and the more under others.
        // So the least is left if it came at either end of the time since the reservation.
        let left = |at| self.left(&[(*old, at)], new, now);
        self.corrected(left(self.at).min(left(now)), now, actual)
    }

    /// Returns the reservation and its actual cost if only a part of the estimate is left in the client's
    /// state. That part is corrected in the same proportion, and a cost above the estimate is charged at
    /// `now`.
    fn corrected(&self, left: Cost, now: Nanos, actual: Cost) -> (Self, Cost) {
        if actual > self.cost {
            return (
                Self {
                    at: now,
                    full_at: now,
                    ..*self
                },
                actual,
            );
        }
        let share = actual.as_f64() / self.cost.as_f64();
        let kept = (left.billionths() as f64 * share).ceil() as u128;
        let kept = Cost::from_billionths(kept).min(left);
        (
            Self {
                at: now,
                cost: left,
                full_at: now,
            },
            kept,
        )
    }

    /// Returns what a state with no other charge still has of the estimate at `now`. An average that was
    /// converted to a longer period has more than the estimate, since it keeps its rate.
    fn left(&self, earlier: &[(Limit, Nanos)], limit: &Limit, now: Nanos) -> Cost {
        let Some((first, _)) = earlier.first() else {
            return self.cost;
        };
        let mut state = first.decide(None, self.at, self.cost, Mode::Charge).0;
        let next = earlier.iter().skip(1).map(|(next, _)| next).chain([limit]);
        for ((old, until), new) in earlier.iter().zip(next) {
            let at = (*until).max(self.at);
            state = state.and_then(|state| new.carried(old, state, at));
        }
        let Some(state) = state else {
            return Cost::ZERO;
        };
        let figures = limit.decide(Some(state), now, Cost::ZERO, Mode::Peek).1;
        let (quota, seconds) = limit.allowance();
        let used = figures.rate.map_or_else(
            || (quota * figures.reset_after.as_secs_f64() / seconds).min(self.cost.as_f64()),
            |rate| rate * seconds,
        );
        Cost::from_billionths((used * 1e9).round() as u128)
    }
}
