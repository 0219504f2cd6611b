//! Sliding window log. A record holds every request of the last window; the slots of its tally are
//! microseconds.

use std::time::Duration;

use earrrl::algorithm::{Moment, Tally};
use earrrl::{Cost, Nanos, RuleError, SlidingLog, State};

use super::fields::{Fields, Packed, micros, moved_slot, whole_micros};
use super::fixed_window::check_window;
use super::{Adjustment, Answers, MAX_EXACT_UNITS, OnRedis, Terms, tally};

/// The nanoseconds per slot.
const SLOT: u64 = 1000;

impl OnRedis for SlidingLog {
    /// Returns no parameters, since entries mean the same under every window.
    fn meaning(&self) -> [u64; 4] {
        [0; 4]
    }

    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        check_window(self.window_nanos())
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let (window, quota) = (whole_micros(self.window_nanos()), self.quota().billionths() as f64);
        let (exact, grain) = (self.exact_entries() as f64, (self.grain_nanos() / SLOT) as f64);
        let step = (window / 4.0).ceil();
        let lives = (window + step) / 1e3 + terms.linger_ms();
        let cost = terms.billionths();
        packed.numbers(&[window, quota, cost, exact, grain, step, lives.ceil()]);
    }

    fn has_len(&self, len: usize) -> bool {
        len >= tally::HEADER
    }

    fn decode(&self, record: Fields<'_>, _now: Nanos) -> Option<State> {
        tally::decode(record, SLOT).map(State::SlidingLog)
    }

    fn encode(&self, state: &State, _now: Nanos, packed: &mut Packed) -> Option<()> {
        let State::SlidingLog(tally) = state else { return None };
        tally::encode(tally, SLOT, packed);
        Some(())
    }

    fn answers(&self) -> Answers {
        Answers::After
    }

    fn summary(&self, summary: Fields<'_>) -> Option<State> {
        tally::decode_summary(summary, SLOT).map(State::SlidingLog)
    }

    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State {
        let State::SlidingLog(tally) = state else { return state };
        let entry = |(slot, cost)| (moved_slot(slot, from.get(), to.get()), cost);
        State::SlidingLog(Tally::from_entries(tally.entries().map(entry)))
    }

    fn adds(&self) -> bool {
        true
    }

    fn max_exact_units(&self) -> Option<u64> {
        Some(MAX_EXACT_UNITS)
    }

    fn moment<'a>(&self, _state: &'a mut State) -> Option<&'a mut Moment> {
        None
    }

    fn adjustments(&self, counted: &State, _sum: Cost, _now: Nanos) -> Vec<Adjustment> {
        let State::SlidingLog(tally) = counted else { return Vec::new() };
        let add = |(slot, cost)| Adjustment::add(micros(Nanos::new(slot)), cost);
        tally.entries().map(add).collect()
    }

    fn merged(&self, state: State, counted: &State, _sum: Cost) -> State {
        match (state, counted) {
            (State::SlidingLog(a), State::SlidingLog(b)) => State::SlidingLog(tally::merged(&a, b)),
            (state, _) => state,
        }
    }
}
