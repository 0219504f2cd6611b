//! The windows: fixed-window and sliding-counter. A record holds a window's index since 1970 and its count, and that of
//! the window before it.

use std::time::Duration;

use earrrl::algorithm::{
    FixedWindow, SlidingCounter, State, fixed_window::Count, sliding_counter::WindowCounts,
};
use earrrl::{Cost, Nanos, RuleError};

use super::fields::{Fields, Packed, whole_micros};
use super::{OnRedis, Terms};

impl OnRedis for FixedWindow {
    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        check_window(self.window_nanos())
    }

    /// A calendar is the number of the period before the present one, and the microseconds at which this and the next
    /// four periods begin. A window that begins with a request has a length below zero.
    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        if !self.is_calendar() {
            let sign = if self.starts_with_first() { -1.0 } else { 1.0 };
            let micros = sign * whole_micros(self.window_nanos());
            window_parameters(micros, self.quota(), terms, packed);
            return packed.whole(0, 1);
        }
        window_parameters(0.0, self.quota(), terms, packed);
        let before = self.number(terms.now).saturating_sub(1);
        packed.whole(6 * 8, 1);
        packed.numbers(&[before as f64]);
        let begins = (before..before + 5).map(|period| FixedWindow::begins(self, period));
        begins.for_each(|begins| packed.numbers(&[begins as f64 / 1e3]));
    }

    fn decode(&self, mut record: Fields<'_>, _now: Nanos) -> Option<State> {
        let window = record.number()? as u64;
        let count = record.number()? as u128;
        Some(State::FixedWindow(Count { window, count }))
    }

    fn slot_of(&self, now: Nanos) -> u64 {
        self.number(now)
    }

    fn begins(&self, slot: u64) -> f64 {
        (FixedWindow::begins(self, slot) / 1000) as f64
    }
}

impl OnRedis for SlidingCounter {
    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        check_window(self.window_nanos())
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let micros = whole_micros(self.window_nanos());
        window_parameters(micros, self.quota(), terms, packed);
    }

    fn decode(&self, mut record: Fields<'_>, _now: Nanos) -> Option<State> {
        Some(State::SlidingCounter(WindowCounts {
            window: record.number()? as u64,
            current: record.number()? as u128,
            previous: record.number()? as u128,
        }))
    }

    fn slot_of(&self, now: Nanos) -> u64 {
        now.get() / self.window_nanos()
    }

    fn begins(&self, slot: u64) -> f64 {
        start(slot, self.window_nanos())
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
fn window_parameters(micros: f64, quota: Cost, terms: &Terms<'_>, packed: &mut Packed) {
    let quota = quota.billionths() as f64;
    packed.numbers(&[micros, quota, terms.billionths(), terms.linger_ms()]);
}

/// Returns the microsecond at which a window begins.
fn start(index: u64, window: u64) -> f64 {
    (u128::from(index) * u128::from(window) / 1000) as f64
}
