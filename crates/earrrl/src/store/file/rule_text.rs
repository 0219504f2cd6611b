//! The rule's present text, if a change that needs no other file has replaced the rule.
//!
//! Two records share the rest of the second page: a number, the text's length, the text, and a
//! checksum. A change writes the record with the lower number, so that the other one stays whole
//! while this one is written. If no record is whole, the text in the header counts. An earlier text
//! is no harm, since it gives the states the same meaning.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::string::String;
use std::vec;

use super::error::StateError;
use super::folder::{FileName, Folder};
use super::header::{FIXED, checksum, four};

/// The place of the first record.
pub(super) const RECORDS_AT: usize = FIXED + FIXED / 2;
const RECORD: usize = FIXED / 4;
const TEXT: usize = 12;
const CHECKSUM: usize = RECORD - 8;

/// Returns the number of the latest record and its text; `None` if there is no whole record.
fn latest(file: &File) -> io::Result<Option<(u64, String)>> {
    let mut records = [[0; RECORD]; 2];
    file.read_exact_at(records.as_flattened_mut(), RECORDS_AT as u64)?;
    Ok(records.iter().filter_map(decode).max())
}

fn decode(record: &[u8; RECORD]) -> Option<(u64, String)> {
    let sum = u64::from_ne_bytes(*record.last_chunk()?);
    let number = u64::from_ne_bytes(*record.first_chunk()?);
    let text = record.get(TEXT..TEXT + four(record, 8) as usize)?;
    (sum == checksum(&record[..CHECKSUM])).then(|| (number, String::from_utf8_lossy(text).into()))
}

/// Returns the text that replaces the one in the header, if there is one.
pub(super) fn read(file: &File) -> io::Result<Option<String>> {
    Ok(latest(file)?.map(|(_, text)| text))
}

/// Writes the text. No other process may write it at the same time.
pub(super) fn write(file: &File, text: &str) -> io::Result<()> {
    let number = latest(file)?
        .map_or(0, |(number, _)| number)
        .wrapping_add(1);
    let mut record = vec![0; RECORD];
    if text.len() > CHECKSUM - TEXT {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    record[..8].copy_from_slice(&number.to_ne_bytes());
    record[8..TEXT].copy_from_slice(&(text.len() as u32).to_ne_bytes());
    record[TEXT..TEXT + text.len()].copy_from_slice(text.as_bytes());
    let sum = checksum(&record[..CHECKSUM]);
    record[CHECKSUM..].copy_from_slice(&sum.to_ne_bytes());
    file.write_all_at(&record, RECORDS_AT as u64 + number % 2 * RECORD as u64)
}

/// Writes the text into the file at `path`, which is open in this process.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), StateError> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let Some(name) = FileName::parse(name) else {
        return Ok(());
    };
    let folder = Folder::open(path.parent().unwrap_or(Path::new(".")))?;
    let _locked = folder.lock()?;
    let file = folder.open_file(&name)?;
    file.doing("write", write(&file.file, text))
}
