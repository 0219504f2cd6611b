//! The averages: recent-average and exponential. A record holds an average, or its logarithm, and the time at which it
//! was stored.

use std::num::NonZeroU64;

use earrrl::Nanos;
use earrrl::algorithm::{Exponential, RecentAverage, State, exponential::Measured};

use super::fields::{Fields, Packed, nanos, span_micros, whole_micros};
use super::{OnRedis, Terms};

/// The relative tolerance of recent-average's comparison with the limit, and that of exponential's, the same as in the
/// core.
const TOLERANCE: f64 = 1e-9;
const TOLERANCE_OF_RATES: f64 = 1e-12;
/// The share of the limit at which an average is dropped. A smaller average is below the tolerance
/// of decisions.
const FORGOTTEN: f64 = 1e-9;
/// The multiple of the limit up to which averages are dropped within the same time.
const MANY: f64 = 100.0;
/// The modulus of the time that a record of recent-average stores, in microseconds: 2^40, or 2^56 in wide ones.
const TURN: f64 = 1_099_511_627_776.0;
const WIDE_TURN: f64 = TURN * 65_536.0;
/// The offset of the logarithm that a record stores: `ln(count) + 64`, in steps of 1/2.2e12.
const POWER_OFFSET: f64 = 64.0;
const POWERS: f64 = 2_199_023_255_552.0;
/// The length in bytes of the last place at the end of a record.
const PLACE_LEN: usize = 7;

impl OnRedis for RecentAverage {
    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let period = self.period_secs() * 1e6;
        let most = self.burst() * (1.0 + TOLERANCE);
        let held = terms
            .hold()
            .map_or(-1.0, |max| most * (span_micros(max) / period).exp());
        packed.numbers(&[period, most, held, terms.units()]);
        packed.numbers(&life(period, most, terms));
        packed.numbers(&[whole_micros(self.spacing_nanos())]);
        packed.whole(is_wide(self).into(), 1);
    }

    fn born_len(&self) -> usize {
        1
    }

    fn decode(&self, mut record: Fields<'_>, now: Nanos) -> Option<State> {
        let wide = is_wide(self);
        let time = record.whole(if wide { 7 } else { 5 })?;
        let power = match wide {
            true => record.number()?,
            false => record.whole(6)? as f64 / POWERS,
        };
        let turn = if wide { WIDE_TURN } else { TURN } as u64;
        let now = now.get() / 1000;
        let age = (now % turn + turn - time % turn) % turn;
        // A time that is ahead of now was stored before the clock was set back.
        let age = if age > turn / 16 * 15 { 0 } else { age };
        let stored_at = Nanos::new(now.saturating_sub(age) * 1000);
        let state = self.state_with_count((power - POWER_OFFSET).exp(), stored_at)?;
        Some(State::RecentAverage(match record.whole(PLACE_LEN) {
            Some(last) => self.with_last_place(state, last),
            None => state,
        }))
    }

    fn max_exact_units(&self) -> Option<u64> {
        None
    }
}

impl OnRedis for Exponential {
    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let period = self.period_nanos() as f64 / 1e3;
        let most = self.quota().as_f64() * (1.0 + TOLERANCE_OF_RATES);
        packed.numbers(&[period, most, terms.units()]);
        packed.numbers(&life(period, most, terms));
        packed.numbers(&[whole_micros(self.spacing_nanos())]);
    }

    fn decode(&self, mut record: Fields<'_>, _now: Nanos) -> Option<State> {
        let rate = record.number()?;
        let at = nanos(record.number()?);
        let place = record.whole(PLACE_LEN).and_then(NonZeroU64::new);
        Some(State::Exponential(Measured { at, rate, place }))
    }

    fn adds(&self) -> bool {
        false
    }

    fn max_exact_units(&self) -> Option<u64> {
        None
    }
}

/// Returns the microseconds after which an average's expiry is renewed, the milliseconds in which an average of
/// [`MANY`] times the limit decays to [`FORGOTTEN`] of it, and that average.
fn life(period: f64, most: f64, terms: &Terms<'_>) -> [f64; 3] {
    let step = (2.0 * period).ceil();
    [
        step,
        decays_in(period) / 1e3 + terms.linger_ms(),
        MANY * most,
    ]
}

/// Returns the microseconds in which an average decays, with those after which its expiry is renewed.
fn decays_in(period: f64) -> f64 {
    period * (MANY / FORGOTTEN).ln() + (2.0 * period).ceil()
}

/// Returns true if records may live so long that their times need seven bytes instead of five.
fn is_wide(limit: &RecentAverage) -> bool {
    decays_in(limit.period_secs() * 1e6) > TURN / 2.0
}
