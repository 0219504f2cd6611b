//! Tallies (counts ordered by time) in the format of `tally.lua`.

use earrrl::algorithm::Tally;

use super::fields::{Fields, Packed};

/// The offset of the entries in a record, in bytes. The constant below is the length of one entry.
pub(super) const HEADER: usize = 36;
const ENTRY: usize = 16;

/// Reads a whole record without its tag. A slot is `unit` times the stored number.
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

/// Reads a summary of `tally.lua`, which stands for the whole tally: two entries with the same sum,
/// the same slot that must expire next, and the same newest slot.
pub(super) fn decode_summary(mut summary: Fields<'_>, unit: u64) -> Option<Tally> {
    let (leaving, newest) = (entry(&mut summary, unit)?, entry(&mut summary, unit)?);
    Some(Tally::from_entries([leaving, newest].into_iter().filter(|(_, cost)| *cost > 0)))
}

/// Returns a tally with the counts of both tallies.
pub(super) fn merged(a: &Tally, b: &Tally) -> Tally {
    let mut entries: Vec<_> = a.entries().chain(b.entries()).collect();
    entries.sort_by_key(|(slot, _)| *slot);
    Tally::from_entries(entries)
}

fn entry(fields: &mut Fields<'_>, unit: u64) -> Option<(u64, u128)> {
    Some((fields.number()? as u64 * unit, fields.number()? as u128))
}
