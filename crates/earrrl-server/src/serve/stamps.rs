//! Files that are looked at once a second, to see whether they have changed.
//!
//! That sees a file that is replaced, a symbolic link that is turned (as Kubernetes does) and network
//! file systems, where notifications see one of these or none. A change counts once it has stood for a
//! second: a file that is being written is empty for a moment, and a key comes a little after its
//! certificate.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What changes when a file does, or a symbolic link on the way to it.
type Stamp = (PathBuf, SystemTime, u64, u64);

/// What is known of some files.
#[derive(Debug)]
pub(super) struct Stamps {
    /// When they were read.
    read: Vec<Option<Stamp>>,
    /// When they were last looked at.
    seen: Vec<Option<Stamp>>,
}

impl Stamps {
    /// These files have just been read.
    pub(super) fn new(files: &[PathBuf]) -> Self {
        let read = stamps(files);
        Self { seen: read.clone(), read }
    }

    /// Whether they are others than were read, and have not changed since this was last asked. They
    /// count as read then.
    pub(super) fn have_changed(&mut self, files: &[PathBuf]) -> bool {
        let now = stamps(files);
        let settled = now == self.seen;
        self.seen = now;
        let changed = settled && self.seen != self.read;
        if changed {
            self.read.clone_from(&self.seen);
        }
        changed
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(file).ok()?;
    let path = std::fs::canonicalize(file).ok()?;
    Some((path, metadata.modified().ok()?, metadata.len(), metadata.ino()))
}
