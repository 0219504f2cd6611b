//! Files that are checked for changes once a second.
//!
//! This detects replaced files, changed symbolic links (as Kubernetes uses) and changes on network
//! file systems, while notifications miss some of these. A change counts once the file has been
//! unchanged for a second, since a file that is being written may be empty for a moment, and a
//! private key may be written a little later than its certificate.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::{Interval, MissedTickBehavior, interval};

/// The properties of a file that change when the file, or a symbolic link on the way to it, does.
#[derive(Clone, Debug, PartialEq)]
struct Stamp {
    path: PathBuf,
    modified: SystemTime,
    len: u64,
    inode: u64,
}

/// The stamps of a set of files, in the order of the files.
#[derive(Debug)]
pub(super) struct Stamps {
    /// The stamps of the files when they were last read.
    read: Vec<Option<Stamp>>,
    /// The stamps of the files at the last check.
    seen: Vec<Option<Stamp>>,
}

impl Stamps {
    /// Records the stamps of files that have just been read.
    pub(super) fn new(files: &[PathBuf]) -> Self {
        let read = stamps(files);
        Self {
            seen: read.clone(),
            read,
        }
    }

    /// Returns true if the files differ from those that were read, and have not changed since the
    /// last call. The files are then recorded as read.
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
    let modified = metadata.modified().ok()?;
    Some(Stamp {
        path,
        modified,
        len: metadata.len(),
        inode: metadata.ino(),
    })
}

/// Returns a timer that ticks every second. After a late tick, the next one comes a full second
/// later.
pub(super) fn each_second() -> Interval {
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds
}
