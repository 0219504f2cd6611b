//! Hybrid sliding window. A record holds the counts of sub-windows; the slots of its tally are the
//! sub-windows' indices since 1970.

use std::time::Duration;

use earrrl::algorithm::sliding_window::Edge;
use earrrl::algorithm::{Moment, Tally};
use earrrl::{Cost, Nanos, RuleError, SlidingWindow, State};

use super::fields::{Fields, Packed, moved_slot, whole_micros};
use super::fixed_window::check_window;
use super::{Adjustment, Answers, MAX_EXACT_UNITS, OnRedis, Terms, tally};

const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

impl OnRedis for SlidingWindow {
    fn meaning(&self) -> [u64; 4] {
        [self.window_nanos(), self.sub_windows(), 0, 0]
    }

    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        let shares = self.sub_windows() / common_divisor(self);
        if whole_micros(self.window_nanos()) * shares as f64 >= MOST_EXACT {
            let problem = format!(
                "{} parts of {}us cannot be stored exactly on Redis; expected a divisor of the window",
                self.sub_windows(),
                self.window_nanos() / 1000
            );
            return Err(RuleError::new(problem).of("sub-windows"));
        }
        check_window(self.window_nanos())
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let (window, quota) = (whole_micros(self.window_nanos()), self.quota().billionths() as f64);
        let (parts, common) = (self.sub_windows(), common_divisor(self));
        let (share, width) = (parts / common, self.window_nanos() / 1000 / common);
        let lifetime = (parts + u64::from(self.edge() == Edge::Harsh)) as f64;
        let lives = window / 1e3 * (lifetime / parts as f64) + terms.linger_ms();
        packed.numbers(&[window, parts as f64, share as f64, width as f64, lifetime]);
        packed.numbers(&[quota, terms.billionths(), lives.ceil()]);
    }

    fn has_len(&self, len: usize) -> bool {
        len >= tally::HEADER
    }

    fn decode(&self, record: Fields<'_>, _now: Nanos) -> Option<State> {
        tally::decode(record, 1).map(State::SlidingWindow)
    }

    fn encode(&self, state: &State, _now: Nanos, packed: &mut Packed) -> Option<()> {
        let State::SlidingWindow(tally) = state else { return None };
        tally::encode(tally, 1, packed);
        Some(())
    }

    fn answers(&self) -> Answers {
        Answers::After
    }

    fn summary(&self, summary: Fields<'_>) -> Option<State> {
        tally::decode_summary(summary, 1).map(State::SlidingWindow)
    }

    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State {
        let State::SlidingWindow(tally) = state else { return state };
        let (from, to) = (slot_of(self, from), slot_of(self, to));
        let entry = |(slot, cost)| (moved_slot(slot, from, to), cost);
        State::SlidingWindow(Tally::from_entries(tally.entries().map(entry)))
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
        let State::SlidingWindow(tally) = counted else { return Vec::new() };
        let (window, parts) = (u128::from(self.window_nanos()), u128::from(self.sub_windows()));
        let begins = |slot: u64| (u128::from(slot) * window).div_ceil(parts * 1000) as f64;
        tally.entries().map(|(slot, cost)| Adjustment::add(begins(slot), cost)).collect()
    }

    fn merged(&self, state: State, counted: &State, _sum: Cost) -> State {
        match (state, counted) {
            (State::SlidingWindow(a), State::SlidingWindow(b)) => {
                State::SlidingWindow(tally::merged(&a, b))
            }
            (state, _) => state,
        }
    }
}

/// Returns the greatest common divisor of the window in microseconds and the number of sub-windows.
fn common_divisor(limit: &SlidingWindow) -> u64 {
    let (mut a, mut b) = (limit.window_nanos() / 1000, limit.sub_windows());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// Returns the index of the sub-window at an instant.
fn slot_of(limit: &SlidingWindow, now: Nanos) -> u64 {
    let (parts, window) = (u128::from(limit.sub_windows()), u128::from(limit.window_nanos()));
    u64::try_from(u128::from(now.get()) * parts / window).unwrap_or(u64::MAX)
}
