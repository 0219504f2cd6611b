//! Opening state files.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use super::checked::{Access, CheckedFile};
use super::convert::convert;
use super::create::{create, succeed};
use super::error::StateError;
use super::folder::{Folder, Stem};
use super::predecessor::Predecessor;
use super::state_file::{FileSpec, Opened};
use super::tools::are_unused;
use crate::clock::{Anchor, Nanos};
use crate::store::table::Seal;

/// Opens the latest generation of a state file, or creates the first one. If the wanted limit gives
/// states another meaning or the capacity differs, creates the next generation. `now` makes the clock
/// of the given anchor and returns the present instant.
///
/// A file that gets a successor here is not sealed yet; see [`StateFile::begin`].
///
/// [`StateFile::begin`]: super::StateFile::begin
pub(crate) fn open(
    wanted: &FileSpec<'_>,
    now: impl FnOnce(Anchor) -> Nanos,
) -> Result<Opened, StateError> {
    let path = wanted.path;
    let limit = wanted.limit;
    StateError::accept(limit)?;
    let stem = Stem::of(path)?;
    let folder = Folder::of(path, &stem)?;
    let _locked = folder.lock()?;
    let mut generations = folder.generations(&stem)?;
    let latest = match generations.pop() {
        Some(latest) => latest,
        None => create(&folder, &stem, wanted)?,
    };
    let file = CheckedFile::open(
        &folder,
        &stem,
        latest,
        wanted,
        access(&folder, &stem, &generations)?,
    )?;
    if file.keeps_states(wanted)? {
        return with_predecessors(&folder, &stem, file, wanted, now);
    }
    let before = file.limit;
    let mut opened = open_next(&folder, &stem, file, wanted, now)?;
    if !limit.is_of_the_algorithm_of(&before) {
        opened.file.superseded = Mutex::new(Some(before));
    }
    Ok(opened)
}

/// Creates and opens the next generation of a file. Clients of another algorithm stay in the generation
/// before, where a change back finds those that were not met meanwhile.
fn open_next(
    folder: &Folder,
    stem: &Stem,
    file: CheckedFile,
    wanted: &FileSpec<'_>,
    now: impl FnOnce(Anchor) -> Nanos,
) -> Result<Opened, StateError> {
    if !file.is_alone {
        let next = succeed(folder, stem, &file, wanted)?;
        let file = CheckedFile::open(folder, stem, next, wanted, Access::Shared)?;
        return with_predecessors(folder, stem, file, wanted, now);
    }
    let mut instant = Nanos::ZERO;
    let remember = |anchor| {
        instant = now(anchor);
        instant
    };
    let is_converted = wanted.limit.is_of_the_algorithm_of(&file.limit);
    let next = if is_converted && file.has_sets_for(wanted) {
        convert(folder, stem, file, wanted, remember)?
    } else {
        // The clock may be that of another boot.
        succeed(folder, stem, &file.renewed(wanted, remember)?, wanted)?
    };
    let file = CheckedFile::open(folder, stem, next, wanted, Access::AloneIfUnused)?;
    with_predecessors(folder, stem, file, wanted, |_| instant)
}

/// Returns the lock to try for the latest generation of a file. A process that uses an earlier one
/// may go on in the latest one at any moment, so it must find no exclusive lock.
fn access(folder: &Folder, stem: &Stem, earlier: &[u64]) -> Result<Access, StateError> {
    let are_unused = are_unused(folder, stem, earlier)?;
    Ok(if are_unused {
        Access::AloneIfUnused
    } else {
        Access::Shared
    })
}

/// Maps a file, and the earlier generations in which clients may still be. Sweeps all of them if no other
/// process uses one.
pub(super) fn with_predecessors(
    folder: &Folder,
    stem: &Stem,
    file: CheckedFile,
    wanted: &FileSpec<'_>,
    now: impl FnOnce(Anchor) -> Nanos,
) -> Result<Opened, StateError> {
    let generations = folder.generations(stem)?;
    let mut later = file.header.generation;
    let mut from = file.header.moves_from;
    let is_alone = file.is_alone;
    let mut instant = Nanos::ZERO;
    let mut opened = file.map(wanted, |anchor| {
        instant = now(anchor);
        instant
    })?;
    let mut predecessors: Vec<Arc<Predecessor>> = Vec::new();
    while let Some(generation) = Folder::before(&generations, later, from) {
        let earlier = CheckedFile::open(folder, stem, generation, wanted, Access::Shared)?;
        (later, from) = (generation, earlier.header.moves_from);
        if earlier.seal()? != Seal::Emptied {
            let earlier = earlier.into_predecessor()?;
            if is_alone {
                opened.file.swept += earlier.sweep(instant);
            }
            predecessors.push(Arc::new(earlier));
        }
    }
    if !predecessors.is_empty() {
        opened.file.predecessors.store(Some(Arc::new(predecessors)));
    }
    opened
        .file
        .has_earlier
        .store(generations.len() > 1, Relaxed);
    Ok(opened)
}
