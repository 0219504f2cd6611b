//! An open state file, and the properties that a file must have to be opened.

use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::Arc;

use super::error::StateError;
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
    /// The hash key and the clock of the file's directory, if all files in it share them.
    pub(crate) shared: Option<&'a KeyAndClock>,
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
    pub(super) shared: KeyAndClock,
    /// The entries that were removed when the file was opened.
    pub(crate) swept: Swept,
    pub(crate) path: PathBuf,
}

impl StateFile {
    /// Returns an error unless the file can keep its states, which are under `old`, under `new`.
    pub(crate) fn accept(&self, old: &Limit, new: &Limit) -> Result<(), StateError> {
        if !new.fits_words() {
            return Err(StateError::unsupported(new));
        }
        if !new.keeps_states_of(old) {
            return Err(StateError::refused(&self.path, "rule", new.text(), old.text()));
        }
        Ok(())
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

#[cfg(target_os = "linux")]
impl Drop for StateFile {
    fn drop(&mut self) {
        let (_, boot) = crate::clock::wall_and_boot();
        let Anchor { wall, boot: since, .. } = self.shared.anchor;
        self.reached(wall + std::time::Duration::from_nanos(boot).saturating_sub(since));
    }
}
