//! Records as Redis keeps them, to and from the states of the pure functions.

use std::time::Duration;

use earrrl::algorithm::Moment;
use earrrl::algorithm::exponential::Measured;
use earrrl::algorithm::fixed_window::Count;
use earrrl::algorithm::sliding_counter::Counts;
use earrrl::internal::Tally;
use earrrl::{Cost, Limit, Mode, Nanos, State};

use crate::parameters::{TURN, WIDE_TURN, in_two, is_wide, tag_bytes, ticks_per_micro};

/// A recent average is told as the logarithm of its count: so much more, in so many steps of 1.
const POWER_OFFSET: f64 = 64.0;
const POWERS: f64 = 2_199_023_255_552.0;
/// Where a tally's entries start, and the size of one: as in `tally.lua`.
const TALLY_HEADER: usize = 36;
const TALLY_ENTRY: usize = 16;

/// The state that a record of this limit holds at `now`; `None` for a record that holds none.
pub(crate) fn decode(limit: &Limit, record: &[u8], now: Nanos) -> Option<State> {
    let mut fields = Fields(record.get(tag_bytes(limit, 0).len()..)?);
    Some(match limit {
        Limit::RecentAverage(limit) => {
            let wide = is_wide(limit);
            let time = fields.whole(if wide { 7 } else { 5 })?;
            let power = if wide { fields.number()? } else { fields.whole(6)? as f64 / POWERS };
            let count = (power - POWER_OFFSET).exp();
            let stored = unturned(time, wide, now);
            State::RecentAverage(limit.state_with_count(count, stored)?)
        }
        Limit::Exponential(_) => {
            let (rate, time) = (fields.number()?, fields.number()?);
            State::Exponential(Measured { at: nanos(time), rate })
        }
        Limit::TokenBucket(limit) => {
            let (time, rest) = (fields.whole(7)?, fields.whole(4)?);
            let ticks = i128::from(time) * ticks_per_micro(limit) + i128::from(rest);
            State::TokenBucket(Moment(ticks))
        }
        Limit::FixedWindow(_) => {
            let (window, count) = (fields.number()? as u64, fields.number()? as u128);
            State::FixedWindow(Count { window, count })
        }
        Limit::SlidingCounter(_) => {
            let (window, current) = (fields.number()? as u64, fields.number()? as u128);
            let previous = fields.number()? as u128;
            State::SlidingCounter(Counts { window, current, previous })
        }
        Limit::SlidingLog(_) => State::SlidingLog(tally(record, 1000)?),
        Limit::SlidingWindow(_) => State::SlidingWindow(tally(record, 1)?),
        _ => return None,
    })
}

/// Whether a record is one of this limit: by its tag, and by its size where that is fixed.
pub(crate) fn is_of(limit: &Limit, tag: u32, record: &[u8]) -> bool {
    let size = match limit {
        Limit::RecentAverage(limit) => 12 + 4 * usize::from(is_wide(limit)),
        Limit::TokenBucket(_) => 12,
        Limit::FixedWindow(_) | Limit::Exponential(_) => 20,
        Limit::SlidingCounter(_) => 28,
        _ => record.len().max(TALLY_HEADER),
    };
    record.len() == size && record.starts_with(&tag_bytes(limit, tag))
}

/// When an average was stored: its past before that is not known any more.
pub(crate) fn stored_at(limit: &Limit, record: &[u8], now: Nanos) -> Option<Nanos> {
    match limit {
        Limit::RecentAverage(limit) => {
            let wide = is_wide(limit);
            let time = Fields(record.get(1..)?).whole(if wide { 7 } else { 5 })?;
            Some(unturned(time, wide, now))
        }
        Limit::Exponential(_) => Fields(record.get(12..)?).number().map(nanos),
        _ => None,
    }
}

/// The instant, at most `now`, that a recent average's record tells modulo its turn; one that is
/// ahead of a clock which has gone back is `now`.
fn unturned(time: u64, wide: bool, now: Nanos) -> Nanos {
    let turn = if wide { WIDE_TURN } else { TURN } as u64;
    let now = now.get() / 1000;
    let age = (now % turn + turn - time % turn) % turn;
    let age = if age > turn / 16 * 15 { 0 } else { age };
    Nanos::new(now.saturating_sub(age) * 1000)
}

