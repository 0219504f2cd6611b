//! An open state file, and the properties that a file must have to be opened.

use std::path::{Path, PathBuf};

use super::error::StateError;
#[cfg(target_os = "linux")]
use super::live::Live;
use crate::algorithm::Limit;
use crate::clock::Nanos;
use crate::store::table::{KeyHasher, Swept, Table};

/// The properties that a state file must have.
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a Path,
    pub(crate) limit: &'a Limit,
    pub(crate) capacity: usize,
    /// Hashes a known key of the type of the limiter's keys.
    pub(crate) known: fn(&KeyHasher) -> u64,
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
    #[cfg(target_os = "linux")]
    pub(super) live: Live,
    /// The entries that were removed when the file was opened.
    pub(crate) swept: Swept,
    pub(crate) path: PathBuf,
}

impl StateFile {
    /// Returns the error that states under `new` differ from those under `old`, the file's limit.
    pub(crate) fn refuses(&self, old: &Limit, new: &Limit) -> StateError {
        StateError::refused(&self.path, "rule", new.text(), old.text())
    }

    /// Records that requests were decided at `now`, so that time does not go back after a restart of
    /// the machine.
    #[inline]
    pub(crate) fn reached(&self, now: Nanos) {
        #[cfg(target_os = "linux")]
        self.live.reached(now.get());
        #[cfg(not(target_os = "linux"))]
        let _ = now;
    }
}
