//! Creating state files: the first generation, and one to which the clients of another move.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::checked::{CheckedFile, allocate};
use super::error::StateError;
use super::folder::{Folder, Stem};
use super::header::{FIXED, FileHeader};
use super::live::WORDS;
use super::state_file::FileSpec;
use crate::store::table::{KeyHasher, sets_for};

/// Creates the first generation of a file, and returns its number.
pub(super) fn create(
    folder: &Folder,
    stem: &Stem,
    wanted: &FileSpec<'_>,
) -> Result<u64, StateError> {
    let sets = sets_for(wanted.capacity);
    let generation = 1;
    folder.create_file(stem, generation, |file, path| {
        let mut key = wanted.key.copied().unwrap_or_default();
        if wanted.key.is_none() {
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
            moves_from: 0,
            rule: wanted.limit.text(),
        };
        write(file, path, &header, None)
    })?;
    Ok(generation)
}

/// Creates the next generation of a file, which clients move to when they are met, and returns its
/// number.
pub(super) fn succeed(
    folder: &Folder,
    stem: &Stem,
    old: &CheckedFile,
    wanted: &FileSpec<'_>,
) -> Result<u64, StateError> {
    let sets = sets_for(wanted.capacity);
    let generation = old.header.generation + 1;
    let header = FileHeader {
        sets: sets as u64,
        capacity: wanted.capacity as u64,
        generation,
        moves_from: old.header.generation,
        rule: wanted.limit.text(),
        ..old.header.clone()
    };
    let path = folder.path_of(stem, old.header.generation);
    folder.create_file(stem, generation, |file, new| {
        write(file, new, &header, Some((&old.file, &path)))
    })?;
    Ok(generation)
}

/// Writes the header of an empty file, and the clock of another file.
pub(super) fn write(
    file: &File,
    path: &Path,
    header: &FileHeader,
    clock_of: Option<(&File, &Path)>,
) -> Result<(), StateError> {
    let io = |error: std::io::Error| StateError::io(path, "write", error);
    allocate(file, path, header.sets as usize)?;
    file.write_all_at(&header.encode(), 0).map_err(io)?;
    let Some((source, source_path)) = clock_of else {
        return Ok(());
    };
    let mut clock = [0; 8 * WORDS];
    source
        .read_exact_at(&mut clock, FIXED as u64)
        .map_err(|error| StateError::io(source_path, "read", error))?;
    file.write_all_at(&clock, FIXED as u64).map_err(io)
}
