//! Operations on the files of a directory for operators: list, check, copy and remove them. Files are
//! read and not mapped, so these work beside processes that use the files, and on damaged files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec;
use std::vec::Vec;

use super::checked::{SETS_AT, allocate, lock, read_header};
use super::directory::StateDirectory;
use super::error::StateError;
use super::folder::{Folder, Stem, TEMPORARY};
use super::header::FileHeader;
use super::holders::holders;
use crate::store::table::census;

/// The bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// A state file, as [`StateDirectory::list`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateSummary {
    /// The file.
    pub path: PathBuf,
    /// The name of the rule, which is the file's name without generation.
    pub name: String,
    /// The number of the generation; the highest one is in use.
    pub generation: u64,
    /// The limit that a process has opened the file with last, or has changed it to.
    pub limit: String,
    /// The number of live clients for which the file was made.
    pub capacity: u64,
    /// The number of stored clients, including idle ones.
    pub clients: usize,
    /// The number of unfinished insertions.
    pub claims: usize,
    /// The size of the file.
    pub bytes: u64,
    /// The other processes that use the file, as `pid (command)`.
    pub holders: Vec<String>,
}

impl StateDirectory {
    /// Reads all state files of a directory. A file that cannot be used is an error in the list.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be used.
    pub fn list(
        path: impl AsRef<Path>,
    ) -> Result<Vec<Result<StateSummary, StateError>>, StateError> {
        let folder = Folder::open_to_read(path.as_ref())?;
        let files = folder.files()?;
        Ok(files.iter().map(|(stem, generation)| summary(&folder, stem, *generation)).collect())
    }

    /// Copies the latest generation of every file to another directory, which gets no file that is
    /// there already. States that change meanwhile may be copied as they were before or after.
    /// Returns the new files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written.
    pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Vec<PathBuf>, StateError> {
        let (from, to) = (Folder::open_to_read(from.as_ref())?, Folder::create(to.as_ref())?);
        let _locked = to.lock()?;
        let mut copied = Vec::new();
        for (stem, generation) in from.files()? {
            if from.latest(&stem)? == Some(generation) && to.latest(&stem)?.is_none() {
                copy(&from, &to, &stem, generation)?;
                copied.push(to.path_of(&stem, generation));
            }
        }
        Ok(copied)
    }

    /// Removes unfinished files, generations before the latest, and the files of the rules in
    /// `names`, unless a process uses them. Returns the removed files.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be changed.
    pub fn prune(path: impl AsRef<Path>, names: &[String]) -> Result<Vec<PathBuf>, StateError> {
        let path = path.as_ref();
        let folder = Folder::open(path)?;
        let _locked = folder.lock()?;
        let mut removed: Vec<String> = folder.names()?;
        removed.retain(|name| name.starts_with('.') && name.ends_with(TEMPORARY));
        for (stem, generation) in folder.files()? {
            let is_old = folder.latest(&stem)? != Some(generation);
            if (is_old || names.contains(&stem.0)) && is_unused(&folder, &stem, generation)? {
                removed.push(stem.name(generation));
            }
        }
        removed.iter().try_for_each(|name| folder.remove(name).map(drop))?;
        Ok(removed.iter().map(|name| path.join(name)).collect())
    }
}

fn is_unused(folder: &Folder, stem: &Stem, generation: u64) -> Result<bool, StateError> {
    let file = folder.open_file(stem, generation)?;
    lock(&file, &folder.path_of(stem, generation))
}

/// Opens a file and reads its header.
fn open(folder: &Folder, stem: &Stem, generation: u64) -> Result<(File, FileHeader), StateError> {
    let (file, path) = (folder.open_file(stem, generation)?, folder.path_of(stem, generation));
    let header = read_header(&file, &path)?.map_err(|fault| {
        let error = StateError::refused(&path, fault.field, fault.found, fault.expected);
        error.held_by(holders(&file))
    })?;
    Ok((file, header))
}

fn summary(folder: &Folder, stem: &Stem, generation: u64) -> Result<StateSummary, StateError> {
    let path = folder.path_of(stem, generation);
    let (file, header) = open(folder, stem, generation)?;
    let (mut bytes, mut clients, mut claims) = (SETS_AT as u64, 0, 0);
    read_sets(&file, &path, |_, chunk| {
        let found = census(chunk);
        bytes += chunk.len() as u64;
        clients += found.0;
        claims += found.1;
        Ok(())
    })?;
    let (name, limit, capacity) = (stem.0.clone(), header.rule, header.capacity);
    let holders = holders(&file);
    Ok(StateSummary { path, name, generation, limit, capacity, clients, claims, bytes, holders })
}

/// Calls `each` with the bytes of the sets and their place in the file, a chunk at a time.
fn read_sets(
    file: &File,
    path: &Path,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), StateError>,
) -> Result<(), StateError> {
    let (mut chunk, mut at) = (vec![0; CHUNK], SETS_AT as u64);
    loop {
        let read = file.read_at(&mut chunk, at);
        let read = read.map_err(|error| StateError::io(path, "read", error))?;
        if read == 0 {
            return Ok(());
        }
        each(at, &chunk[..read])?;
        at += read as u64;
    }
}

fn copy(from: &Folder, to: &Folder, stem: &Stem, generation: u64) -> Result<(), StateError> {
    let (source, header) = open(from, stem, generation)?;
    let source_path = from.path_of(stem, generation);
    to.create_file(stem, generation, |target, path| {
        let io = |error| StateError::io(path, "write", error);
        allocate(target, path, header.sets as usize)?;
        let mut pages = [0; SETS_AT];
        source
            .read_exact_at(&mut pages, 0)
            .map_err(|error| StateError::io(&source_path, "read", error))?;
        target.write_all_at(&pages, 0).map_err(io)?;
        read_sets(&source, &source_path, |at, chunk| target.write_all_at(chunk, at).map_err(io))
    })
}
