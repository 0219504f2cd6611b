//! Operations on the files of a directory for operators: list, check, copy and remove them. Files are
//! read and not mapped, so these work beside processes that use the files, and on damaged files.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec;
use std::vec::Vec;

use super::directory::{ROOT, StateDirectory, known, root_limit};
use super::error::StateError;
use super::folder::{FileName, Folder, NamedFile, Stem, TEMPORARY};
use super::header::{FileHeader, tag_of};
use super::holders::holders;
use super::live::{Live, Present};
use super::open::{SETS_AT, allocate, check_hash, compare, open_header, stored_limit};
use crate::store::table::{KeyHasher, census};

/// The number of attempts to read files that processes remove meanwhile.
const ATTEMPTS: usize = 100;

/// The bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// A state file, as [`StateDirectory::list`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateSummary {
    /// The file.
    pub path: PathBuf,
    /// The name of the rule, which is the first part of the file's name.
    pub name: String,
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
        while_files_stay(&folder, |files| {
            let root = root(&folder).ok().flatten();
            let summary = |name: &FileName| summary(&folder, name, root.as_ref());
            Ok(files.iter().map(summary).collect())
        })
    }

    /// Copies every file to another directory, which gets no file of a rule that is there already. States that change meanwhile may be copied as they were before or after.
    /// Returns the new files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written, or if the other directory belongs to an
    /// engine with another hash key, which could not use the files.
    pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Vec<PathBuf>, StateError> {
        let from = Folder::open_to_read(from.as_ref())?;
        let to = Folder::create(to.as_ref())?;
        let _locked = to.lock()?;
        let root = root(&to)?;
        let wanted = while_files_stay(&from, |files| {
            let mut wanted = Vec::new();
            for name in files {
                if to.files_of(&name.stem)?.is_empty() {
                    let (source, header) = open_header(&from, name)?;
                    let key = root.as_ref().map(|root| &root.key);
                    source.checked(check_hash(&header, None, key))?;
                    wanted.push((name.clone(), source, header.sets as usize));
                }
            }
            Ok(wanted)
        })?;
        let copied = wanted.into_iter().map(|(name, source, sets)| {
            to.create_file(&name, |target| copy(&source, target, sets))?;
            Ok(to.path_of(&name))
        });
        copied.collect()
    }

    /// Removes unfinished files, the files of the rules in `names`, and files that no process uses while one
    /// uses another file of the same rule, whose states have another meaning. Returns the removed files. A file
    /// that should be removed and cannot be, and a file of `names` that is in use, is an error in the list.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be changed, or has no file of a rule in `names`.
    pub fn prune(
        path: impl AsRef<Path>,
        names: &[String],
    ) -> Result<Vec<Result<PathBuf, StateError>>, StateError> {
        let path = path.as_ref();
        if names.iter().any(|name| name == ROOT) {
            let expected = "the name of a rule: no other file could be used without this one";
            return Err(StateError::refused(path, "rule", ROOT, expected));
        }
        let folder = Folder::open(path)?;
        let _locked = folder.lock()?;
        let files = folder.files()?;
        if let Some(name) = names
            .iter()
            .find(|name| files.iter().all(|file| file.stem.0 != **name))
        {
            let expected = "the name of a rule with a file in this directory";
            return Err(StateError::refused(path, "rule", name, expected));
        }
        let is_unfinished = |name: &String| name.starts_with('.') && name.ends_with(TEMPORARY);
        let unfinished = folder.names()?.into_iter().filter(is_unfinished);
        let mut found: Vec<Result<String, StateError>> = unfinished.map(Ok).collect();
        for name in &files {
            let is_removable = match names.contains(&name.stem.0) {
                true => refuse_used(&folder, name).map(|()| true),
                false => is_replaced(&folder, name, &files),
            };
            match is_removable {
                Ok(true) => found.push(Ok(name.text())),
                Ok(false) => {}
                Err(error) => found.push(Err(error)),
            }
        }
        let remove = |name: Result<String, StateError>| {
            let name = name?;
            folder.remove(&name).map(|_| path.join(&name))
        };
        Ok(found.into_iter().map(remove).collect())
    }
}