/// The record of a state at `now`, with its tag.
pub(crate) fn encode(limit: &Limit, tag: u32, state: &State, now: Nanos) -> Option<Vec<u8>> {
    let numbers = |numbers: &[f64]| {
        let mut record = tag_bytes(limit, tag);
        numbers.iter().for_each(|number| record.extend(number.to_le_bytes()));
        record
    };
    Some(match (limit, state) {
        (Limit::RecentAverage(limit), State::RecentAverage(moment)) => {
            let (wide, micro) = (is_wide(limit), now.get() / 1000);
            let count = limit.count(Some(moment), Nanos::new(micro * 1000)).min(1e27);
            let power = (count.ln() + POWER_OFFSET).max(0.0);
            let mut record = numbers(&[]);
            if wide {
                record.extend(&micro.to_le_bytes()[..7]);
                record.extend(power.to_le_bytes());
            } else {
                record.extend(&micro.to_le_bytes()[..5]);
                record.extend(&((power * POWERS + 0.5) as u64).to_le_bytes()[..6]);
            }
            record
        }
        (Limit::Exponential(_), State::Exponential(state)) => {
            numbers(&[state.rate, micros(state.at)])
        }
        (Limit::TokenBucket(limit), State::TokenBucket(moment)) => {
            let (whole, rest) = in_two(moment.0.max(0), limit);
            let mut record = numbers(&[]);
            record.extend(&(whole as u64).to_le_bytes()[..7]);
            record.extend((rest as u32).to_le_bytes());
            record
        }
        (Limit::FixedWindow(_), State::FixedWindow(state)) => {
            numbers(&[state.window as f64, state.count as f64])
        }
        (Limit::SlidingCounter(_), State::SlidingCounter(state)) => {
            numbers(&[state.window as f64, state.current as f64, state.previous as f64])
        }
        (Limit::SlidingLog(_), State::SlidingLog(tally)) => tally_record(tag, tally, 1000),
        (Limit::SlidingWindow(_), State::SlidingWindow(tally)) => tally_record(tag, tally, 1),
        _ => return None,
    })
}

/// The state after the decision, from what `summary` in `tally.lua` tells of it: lumps that have
/// the sum, the slot to leave and the newest slot of the whole.
pub(crate) fn decode_summary(limit: &Limit, summary: &[u8]) -> Option<State> {
    let mut fields = Fields(summary);
    let mut entry = |unit: u64| Some((fields.number()? as u64 * unit, fields.number()? as u128));
    let mut lumps = |unit| {
        let (leaving, newest) = (entry(unit)?, entry(unit)?);
        Some(Tally::from_entries([leaving, newest].into_iter().filter(|(_, cost)| *cost > 0)))
    };
    match limit {
        Limit::SlidingLog(_) => Some(State::SlidingLog(lumps(1000)?)),
        Limit::SlidingWindow(_) => Some(State::SlidingWindow(lumps(1)?)),
        _ => None,
    }
}

/// How long a record must live that holds `state`: until nothing is left in it that could change a
/// decision.
pub(crate) fn life(limit: &Limit, state: &State, now: Nanos) -> Duration {
    let (_, _, report) = limit.step(Some(state.clone()), now, Cost::ZERO, Mode::Peek);
    // An average is as good as new at a hundredth of the limit, and forgotten at a billionth.
    let tail = match limit {
        Limit::RecentAverage(limit) => limit.period_secs() * 1e7f64.ln(),
        Limit::Exponential(limit) => limit.period() as f64 / 1e9 * 1e11f64.ln(),
        _ => 0.0,
    };
    report.reset_after.saturating_add(Duration::from_secs_f64(tail))
}

/// A tally's whole record; slots are `unit` times what is stored.
fn tally(record: &[u8], unit: u64) -> Option<Tally> {
    let mut header = Fields(record.get(4..TALLY_HEADER)?);
    let (oldest, last) = (header.small()? as usize, header.small()? as usize);
    let _sum = header.number()?;
    let newest = (header.number()? as u64 * unit, header.number()? as u128);
    let mut entries = Vec::new();
    for place in oldest..last {
        let mut entry = Fields(record.get(TALLY_HEADER + TALLY_ENTRY * place..)?);
        entries.push((entry.number()? as u64 * unit, entry.number()? as u128));
    }
    Some(Tally::from_entries(entries.into_iter().chain([newest])))
}

fn tally_record(tag: u32, tally: &Tally, unit: u64) -> Vec<u8> {
    let mut entries: Vec<_> = tally.entries().collect();
    let newest = entries.pop().unwrap_or_default();
    let mut record = tag.to_le_bytes().to_vec();
    record.extend(0u32.to_le_bytes());
    record.extend((entries.len() as u32).to_le_bytes());
    record.extend((tally.sum() as f64).to_le_bytes());
    for (slot, cost) in [newest].into_iter().chain(entries) {
        record.extend(((slot / unit) as f64).to_le_bytes());
        record.extend((cost as f64).to_le_bytes());
    }
    record
}

/// Microseconds since 1970 to nanoseconds.
pub(crate) fn nanos(micros: f64) -> Nanos {
    Nanos::new((micros as u64).saturating_mul(1000))
}

/// The microsecond of an instant.
pub(crate) fn micros(now: Nanos) -> f64 {
    (now.get() / 1000) as f64
}

/// Little-endian fields, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// A double that is a time, an amount or a count: never below zero, never NaN.
    fn number(&mut self) -> Option<f64> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(f64::from_le_bytes(*field)).filter(|number| *number >= 0.0)
    }

    /// An unsigned number of so many bytes.
    fn whole(&mut self, bytes: usize) -> Option<u64> {
        let (field, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn small(&mut self) -> Option<u32> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*field))
    }
}
