//! The rule's present text, if a change that needs no other file has replaced the rule.
//!
//! Two records share the rest of the second page: a number, the text's length, the text, and a
//! checksum. A change writes the record with the lower number, so that the other one stays whole
//! while this one is written. If no record is whole, the text in the header counts. An earlier text
//! is no harm, since it gives the states the same meaning.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::string::String;
use std::vec::Vec;

use super::header::{FIXED, content, four, sealed};

/// The place of the first record.
pub(super) const RECORDS_AT: usize = FIXED + FIXED / 2;
const RECORD: usize = FIXED / 4;
const TEXT: usize = 12;

/// Returns the number of the latest record and its text; `None` if there is no whole record.
fn latest(file: &File) -> io::Result<Option<(u64, String)>> {
    let mut records = [[0; RECORD]; 2];
    file.read_exact_at(records.as_flattened_mut(), RECORDS_AT as u64)?;
    Ok(records.iter().filter_map(decode).max())
}

fn decode(record: &[u8; RECORD]) -> Option<(u64, String)> {
    let content = content(record)?;
    let number = u64::from_ne_bytes(*content.first_chunk()?);
    let text = content.get(TEXT..TEXT + four(content, 8) as usize)?;
    Some((number, String::from_utf8_lossy(text).into()))
}

/// Returns the text that replaces the one in the header, if there is one.
pub(super) fn read(file: &File) -> io::Result<Option<String>> {
    Ok(latest(file)?.map(|(_, text)| text))
}

/// Writes the text. If two processes write at the same time, the text of either may stay.
pub(super) fn write(file: &File, text: &str) -> io::Result<()> {
    let number = latest(file)?
        .map_or(0, |(number, _)| number)
        .wrapping_add(1);
    let mut record = Vec::from(number.to_ne_bytes());
    record.extend((text.len() as u32).to_ne_bytes());
    record.extend(text.as_bytes());
    if record.len() > RECORD - 8 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.write_all_at(
        &sealed(record, RECORD),
        RECORDS_AT as u64 + number % 2 * RECORD as u64,
    )
}