/// Calls `read` with the files of a directory, again if processes have removed one meanwhile: its rule has
/// another file then. After many attempts, returns what `read` has found.
fn while_files_stay<T>(
    folder: &Folder,
    mut read: impl FnMut(&[FileName]) -> Result<T, StateError>,
) -> Result<T, StateError> {
    let mut files = folder.files()?;
    for _ in 1..ATTEMPTS {
        let found = read(&files);
        let present = folder.files()?;
        if files.iter().all(|file| present.contains(file)) {
            return found;
        }
        files = present;
    }
    read(&files)
}

/// Returns true if no process uses a file, and one uses another file of the same rule.
fn is_replaced(folder: &Folder, name: &FileName, files: &[FileName]) -> Result<bool, StateError> {
    let mut others = files
        .iter()
        .filter(|other| other.stem == name.stem && *other != name)
        .peekable();
    if others.peek().is_none() || !folder.is_unused(name)? {
        return Ok(false);
    }
    for other in others {
        if !folder.is_unused(other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns an error if a process uses a file.
fn refuse_used(folder: &Folder, name: &FileName) -> Result<(), StateError> {
    if folder.is_unused(name)? {
        return Ok(());
    }
    let used = StateError::fault("processes", "some", "none");
    folder.open_file(name)?.checked(Err(used))
}

/// The hash key and the time of an engine's directory.
struct Root {
    key: [u8; 16],
    time: Live,
}

/// Reads the file that all files of an engine's directory depend on. Returns `None` if there is none.
fn root(folder: &Folder) -> Result<Option<Root>, StateError> {
    let stem = Stem(ROOT.into());
    let files = folder.files_of(&stem)?;
    let name = root_limit().map(|limit| stem.with_tag(tag_of(&limit)));
    let Some(name) = name.filter(|name| files.contains(name)) else {
        return Ok(None);
    };
    let (file, header) = open_header(folder, &name)?;
    Ok(Some(Root {
        key: header.key,
        time: file.doing("read", Live::copy_of(&file.file))?,
    }))
}

/// Returns the reason for which a process that opens the file would refuse it, besides its header.
fn fault(
    header: &FileHeader,
    stem: &Stem,
    time: &Live,
    is_used: bool,
    root: Option<&Root>,
) -> Result<(), StateError> {
    stored_limit(header)?;
    check_hash(
        header,
        root.map(|_| known as fn(&KeyHasher) -> u64),
        root.map(|root| &root.key),
    )?;
    let Some(present) = Present::read() else {
        return Ok(());
    };
    match root.filter(|_| stem.0 != ROOT) {
        None if !is_used => time.renew(&present).map(drop),
        None => time.anchor(&present).map(drop),
        // The first process that opens the file writes the time of the directory into it.
        Some(_) if !is_used => Ok(()),
        Some(root) => compare(&time.anchor(&present)?, &root.time.anchor(&present)?),
    }
}

fn summary(
    folder: &Folder,
    name: &FileName,
    root: Option<&Root>,
) -> Result<StateSummary, StateError> {
    let (file, header) = open_header(folder, name)?;
    let holders = holders(&file.file);
    let time = file.doing("read", Live::copy_of(&file.file))?;
    let is_used = !holders.is_empty();
    file.checked(fault(&header, &name.stem, &time, is_used, root))?;
    let mut bytes = SETS_AT as u64;
    let mut clients = 0;
    let mut claims = 0;
    read_from(&file, bytes, |_, chunk| {
        let found = census(chunk);
        bytes += chunk.len() as u64;
        clients += found.0;
        claims += found.1;
        Ok(())
    })?;
    let name = name.stem.0.clone();
    let limit = header.rule;
    let capacity = header.capacity;
    Ok(StateSummary {
        path: file.path,
        name,
        limit,
        capacity,
        clients,
        claims,
        bytes,
        holders,
    })
}

/// Calls `each` with the bytes of a file from `at` on and their place in the file, a chunk at a time.
fn read_from(
    file: &NamedFile,
    mut at: u64,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), StateError>,
) -> Result<(), StateError> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = file.doing("read", file.file.read_at(&mut chunk, at))?;
        if read == 0 {
            return Ok(());
        }
        each(at, &chunk[..read])?;
        at += read as u64;
    }
}

/// Copies the bytes of a file. The system's own copy may share blocks between both, so that a later write could fail.
fn copy(from: &NamedFile, target: &NamedFile, sets: usize) -> Result<(), StateError> {
    allocate(target, sets)?;
    read_from(from, 0, |at, chunk| {
        target.doing("write", target.file.write_all_at(chunk, at))
    })
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
