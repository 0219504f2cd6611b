//! Concurrency limit. A record holds the places that live reservations have taken; the slots of its
//! tally are microseconds.

use std::time::Duration;

use earrrl::algorithm::{Moment, Tally};
use earrrl::{Concurrent, Cost, Nanos, RuleError, State};

use super::fields::{Fields, Packed, micros, moved_slot, whole_micros};
use super::fixed_window::check_window;
use super::{Adjustment, Answers, MAX_EXACT_UNITS, OnRedis, Terms, tally};

/// The nanoseconds per slot.
const SLOT: u64 = 1000;
const UNIT: u128 = 1_000_000_000;

impl OnRedis for Concurrent {
    /// Returns no parameters, since entries mean the same under every limit.
    fn meaning(&self) -> [u64; 4] {
        [0; 4]
    }

    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        check_window(self.timeout_nanos())
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let timeout = whole_micros(self.timeout_nanos());
        let places = |units: u128| (units * UNIT) as f64;
        let cost = places(terms.cost.billionths().div_ceil(UNIT)) * terms.sign;
        let lives = (timeout / 1e3 + terms.linger_ms()).ceil();
        packed.numbers(&[timeout, places(self.places().into()), cost, lives]);
    }

    fn has_len(&self, len: usize) -> bool {
        len >= tally::HEADER
    }

    fn decode(&self, record: Fields<'_>, _now: Nanos) -> Option<State> {
        tally::decode(record, SLOT).map(State::Concurrent)
    }

    fn encode(&self, state: &State, _now: Nanos, packed: &mut Packed) -> Option<()> {
        let State::Concurrent(tally) = state else { return None };
        tally::encode(tally, SLOT, packed);
        Some(())
    }

    fn answers(&self) -> Answers {
        Answers::After
    }

    fn summary(&self, summary: Fields<'_>) -> Option<State> {
        tally::decode_summary(summary, SLOT).map(State::Concurrent)
    }

    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State {
        let State::Concurrent(tally) = state else { return state };
        let entry = |(slot, cost)| (moved_slot(slot, from.get(), to.get()), cost);
        State::Concurrent(Tally::from_entries(tally.entries().map(entry)))
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
        let State::Concurrent(tally) = counted else { return Vec::new() };
        let add = |(slot, cost)| Adjustment::add(micros(Nanos::new(slot)), cost);
        tally.entries().map(add).collect()
    }

    fn merged(&self, state: State, counted: &State, _sum: Cost) -> State {
        match (state, counted) {
            (State::Concurrent(a), State::Concurrent(b)) => State::Concurrent(tally::merged(&a, b)),
            (state, _) => state,
        }
    }
}
