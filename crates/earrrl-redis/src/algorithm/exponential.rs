//! Exponential rate limiting. A record holds the last average and its time. Averages of several
//! nodes cannot be added up.

use earrrl::algorithm::{Exponential, State, exponential::Measured};
use earrrl::{Cost, Nanos};

use super::average::{Life, MANY, life};
use super::fields::{Fields, Packed, moved_slot, nanos};
use super::{Adjustment, OnRedis, Terms};

/// The relative tolerance of the comparison with the limit, the same as in the core.
const TOLERANCE: f64 = 1e-12;

impl OnRedis for Exponential {
    fn meaning(&self) -> [u64; 4] {
        [self.period_nanos(), 0, 0, 0]
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let period = self.period_nanos() as f64 / 1e3;
        let most = self.quota().as_f64() * (1.0 + TOLERANCE);
        let Life { step, lives } = life(period, terms.linger_ms());
        packed.numbers(&[period, most, terms.units(), step, lives, MANY * most]);
    }

    fn decode(&self, mut record: Fields<'_>, _now: Nanos) -> Option<State> {
        let rate = record.number()?;
        let time = record.number()?;
        Some(State::Exponential(Measured {
            at: nanos(time),
            rate,
        }))
    }

    fn adds(&self) -> bool {
        false
    }

    fn max_exact_units(&self) -> Option<u64> {
        None
    }

    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State {
        let State::Exponential(state) = state else {
            return state;
        };
        State::Exponential(Measured {
            at: Nanos::new(moved_slot(state.at.get(), from.get(), to.get())),
            ..state
        })
    }

    fn adjustments(&self, _counted: &State, _sum: Cost, _now: Nanos) -> Vec<Adjustment> {
        Vec::new()
    }
}
