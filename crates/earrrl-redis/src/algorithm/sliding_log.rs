//! Sliding window log. A record holds every request of the last window; the slots of its tally are
//! microseconds.

use earrrl::algorithm::{SlidingLog, State, Tally};
use earrrl::{Nanos, RuleError};

use super::Terms;
use super::fields::{Packed, micros, whole_micros};
use super::fixed_window::check_window;
use super::tally::TallyOnRedis;

impl TallyOnRedis for SlidingLog {
    const SLOT: u64 = 1000;

    /// Returns no parameters, since entries mean the same under every window.
    fn meaning(&self) -> [u64; 4] {
        [0; 4]
    }

    fn check(&self) -> Result<(), RuleError> {
        check_window(self.window_nanos())
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let window = whole_micros(self.window_nanos());
        let quota = self.quota().billionths() as f64;
        let exact = self.exact_entries() as f64;
        let grain = (self.grain_nanos() / Self::SLOT) as f64;
        let outweighed = (self.outweighed_grain_nanos() / Self::SLOT) as f64;
        let step = (window / 4.0).ceil();
        let lives = (window + step) / 1e3 + terms.linger_ms();
        packed.numbers(&[window, quota, terms.billionths(), exact, grain, outweighed]);
        packed.numbers(&[step, lives.ceil()]);
    }

    fn state(tally: Tally) -> State {
        State::SlidingLog(tally)
    }

    fn tally(state: &State) -> Option<&Tally> {
        match state {
            State::SlidingLog(tally) => Some(tally),
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
