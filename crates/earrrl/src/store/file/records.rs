//! The file of a directory's reservations: records of one size, each with a checksum.
//!
//! One process at a time has the file, by a lock that the kernel releases when the process dies. A record is
//! written by one call, so that a killed process leaves it old or new. After a power failure it may be neither;
//! its checksum is then wrong, and the reservation is forgotten, which leaves its estimate charged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use rustix::fs::{FlockOperation, flock};

use super::directory::StateDirectory;
use super::error::StateError;
use super::folder::Folder;
use super::header::{content, sealed};
use crate::lock::lock;

/// The name of the file, with the version of its records. No rule can have this name.
const NAME: &str = "_reservations.1";
/// The bytes of a record: its words, a checksum, and zeros. A page has a whole number of them.
const BYTES: usize = 128;
/// The words of a record.
const WORDS: usize = 14;
/// The bytes of the words and their checksum.
const SEALED: usize = 8 * (WORDS + 1);

/// The content of a record.
pub(crate) type RecordWords = [u64; WORDS];

/// A file, and its records with their places.
pub(crate) type OpenedRecords = (RecordFile, Vec<(u32, RecordWords)>);

/// The records of a directory, which only this process uses.
#[derive(Debug)]
pub(crate) struct RecordFile {
    file: Arc<File>,
    /// The places of the file that have no record.
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    places: Vec<u32>,
    /// The number of places, all of which may be taken.
    end: u32,
}

impl Drop for RecordFile {
    /// Unlocks the file at once. The kernel would do so only when no process has the descriptor, and a process that
    /// this one forks has it until it executes its program.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl RecordFile {
    /// Opens the file of a directory, and reads its records with their places. Returns `None` if another process
    /// has it.
    pub(crate) fn open(directory: &StateDirectory) -> Result<Option<OpenedRecords>, StateError> {
        let folder = Folder::open(directory.path())?;
        let _locked = folder.lock()?;
        let file = folder.open_or_create(NAME)?;
        if !file.try_lock(FlockOperation::NonBlockingLockExclusive)? {
            return Ok(None);
        }
        let bytes = file.doing("read", file.file.metadata())?.len();
        let file = file.file;
        let end = u32::try_from(bytes / BYTES as u64).unwrap_or(u32::MAX);
        let mut places = Vec::new();
        let mut records = Vec::new();
        for place in 0..end {
            match read(&file, place) {
                Some(record) => records.push((place, record)),
                None => places.push(place),
            }
        }
        let free = Mutex::new(Free { places, end });
        Ok(Some((Self { file, free }, records)))
    }

    /// Writes a record to a free place, and returns that.
    pub(crate) fn add(&self, record: &RecordWords) -> u32 {
        let mut free = lock(&self.free);
        let place = free.places.pop().unwrap_or_else(|| {
            free.end += 1;
            free.end - 1
        });
        drop(free);
        self.write(place, record);
        place
    }

    /// Replaces a record. If the disk is full, the reservation is lost with this process.
    pub(crate) fn write(&self, place: u32, record: &RecordWords) {
        let words = record.iter().flat_map(|word| word.to_ne_bytes());
        let mut bytes = sealed(words.collect(), SEALED);
        bytes.resize(BYTES, 0);
        let _ = self.file.write_all_at(&bytes, at(place));
    }

    /// Removes a record. If that fails, a later start finds a reservation that has expired.
    pub(crate) fn remove(&self, place: u32) {
        let _ = self.file.write_all_at(&[0; BYTES], at(place));
        let mut free = lock(&self.free);
        free.places.push(place);
    }
}

fn at(place: u32) -> u64 {
    u64::from(place) * BYTES as u64
}

/// Reads a record; returns `None` if the place is free, or the record is damaged.
fn read(file: &File, place: u32) -> Option<RecordWords> {
    let mut bytes = [0; BYTES];
    file.read_exact_at(&mut bytes, at(place)).ok()?;
    let (words, _) = content(&bytes[..SEALED])?.as_chunks();
    Some(core::array::from_fn(|nth| u64::from_ne_bytes(words[nth])))
}
