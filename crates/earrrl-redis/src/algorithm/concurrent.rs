//! Concurrency limit. A record holds the places that live reservations have taken; the slots of its
//! tally are microseconds.

use earrrl::algorithm::{Concurrent, State, Tally};
use earrrl::{Nanos, RuleError};

use super::Terms;
use super::fields::{Packed, micros, whole_micros};
use super::fixed_window::check_window;
use super::tally::TallyOnRedis;

const UNIT: u128 = 1_000_000_000;

impl TallyOnRedis for Concurrent {
    const SLOT: u64 = 1000;

    /// Returns no parameters, since entries mean the same under every limit.
    fn meaning(&self) -> [u64; 4] {
        [0; 4]
    }

    fn check(&self) -> Result<(), RuleError> {
        check_window(self.timeout_nanos())
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let timeout = whole_micros(self.timeout_nanos());
        let places = |units: u128| (units * UNIT) as f64;
        let cost = places(terms.cost.billionths().div_ceil(UNIT)) * terms.sign;
        let lives = (timeout / 1e3 + terms.linger_ms()).ceil();
        packed.numbers(&[timeout, places(self.places().into()), cost, lives]);
    }

    fn state(tally: Tally) -> State {
        State::Concurrent(tally)
    }

    fn tally(state: &State) -> Option<&Tally> {
        match state {
            State::Concurrent(tally) => Some(tally),
            _ => None,
        }
    }

    fn slot_of(&self, now: Nanos) -> u64 {
        now.get()
    }

    fn begins(&self, slot: u64) -> f64 {
        micros(Nanos::new(slot))
    }
}
