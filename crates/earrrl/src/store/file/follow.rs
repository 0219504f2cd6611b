//! The use of a file of which another process has made the next generation, or this one has.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::vec::Vec;

use super::checked::{Access, CheckedFile};
use super::error::StateError;
use super::folder::{Folder, Stem};
use super::open::with_predecessors;
use super::predecessor::Predecessor;
use super::state_file::{FileSpec, Opened, StateFile};
use super::tools::is_unused;
use crate::algorithm::Limit;
use crate::clock::Nanos;

/// The number of attempts to open the latest generation, a millisecond apart. An attempt fails, for
/// example, if the file that was found is removed before it is opened.
const ATTEMPTS: usize = 100;

impl StateFile {
    /// Seals the earlier generations, so that all processes go on in this one. To be called once
    /// this process decides requests in this generation only.
    pub(crate) fn begin(&self, now: Nanos) {
        self.seal_earlier();
        if let Some(predecessors) = &*self.predecessors() {
            predecessors.iter().for_each(|one| one.freeze_all());
        }
        self.tidy(now);
    }

    fn seal_earlier(&self) {
        if let Some(predecessors) = &*self.predecessors() {
            predecessors.iter().rev().for_each(|one| one.seal());
        }
    }

    /// Forgets the earlier generations that have no clients any more, and removes their files, unless
    /// other processes use them.
    pub(crate) fn tidy(&self, now: Nanos) {
        if !self.has_earlier.load(Relaxed) {
            return;
        }
        let known = self.predecessors.load_full().unwrap_or_default();
        let mut left = Vec::clone(&known);
        left.retain(|one| !one.is_empty(now));
        if left.len() < known.len() {
            self.predecessors
                .store((!left.is_empty()).then(|| Arc::new(left.clone())));
        }
        drop(known);
        // A file that cannot be removed now is removed later, or by the next start.
        let has_earlier = self.remove_earlier(&left).unwrap_or(true);
        self.has_earlier.store(has_earlier, Relaxed);
    }

    /// Removes the files of earlier generations, but for those in `needed` and those that processes use. Returns
    /// true if any is left.
    ///
    /// The earliest is removed first: where a generation is missing, clients move from the latest one before it,
    /// which must not be one whose clients were converted.
    fn remove_earlier(&self, needed: &[Arc<Predecessor>]) -> Result<bool, StateError> {
        let (folder, stem, own) = self.place()?;
        let _locked = folder.lock()?;
        let mut is_any_left = false;
        let mut is_any_kept = false;
        for generation in folder
            .generations(&stem)?
            .into_iter()
            .filter(|one| *one < own)
        {
            if needed.iter().any(|one| one.generation == generation) {
                is_any_left = true;
            } else if is_any_kept || !is_unused(&folder, &stem, generation)? {
                (is_any_left, is_any_kept) = (true, true);
            } else {
                folder.remove(&stem.name(generation))?;
            }
        }
        Ok(is_any_left)
    }

    /// Opens the latest generation, for a process that uses this one, which is sealed. Returns it with
    /// its limit.
    ///
    /// The directory is not locked: the lock may be held by a process that is stopped, and a request waits
    /// for the answer. No process can hold an exclusive lock of the file, since this process uses an
    /// earlier generation.
    pub(crate) fn follow(&self, limit: &Limit) -> Result<(Limit, Opened), StateError> {
        // The later generation looks for clients in the earlier ones, and they need not be open twice.
        self.predecessors.store(None);
        for _ in 1..ATTEMPTS {
            if let Ok(latest) = self.open_latest(limit) {
                return Ok(latest);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.open_latest(limit)
    }

    fn open_latest(&self, limit: &Limit) -> Result<(Limit, Opened), StateError> {
        let (folder, stem, own) = self.place()?;
        let latest = folder.latest(&stem)?.filter(|latest| *latest > own);
        let latest = latest.ok_or_else(|| {
            StateError::refused(
                &self.path,
                "generation",
                own,
                "a later one, since this is sealed",
            )
        })?;
        self.continued(limit, 1, |wanted| {
            let file = CheckedFile::open(&folder, &stem, latest, wanted, Access::Shared)?;
            let limit = file.limit;
            let capacity = file.header.capacity as usize;
            let found = FileSpec {
                limit: &limit,
                capacity,
                ..*wanted
            };
            let opened = with_predecessors(&folder, &stem, file, &found, |anchor| anchor.wall)?;
            // The process that has made the latest generation may not have sealed the one before yet.
            opened.file.seal_earlier();
            Ok((limit, opened))
        })
    }

    /// Returns the directory of the file, its name, and its generation.
    fn place(&self) -> Result<(Folder, Stem, u64), StateError> {
        let name = self
            .path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let named = Stem::split(name);
        let (stem, generation) = named
            .ok_or_else(|| StateError::refused(&self.path, "name", name, "that of a state file"))?;
        let folder = Folder::open(self.path.parent().unwrap_or(Path::new(".")))?;
        Ok((folder, stem, generation))
    }
}
