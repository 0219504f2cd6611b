//! An open state file, and the properties that a file must have to be opened.

#[cfg(target_os = "linux")]
use std::fs::File;
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::vec::Vec;

use super::error::StateError;
#[cfg(target_os = "linux")]
use super::folder::{FileName, Folder, NamedFile};
#[cfg(target_os = "linux")]
use super::live::Live;
use crate::algorithm::Limit;
use crate::clock::{Anchor, Nanos};
use crate::store::table::{KeyHasher, Swept, Table};

/// The properties that a state file must have.
#[derive(Clone, Copy)]
pub(crate) struct FileSpec<'a> {
    pub(crate) path: &'a Path,
    pub(crate) limit: &'a Limit,
    pub(crate) capacity: usize,
    /// Hashes a known key of the type of the limiter's keys.
    pub(crate) known: fn(&KeyHasher) -> u64,
    /// The hash key that the file must have; `None` for any key, and a random one for a new file.
    pub(crate) key: Option<&'a [u8; 16]>,
    /// The clock of the file's directory, with its hash key, if all files in it share them.
    pub(crate) shared: Option<&'a KeyAndClock>,
}

/// Returns a path that stays the same when the process changes its working directory.
pub(crate) fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// The hash key and the clock of a file, which other files can share.
#[derive(Clone)]
pub(crate) struct KeyAndClock {
    pub(super) key: [u8; 16],
    pub(super) anchor: Anchor,
    #[cfg(target_os = "linux")]
    pub(super) live: Arc<Live>,
}

/// A state file that is open.
pub(crate) struct Opened {
    pub(crate) table: Table,
    /// The hasher of the file's keys.
    pub(crate) hasher: KeyHasher,
    pub(crate) file: StateFile,
}

/// The parts of an open state file besides its table.
pub(crate) struct StateFile {
    pub(crate) path: PathBuf,
    #[cfg(target_os = "linux")]
    file: Arc<File>,
    pub(super) shared: KeyAndClock,
    /// True if the hash key and the clock are those of the file's directory.
    is_shared: bool,
    known: fn(&KeyHasher) -> u64,
    /// The entries that were removed when the file was opened.
    pub(crate) swept: Swept,
    /// The limit of the rule's file that keeps states of another meaning, if this file was created beside it.
    pub(crate) before: Option<String>,
    /// The other processes that use the file, if it would have to be copied to have the wanted capacity.
    pub(crate) busy: Vec<String>,
    /// True if files with states of another meaning may be left.
    pub(super) has_others: AtomicBool,
}

impl StateFile {
    #[cfg(target_os = "linux")]
    pub(super) fn new(
        NamedFile { path, file }: NamedFile,
        shared: KeyAndClock,
        wanted: &FileSpec<'_>,
        swept: Swept,
    ) -> Self {
        Self {
            path,
            file,
            shared,
            is_shared: wanted.shared.is_some(),
            known: wanted.known,
            swept,
            before: None,
            busy: Vec::new(),
            has_others: AtomicBool::new(false),
        }
    }

    /// Calls `open` with the properties of the file for a limit that gives states another meaning. It must have
    /// the same hash key, as this process would not find its clients in another file.
    pub(crate) fn continued<T>(
        &self,
        limit: &Limit,
        capacity: usize,
        open: impl FnOnce(&FileSpec<'_>) -> T,
    ) -> T {
        // `login` of `login.1f2e3d4c.earrrl`.
        let path = self.path.with_extension("").with_extension("");
        open(&FileSpec {
            path: &path,
            limit,
            capacity,
            known: self.known,
            key: Some(&self.shared.key),
            shared: self.is_shared.then_some(&self.shared),
        })
    }

    /// Writes the text of a rule under which the file is used, for operators and later starts. A file that
    /// cannot be written keeps a text under which its states have the same meaning.
    pub(crate) fn write_rule(&self, limit: &Limit) {
        #[cfg(target_os = "linux")]
        let _ = super::rule_text::write(&self.file, &limit.text());
        #[cfg(not(target_os = "linux"))]
        let _ = limit;
    }

    /// Removes the rule's files with states of another meaning that no process uses any more.
    pub(crate) fn tidy(&self) {
        #[cfg(target_os = "linux")]
        if self.has_others.load(Relaxed) {
            // A file that cannot be removed now is removed later, or by the next start.
            let are_left = self.remove_others().unwrap_or(true);
            self.has_others.store(are_left, Relaxed);
        }
    }

    #[cfg(target_os = "linux")]
    fn remove_others(&self) -> Result<bool, StateError> {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let Some(own) = name.and_then(FileName::parse) else {
            return Ok(false);
        };
        let folder = Folder::open(self.path.parent().unwrap_or(Path::new(".")))?;
        let _locked = folder.lock()?;
        folder.remove_others(&own)
    }

    /// Records that requests were decided at `now`, so that time does not go back after a restart of
    /// the machine.
    #[inline]
    pub(crate) fn reached(&self, now: Nanos) {
        #[cfg(target_os = "linux")]
        self.shared.live.reached(now.get());
        #[cfg(not(target_os = "linux"))]
        let _ = now;
    }
}

#[cfg(target_os = "linux")]
impl Drop for StateFile {
    fn drop(&mut self) {
        let Anchor { wall, boot, .. } = self.shared.anchor;
        let now = Nanos::new(crate::clock::boot());
        self.reached(wall + now.since(boot));
    }
}
