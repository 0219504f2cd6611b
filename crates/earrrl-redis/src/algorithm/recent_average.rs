//! Recent average. A record holds the logarithm of a decayed count and the time at which it was
//! stored.

use std::time::Duration;

use earrrl::algorithm::{RecentAverage, State};
use earrrl::{Cost, Nanos};

use super::average::{Life, MANY, life};
use super::fields::{Fields, Packed, span_micros};
use super::{Adjustment, OnRedis, Terms};

/// The relative tolerance of the comparison with the limit, the same as in the core.
const TOLERANCE: f64 = 1e-9;
/// The modulus of the time that a record stores, in microseconds: 2^40.
const TURN: f64 = 1_099_511_627_776.0;
const WIDE_TURN: f64 = TURN * 65_536.0;
/// The offset of the logarithm that a record stores: `ln(count) + 64`, in steps of 1/2.2e12.
const POWER_OFFSET: f64 = 64.0;
const POWERS: f64 = 2_199_023_255_552.0;

impl OnRedis for RecentAverage {
    fn meaning(&self) -> [u64; 4] {
        [self.period_secs().to_bits(), 0, 0, 0]
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        let period = self.period_secs() * 1e6;
        let most = self.burst() * (1.0 + TOLERANCE);
        let held = terms
            .hold()
            .map_or(-1.0, |max| most * (span_micros(max) / period).exp());
        let Life { step, lives } = life(period, terms.linger_ms());
        packed.numbers(&[period, most, held, terms.units(), step, lives, MANY * most]);
        packed.whole(is_wide(self).into(), 1);
    }

    fn born_len(&self) -> usize {
        1
    }

    fn decode(&self, mut record: Fields<'_>, now: Nanos) -> Option<State> {
        let wide = is_wide(self);
        let stored = stored_at(self, record, now)?;
        record.whole(time_len(wide))?;
        let power = if wide {
            record.number()?
        } else {
            record.whole(6)? as f64 / POWERS
        };
        self.state_with_count((power - POWER_OFFSET).exp(), stored)
            .map(State::RecentAverage)
    }

    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State {
        let State::RecentAverage(moment) = state else {
            return state;
        };
        let count = self.count(Some(&moment), from);
        self.state_with_count(count, to)
            .map_or(State::RecentAverage(moment), State::RecentAverage)
    }

    fn max_exact_units(&self) -> Option<u64> {
        None
    }

    fn adjustments(&self, counted: &State, _sum: Cost, now: Nanos) -> Vec<Adjustment> {
        let State::RecentAverage(moment) = counted else {
            return Vec::new();
        };
        let count = self.count(Some(moment), now);
        if count >= 1.0 || count <= 0.0 {
            return vec![Adjustment::add(-1.0, (count * 1e9) as u128)];
        }
        // A billionth of a unit is too coarse for a count that has decayed, so the count is sent
        // with the time at which it was 1.
        let age = Duration::from_secs_f64((-count.ln() * self.period_secs()).min(1e9));
        let micro = now.get().saturating_sub(age.as_nanos() as u64) / 1000;
        let then = self.count(Some(moment), Nanos::new(micro * 1000));
        vec![Adjustment::add(micro as f64, (then * 1e9) as u128)]
    }
}

/// Returns the instant that a record stores modulo 2^40 or 2^56 microseconds, which is at most `now`.
/// Returns `now` if the stored time is ahead of it because the clock was set back.
fn stored_at(limit: &RecentAverage, mut record: Fields<'_>, now: Nanos) -> Option<Nanos> {
    let wide = is_wide(limit);
    let time = record.whole(time_len(wide))?;
    let turn = if wide { WIDE_TURN } else { TURN } as u64;
    let now = now.get() / 1000;
    let age = (now % turn + turn - time % turn) % turn;
    let age = if age > turn / 16 * 15 { 0 } else { age };
    Some(Nanos::new(now.saturating_sub(age) * 1000))
}

/// Returns true if records may live so long that their times need seven bytes instead of five.
fn is_wide(limit: &RecentAverage) -> bool {
    life(limit.period_secs() * 1e6, 0.0).lives * 1e3 > TURN / 2.0
}

fn time_len(wide: bool) -> usize {
    if wide { 7 } else { 5 }
}
