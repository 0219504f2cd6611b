//! An open state file, and the properties that a file must have to be opened.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::vec::Vec;

use arc_swap::{ArcSwapOption, Guard};

use super::error::StateError;
#[cfg(target_os = "linux")]
use super::live::Live;
use super::predecessor::Predecessor;
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
    pub(super) shared: KeyAndClock,
    /// True if the hash key and the clock are those of the file's directory.
    is_shared: bool,
    known: fn(&KeyHasher) -> u64,
    /// The entries that were removed when the file was opened.
    pub(crate) swept: Swept,
    /// The limit of the generation before, if this one was made for another algorithm.
    pub(super) superseded: Mutex<Option<Limit>>,
    /// The earlier generations in which clients may still be, the latest one first.
    pub(super) predecessors: ArcSwapOption<Vec<Arc<Predecessor>>>,
    /// True if the directory may have files of earlier generations.
    pub(super) has_earlier: AtomicBool,
    /// The reason why this process could not go on in a later generation.
    pub(crate) fault: OnceLock<StateError>,
}

impl StateFile {
    pub(super) fn new(
        path: PathBuf,
        shared: KeyAndClock,
        is_shared: bool,
        known: fn(&KeyHasher) -> u64,
        swept: Swept,
    ) -> Self {
        let predecessors = ArcSwapOption::empty();
        let has_earlier = AtomicBool::new(false);
        let superseded = Mutex::default();
        let fault = OnceLock::new();
        Self {
            path,
            shared,
            is_shared,
            known,
            swept,
            superseded,
            predecessors,
            has_earlier,
            fault,
        }
    }

    /// Calls `open` with the properties of a file that continues this one under a limit. It must have the same
    /// hash key, as this process would not find its clients in another file at the path.
    pub(crate) fn continued<T>(
        &self,
        limit: &Limit,
        capacity: usize,
        open: impl FnOnce(&FileSpec<'_>) -> T,
    ) -> T {
        // `login` of `login.1.earrrl`.
        let path = self.path.with_extension("").with_extension("");
        let shared = self.is_shared.then_some(&self.shared);
        let known = self.known;
        let key = Some(&self.shared.key);
        open(&FileSpec {
            path: &path,
            limit,
            capacity,
            known,
            key,
            shared,
        })
    }

    /// Returns the limit whose clients this process has left behind, since the rule has another algorithm now.
    /// Only the first call returns it.
    pub(crate) fn take_superseded(&self) -> Option<Limit> {
        self.superseded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Returns the number of clients in earlier generations.
    pub(crate) fn earlier_clients(&self) -> usize {
        let earlier = self.predecessors();
        earlier
            .iter()
            .flat_map(|earlier| earlier.iter())
            .map(|one| one.clients.len())
            .sum()
    }

    /// Returns the earlier generations in which clients may still be.
    pub(crate) fn predecessors(&self) -> Guard<Option<Arc<Vec<Arc<Predecessor>>>>> {
        self.predecessors.load()
    }

    /// Writes the text of a rule that the file has accepted, for operators and later starts. A file
    /// that cannot be written keeps a text under which its states have the same meaning.
    pub(crate) fn write_rule(&self, limit: &Limit) {
        #[cfg(target_os = "linux")]
        let _ = super::rule_text::replace(&self.path, &limit.text());
        #[cfg(not(target_os = "linux"))]
        let _ = limit;
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

#[cfg(not(target_os = "linux"))]
impl StateFile {
    /// Does nothing, since this system has no state files.
    pub(crate) fn begin(&self, _now: Nanos) {}

    /// Does nothing, since this system has no state files.
    pub(crate) fn tidy(&self, _now: Nanos) {}

    /// Returns an error, since this system has no state files.
    pub(crate) fn follow(&self, _limit: &Limit) -> Result<(Limit, Opened), StateError> {
        Err(StateError::refused(
            &self.path,
            "system",
            std::env::consts::OS,
            "linux",
        ))
    }
}

#[cfg(target_os = "linux")]
impl Drop for StateFile {
    fn drop(&mut self) {
        let (_, boot) = crate::clock::wall_and_boot();
        let Anchor {
            wall, boot: since, ..
        } = self.shared.anchor;
        self.reached(wall + std::time::Duration::from_nanos(boot).saturating_sub(since));
    }
}
