//! Counts by time, as `tally.lua` keeps them.

use earrrl::algorithm::Tally;

use super::fields::{Fields, Packed};

/// The offset of a record's entries, and the length of one.
pub(super) const HEADER: usize = 36;
const ENTRY: usize = 16;

/// Reads a whole record without its tag. Slots are `unit` times the stored number.
pub(super) fn decode(mut record: Fields<'_>, unit: u64) -> Option<Tally> {
    let (oldest, last) = (record.whole(4)? as usize, record.whole(4)? as usize);
    let _sum = record.number()?;
    let newest = entry(&mut record, unit)?;
    let mut rest = Fields(if oldest < last { record.0.get(ENTRY * oldest..)? } else { &[] });
    let mut entries = Vec::new();
    for _ in oldest..last {
        entries.push(entry(&mut rest, unit)?);
    }
    Some(Tally::from_entries(entries.into_iter().chain([newest])))
}

pub(super) fn encode(tally: &Tally, unit: u64, packed: &mut Packed) {
    let mut entries: Vec<_> = tally.entries().collect();
    let newest = entries.pop().unwrap_or_default();
    packed.whole(0, 4);
    packed.whole(entries.len() as u64, 4);
    packed.numbers(&[tally.sum() as f64]);
    for (slot, cost) in [newest].into_iter().chain(entries) {
        packed.numbers(&[(slot / unit) as f64, cost as f64]);
    }
}

/// Reads a summary of `tally.lua`: two entries that have the sum, the slot to leave and the newest slot of the whole.
pub(super) fn decode_summary(mut summary: Fields<'_>, unit: u64) -> Option<Tally> {
    let (leaving, newest) = (entry(&mut summary, unit)?, entry(&mut summary, unit)?);
    Some(Tally::from_entries([leaving, newest].into_iter().filter(|(_, cost)| *cost > 0)))
}

/// Returns one tally with the counts of two.
pub(super) fn merged(a: &Tally, b: &Tally) -> Tally {
    let mut entries: Vec<_> = a.entries().chain(b.entries()).collect();
    entries.sort_by_key(|(slot, _)| *slot);
    Tally::from_entries(entries)
}

fn entry(fields: &mut Fields<'_>, unit: u64) -> Option<(u64, u128)> {
    Some((fields.number()? as u64 * unit, fields.number()? as u128))
}
