//! State files: tables in files that are mapped into the memory of every process that uses them.
//!
//! # Layout
//! A file has a page with its header, a page with its clock and the shared counters of the table,
//! and then the sets of the table, exactly as they are in memory. Any 128 bits are a valid entry, so
//! a damaged file can cause wrong limits, but no crash.
//!
//! # Use
//! Every process holds a shared lock of the file for as long as it uses it; the kernel releases it
//! when the process dies. A process that finds no other user sweeps the table before anybody else
//! can open the file, since opening takes a lock of the directory.

mod error;
#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
mod header;
#[cfg(target_os = "linux")]
mod holders;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod open;

use std::path::{Path, PathBuf};

pub use error::StateError;

use super::table::{KeyHasher, Swept, Table};
use crate::algorithm::Limit;
use crate::clock::{Anchor, Nanos};

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
    live: live::Live,
    /// The entries that were removed when the file was opened.
    pub(crate) swept: Swept,
    pub(crate) path: PathBuf,
}

impl Wanted<'_> {
    /// Opens the file, or creates it. `now` makes the clock of the given anchor and returns the
    /// present instant.
    #[cfg(target_os = "linux")]
    pub(crate) fn open(&self, now: impl FnOnce(Anchor) -> Nanos) -> Result<Opened, StateError> {
        open::open(self, now)
    }

    /// Returns an error, since only Linux has the locks and clocks that state files need.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn open(&self, _now: impl FnOnce(Anchor) -> Nanos) -> Result<Opened, StateError> {
        Err(StateError::refused(self.path, "system", std::env::consts::OS, "linux"))
    }

    /// Returns the key of the hash for a new file.
    #[cfg(target_os = "linux")]
    fn key(&self) -> Result<[u8; 16], StateError> {
        let mut key = [0; 16];
        getrandom::fill(&mut key)
            .map_err(|error| StateError::io(self.path, "read random bytes", error))?;
        Ok(key)
    }
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
