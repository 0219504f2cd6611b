//! The place where overrides are kept beyond the life of the process, and shared with other servers: a file in the state
//! directory, or Redis.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use earrrl::EngineError;
use earrrl_redis::{SharedEntries, SharedEntry};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use super::override_table::{OverrideChange, OverrideKey, RunTimeOverride};
use crate::config::{MAX_FILE_LEN, read_bytes};
use crate::engine::redis::Redis;

/// The file of the overrides, of its lock, and of the next version of it.
const FILE: &str = "overrides.json";
const LOCK: &str = "overrides.lock";
const NEXT: &str = "overrides.tmp";

/// The device, number, length and time of a file, which are others once it was replaced.
type Stamp = [i128; 5];

/// The file in a state directory that has all overrides. Servers that share the directory replace it as a whole.
#[derive(Debug)]
pub(super) struct OverridesFile {
    directory: PathBuf,
    /// The stamp of the file that was read last.
    seen: Option<Stamp>,
}

impl OverridesFile {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            seen: None,
        }
    }

    /// Returns the overrides if the file was replaced since it was read last.
    pub(super) fn read_changed(&mut self) -> Result<Option<Vec<RunTimeOverride>>, String> {
        let path = self.directory.join(FILE);
        let stamp = match fs::metadata(&path) {
            Ok(metadata) => Some(stamp(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        if stamp == self.seen {
            return Ok(None);
        }
        self.seen = stamp;
        self.read().map(Some)
    }

    fn read(&self) -> Result<Vec<RunTimeOverride>, String> {
        let path = self.directory.join(FILE);
        let failed = |error: String| format!("{}: {error}", path.display());
        match read_bytes(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Applies changes to the file, which is on the disk when this returns.
    pub(super) fn change(&self, changes: &[OverrideChange]) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", self.directory.display());
        let lock = self.open(LOCK).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let sets = self.read()?.into_iter().map(|set| (set.id(), set));
        let mut all: BTreeMap<OverrideKey, RunTimeOverride> = sets.collect();
        changes.iter().for_each(|change| change.apply(&mut all));
        let all: Vec<_> = all.into_values().collect();
        let text = serde_json::to_vec(&all).map_err(|error| failed(error.into()))?;
        if text.len() as u64 > MAX_FILE_LEN {
            return Err(format!(
                "overrides: {} bytes; at most {MAX_FILE_LEN}",
                text.len()
            ));
        }
        self.write(&text).map_err(failed)
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        let next = self.directory.join(NEXT);
        let mut file = self.open(NEXT)?;
        file.set_len(0)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(next, self.directory.join(FILE))?;
        File::open(&self.directory)?.sync_all()
    }

    fn open(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(self.directory.join(name))
    }
}

fn stamp(file: &Metadata) -> Stamp {
    [
        file.dev().into(),
        file.ino().into(),
        file.len().into(),
        file.mtime().into(),
        file.mtime_nsec().into(),
    ]
}

/// Applies changes to the overrides in Redis.
pub(super) async fn change_in_redis(
    redis: &Redis,
    changes: &[OverrideChange],
) -> Result<(), EngineError> {
    for change in changes {
        let name = json(&change.id())?;
        let entry = match change {
            OverrideChange::Set(set) => SharedEntry::Set(json(set)?),
            OverrideChange::Remove(_) => SharedEntry::Remove,
            OverrideChange::Expire(set) => SharedEntry::RemoveIf(json(set)?),
        };
        redis.share(&name, &entry).await?;
    }
    Ok(())
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, EngineError> {
    serde_json::to_vec(value).map_err(|error| EngineError::Unavailable(error.to_string()))
}

/// Returns the overrides in Redis and their version, unless that is `known`. Entries that cannot be read are left out.
pub(super) async fn read_from_redis(
    redis: &Redis,
    known: Option<u64>,
) -> Result<Option<(u64, Vec<RunTimeOverride>)>, EngineError> {
    let read = |entries: SharedEntries| {
        let sets = entries.texts.iter();
        let sets = sets.filter_map(|text| serde_json::from_slice(text).ok());
        (entries.version, sets.collect())
    };
    Ok(redis.shared_entries(known).await?.map(read))
}
