//! Fixed window. A record holds a window's index since 1970 and its count.

use std::time::Duration;

use earrrl::algorithm::{FixedWindow, State, fixed_window::Count};
use earrrl::{Cost, Nanos, RuleError};

use super::fields::{Fields, Packed, moved_slot, whole_micros};
use super::{Adjustment, OnRedis, Terms};

impl OnRedis for FixedWindow {
    fn meaning(&self) -> [u64; 4] {
        [self.window_nanos(), 0, 0, 0]
    }

    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        check_window(self.window_nanos())
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        window_parameters(self.window_nanos(), self.quota(), terms, packed);
    }

    fn decode(&self, mut record: Fields<'_>, _now: Nanos) -> Option<State> {
        let window = record.number()? as u64;
        let count = record.number()? as u128;
        Some(State::FixedWindow(Count { window, count }))
    }

    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State {
        let State::FixedWindow(state) = state else {
            return state;
        };
        let window = moved_slot(
            state.window,
            from.get() / self.window_nanos(),
            to.get() / self.window_nanos(),
        );
        State::FixedWindow(Count { window, ..state })
    }

    fn adjustments(&self, counted: &State, _sum: Cost, _now: Nanos) -> Vec<Adjustment> {
        let State::FixedWindow(state) = counted else {
            return Vec::new();
        };
        vec![Adjustment::add(
            start(state.window, self.window_nanos()),
            state.count,
        )]
    }
}

/// Returns an error if a window is not a whole number of microseconds.
pub(super) fn check_window(window: u64) -> Result<(), RuleError> {
    if window.is_multiple_of(1000) {
        return Ok(());
    }
    let problem = format!("{window}ns is not whole microseconds, the resolution of Redis's clock");
    Err(RuleError::new(problem).of("window"))
}

/// Writes the parameters that the script of a limit with one window reads.
pub(super) fn window_parameters(window: u64, quota: Cost, terms: &Terms<'_>, packed: &mut Packed) {
    let quota = quota.billionths() as f64;
    packed.numbers(&[
        whole_micros(window),
        quota,
        terms.billionths(),
        terms.linger_ms(),
    ]);
}

/// Returns the microsecond at which a window begins.
pub(super) fn start(index: u64, window: u64) -> f64 {
    (u128::from(index) * u128::from(window) / 1000) as f64
}
