//! Opening and creating state files.

use std::os::unix::fs::FileExt;

use super::checked::{CheckedFile, allocate};
use super::convert::convert;
use super::error::StateError;
use super::folder::{Folder, Stem};
use super::header::{FileHeader, HeaderFault};
use super::state_file::{FileSpec, Opened};
use crate::clock::{Anchor, Nanos};
use crate::store::table::{KeyHasher, sets_for};

/// Opens the latest generation of a state file, or creates the first one. If the wanted limit gives
/// states another meaning and no other process uses the file, creates the next generation. `now`
/// makes the clock of the given anchor and returns the present instant.
pub(crate) fn open(
    wanted: &FileSpec<'_>,
    now: impl FnOnce(Anchor) -> Nanos,
) -> Result<Opened, StateError> {
    let (path, limit) = (wanted.path, wanted.limit);
    if !limit.fits_words() {
        return Err(StateError::unsupported(limit));
    }
    let stem = Stem::of(path)?;
    let folder = Folder::of(path, &stem)?;
    let _locked = folder.lock()?;
    let generation = match folder.latest(&stem)? {
        Some(generation) => generation,
        None => create(&folder, &stem, wanted)?,
    };
    let file = CheckedFile::open(&folder, &stem, generation, wanted)?;
    if limit.keeps_states_of(&file.limit) {
        return file.map(wanted, now);
    }
    if !file.is_alone {
        let (found, expected) = (file.header.rule.clone(), limit.text());
        return Err(file.refused(HeaderFault { field: "rule", found, expected }));
    }
    let mut instant = Nanos::ZERO;
    let remember = |anchor| {
        instant = now(anchor);
        instant
    };
    let next = convert(&folder, &stem, file, wanted, remember)?;
    CheckedFile::open(&folder, &stem, next, wanted)?.map(wanted, |_| instant)
}

/// Creates the first generation of a file, and returns its number.
fn create(folder: &Folder, stem: &Stem, wanted: &FileSpec<'_>) -> Result<u64, StateError> {
    let (sets, generation) = (sets_for(wanted.capacity), 1);
    folder.create_file(stem, generation, |file, path| {
        let io = |error: std::io::Error| StateError::io(path, "write", error);
        let mut key = wanted.shared.map_or([0; 16], |shared| shared.key);
        if wanted.shared.is_none() {
            getrandom::fill(&mut key)
                .map_err(|error| StateError::io(path, "read random bytes", error))?;
        }
        let hasher = KeyHasher::with_key(&key);
        let header = FileHeader {
            hash: hasher.algorithm() as u32,
            key,
            known: (wanted.known)(&hasher),
            sets: sets as u64,
            capacity: wanted.capacity as u64,
            generation,
            rule: wanted.limit.text(),
        };
        allocate(file, path, sets)?;
        file.write_all_at(&header.encode(), 0).map_err(io)
    })?;
    Ok(generation)
}
