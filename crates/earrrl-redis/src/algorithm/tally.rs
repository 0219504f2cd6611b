//! Tallies (counts ordered by time) in the format of `tally.lua`, and the algorithms whose states they
//! are.

use std::time::Duration;

use earrrl::algorithm::{State, Tally};
use earrrl::{Cost, Nanos, RuleError};

use super::fields::{Fields, Packed, moved_slot};
use super::{Adjustment, Answers, OnRedis, Terms};

/// The length of an entry of a record in bytes.
const ENTRY: usize = 16;

/// An algorithm whose clients' records are tallies.
pub(super) trait TallyOnRedis {
    /// A slot of a record, in the unit of the slots of a state.
    const SLOT: u64;

    /// As [`OnRedis::meaning`].
    fn meaning(&self) -> [u64; 4];

    /// As [`OnRedis::check`].
    fn check(&self) -> Result<(), RuleError>;

    /// As [`OnRedis::parameters`].
    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed);

    /// Returns the state with this tally.
    fn state(tally: Tally) -> State;

    /// Returns the tally of a state; `None` if the state is one of another algorithm.
    fn tally(state: &State) -> Option<&Tally>;

    /// Returns the slot of an instant.
    fn slot_of(&self, now: Nanos) -> u64;

    /// Returns the first microsecond of a slot.
    fn begins(&self, slot: u64) -> f64;
}

impl<A: TallyOnRedis> OnRedis for A {
    fn meaning(&self) -> [u64; 4] {
        TallyOnRedis::meaning(self)
    }

    fn check(&self, _hold: Duration) -> Result<(), RuleError> {
        TallyOnRedis::check(self)
    }

    fn parameters(&self, terms: &Terms<'_>, packed: &mut Packed) {
        TallyOnRedis::parameters(self, terms, packed);
    }

    fn decode(&self, record: Fields<'_>, _now: Nanos) -> Option<State> {
        decode(record, A::SLOT).map(A::state)
    }

    fn answers(&self) -> Answers {
        Answers::After
    }

    fn summary(&self, summary: Fields<'_>) -> Option<State> {
        decode_summary(summary, A::SLOT).map(A::state)
    }

    fn moved(&self, state: State, from: Nanos, to: Nanos) -> State {
        let Some(tally) = A::tally(&state) else {
            return state;
        };
        let from = self.slot_of(from);
        let to = self.slot_of(to);
        let entry = |(slot, cost)| (moved_slot(slot, from, to), cost);
        A::state(Tally::from_entries(tally.entries().map(entry)))
    }

    fn adjustments(&self, counted: &State, _sum: Cost, _now: Nanos) -> Vec<Adjustment> {
        let entries = A::tally(counted).into_iter().flat_map(Tally::entries);
        entries
            .map(|(slot, cost)| Adjustment::add(self.begins(slot), cost))
            .collect()
    }
}

/// Reads a whole record without the time at which it was made. A slot is `unit` times the stored number.
fn decode(mut record: Fields<'_>, unit: u64) -> Option<Tally> {
    let oldest = record.whole(4)? as usize;
    let last = record.whole(4)? as usize;
    let _sum = record.number()?;
    let newest = entry(&mut record, unit)?;
    let mut rest = Fields(if oldest < last {
        record.0.get(ENTRY * oldest..)?
    } else {
        &[]
    });
    let mut entries = Vec::new();
    for _ in oldest..last {
        entries.push(entry(&mut rest, unit)?);
    }
    Some(Tally::from_entries(entries.into_iter().chain([newest])))
}

/// Reads a summary of `tally.lua`, which stands for the whole tally: two entries with the same sum,
/// the same slot that must expire next, and the same newest slot.
fn decode_summary(mut summary: Fields<'_>, unit: u64) -> Option<Tally> {
    let leaving = entry(&mut summary, unit)?;
    let newest = entry(&mut summary, unit)?;
    Some(Tally::from_entries(
        [leaving, newest].into_iter().filter(|(_, cost)| *cost > 0),
    ))
}

fn entry(fields: &mut Fields<'_>, unit: u64) -> Option<(u64, u128)> {
    Some((fields.number()? as u64 * unit, fields.number()? as u128))
}
