//! Two-window sliding counter. A record holds the counts of a window and of the window before it.

use std::time::Duration;

use earrrl::algorithm::{SlidingCounter, State, sliding_counter::WindowCounts};
use earrrl::{Cost, Nanos, RuleError};

use super::fields::{Fields, Packed, moved_slot};
use super::fixed_window::{check_window, start, window_parameters};
use super::{Adjustment, OnRedis, Terms};

impl OnRedis for SlidingCounter {
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
        let current = record.number()? as u128;
        let previous = record.number()? as u128;
        Some(State::SlidingCounter(WindowCounts {
            window,
            current,
            previous,
        }))
    }

    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State {
        let State::SlidingCounter(state) = state else {
            return state;
        };
        let window = moved_slot(
            state.window,
            from.get() / self.window_nanos(),
            to.get() / self.window_nanos(),
        );
        State::SlidingCounter(WindowCounts { window, ..state })
    }

    fn adjustments(&self, counted: &State, _sum: Cost, _now: Nanos) -> Vec<Adjustment> {
        let State::SlidingCounter(state) = counted else {
            return Vec::new();
        };
        let earlier = start(state.window.saturating_sub(1), self.window_nanos());
        let present = start(state.window, self.window_nanos());
        vec![
            Adjustment::add(earlier, state.previous),
            Adjustment::add(present, state.current),
        ]
    }
}
