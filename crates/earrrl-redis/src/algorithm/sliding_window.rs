//! Hybrid sliding window. A record holds the counts of sub-windows; the slots of its tally are the
//! sub-windows' indices since 1970.

use earrrl::algorithm::{SlidingWindow, State, Tally, sliding_window::Edge};
use earrrl::{Nanos, RuleError};

use super::Terms;
use super::fields::{Packed, whole_micros};
use super::fixed_window::check_window;
use super::tally::TallyOnRedis;

const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

impl TallyOnRedis for SlidingWindow {
    const SLOT: u64 = 1;

    fn meaning(&self) -> [u64; 4] {
        [self.window_nanos(), self.sub_windows(), 0, 0]
    }

    fn check(&self) -> Result<(), RuleError> {
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
        let window = whole_micros(self.window_nanos());
        let quota = self.quota().billionths() as f64;
        let parts = self.sub_windows();
        let common = common_divisor(self);
        let share = parts / common;
        let width = self.window_nanos() / 1000 / common;
        let lifetime = (parts + u64::from(self.edge() == Edge::Harsh)) as f64;
        let lives = window / 1e3 * (lifetime / parts as f64) + terms.linger_ms();
        packed.numbers(&[window, parts as f64, share as f64, width as f64, lifetime]);
        packed.numbers(&[quota, terms.billionths(), lives.ceil()]);
    }

    fn state(tally: Tally) -> State {
        State::SlidingWindow(tally)
    }

    fn tally(state: &State) -> Option<&Tally> {
        match state {
            State::SlidingWindow(tally) => Some(tally),
            _ => None,
        }
    }

    fn slot_of(&self, now: Nanos) -> u64 {
        let parts = u128::from(self.sub_windows());
        let window = u128::from(self.window_nanos());
        u64::try_from(u128::from(now.get()) * parts / window).unwrap_or(u64::MAX)
    }

    fn begins(&self, slot: u64) -> f64 {
        let parts = u128::from(self.sub_windows());
        let window = u128::from(self.window_nanos());
        (u128::from(slot) * window).div_ceil(parts * 1000) as f64
    }
}

/// Returns the greatest common divisor of the window in microseconds and the number of sub-windows.
fn common_divisor(limit: &SlidingWindow) -> u64 {
    let mut a = limit.window_nanos() / 1000;
    let mut b = limit.sub_windows();
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
