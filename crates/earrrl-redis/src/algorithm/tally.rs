//! The algorithms whose records are tallies (counts ordered by time) in the format of `tally.lua`: sliding-log,
//! sliding-window and concurrent. Their scripts report a summary of the state after the request.

use std::time::Duration;

use earrrl::algorithm::{
    Concurrent, SlidingLog, SlidingWindow, State, Tally, sliding_window::Edge,
};
use earrrl::{Nanos, RuleError};

use super::fields::{Fields, Packed, whole_micros};
use super::windows::check_window;
use super::{OnRedis, Terms};

/// A microsecond, which is a slot of sliding-log and concurrent, in nanoseconds.
const MICROSECOND: u64 = 1000;
const UNIT: u128 = 1_000_000_000;
const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

/// Slots are microseconds.
impl OnRedis for SlidingLog {
    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        check_window(self.window_nanos())
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let window = whole_micros(self.window_nanos());
        let quota = self.quota().billionths() as f64;
        let exact = self.exact_entries() as f64;
        let grain = whole_micros(self.grain_nanos());
        let outweighed = whole_micros(self.outweighed_grain_nanos());
        let step = (window / 4.0).ceil();
        let lives = (window + step) / 1e3 + terms.linger_ms();
        packed.numbers(&[window, quota, terms.billionths(), exact, grain, outweighed]);
        packed.numbers(&[step, lives.ceil()]);
    }

    fn decode(&self, reported: Fields<'_>, _now: Nanos) -> Option<State> {
        summary(reported, MICROSECOND).map(State::SlidingLog)
    }
}

/// Slots are the sub-windows' indices since 1970.
impl OnRedis for SlidingWindow {
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

    fn decode(&self, reported: Fields<'_>, _now: Nanos) -> Option<State> {
        summary(reported, 1).map(State::SlidingWindow)
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

/// Slots are the microseconds at which places were taken or renewed.
impl OnRedis for Concurrent {
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

    fn decode(&self, reported: Fields<'_>, _now: Nanos) -> Option<State> {
        summary(reported, MICROSECOND).map(State::Concurrent)
    }
}

/// Reads a summary of `tally.lua`, which stands for the whole tally: two entries with the same sum, the same slot that
/// must expire next, and the same newest slot. A slot of the script is `unit` slots of the state.
fn summary(mut summary: Fields<'_>, unit: u64) -> Option<Tally> {
    let mut entry = || Some((summary.number()? as u64 * unit, summary.number()? as u128));
    let entries = [entry()?, entry()?];
    let kept = entries.into_iter().filter(|(_, cost)| *cost > 0);
    Some(Tally::from_entries(kept))
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
