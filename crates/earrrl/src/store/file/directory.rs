//! A directory of state files with one hash key and one clock, for the rules of an engine.

use std::path::{Path, PathBuf};

use super::error::StateError;
use super::state_file::{FileSpec, KeyAndClock, Opened, absolute};
use crate::algorithm::Limit;
use crate::algorithm::TokenBucket;
use crate::clock::{Anchor, Nanos};
use crate::cost::Cost;
use crate::parameter::Rate;
use crate::store::table::KeyHasher;

/// The name of the file that holds the directory's hash key and clock. No rule can have this name.
pub(super) const ROOT: &str = "_engine";

/// A directory in which an engine keeps the clients of its rules, each rule in a file of its own.
///
/// The files share one hash key and one clock, which are in the file `_engine.TAG.earrrl`. See
/// [`MemoryEngine::with_state`](crate::MemoryEngine::with_state).
///
/// ```
/// use earrrl::{Engine, MemoryEngine, SystemClock};
/// use earrrl::internal::StateDirectory;
/// # let path = std::env::temp_dir().join(format!("earrrl-states-{}", std::process::id()));
///
/// let directory = StateDirectory::open(&path)?.accept_rules_in_memory(true);
/// let clock = SystemClock::with_anchor(directory.anchor());
/// let engine = MemoryEngine::in_directory(1000, directory, clock)?;
/// engine.prepare("login", &"gcra 1/s burst=5".parse()?)?; // in `login.TAG.earrrl`
/// engine.prepare("quota", &"fixed-window 100/1d".parse()?)?; // in memory
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StateDirectory {
    path: PathBuf,
    /// The file of the hash key and the clock. It stays open and locked.
    root: Opened,
    accepts_other_rules: bool,
}

impl StateDirectory {
    /// Opens a directory, and creates it if only the last part of its path is missing.
    ///
    /// # Errors
    /// Returns an error if the directory or its file cannot be used.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StateError> {
        let path = absolute(path.into());
        let file = path.join(ROOT);
        let limit =
            root_limit().ok_or_else(|| StateError::refused(&path, "rule", "none", "one"))?;
        let wanted = FileSpec {
            path: &file,
            limit: &limit,
            capacity: 1,
            known,
            key: None,
            shared: None,
        };
        let root = super::open(&wanted, |anchor| anchor.wall)?;
        Ok(Self {
            path,
            root,
            accepts_other_rules: false,
        })
    }

    /// Accepts rules whose states are too large for a file. Their clients are kept in memory only,
    /// in each process for itself.
    #[must_use]
    pub fn accept_rules_in_memory(self, accepts: bool) -> Self {
        Self {
            accepts_other_rules: accepts,
            ..self
        }
    }

    /// Returns the anchor of the directory's clock.
    pub fn anchor(&self) -> Anchor {
        self.root.file.shared.anchor
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the hasher of the keys.
    pub(crate) fn hasher(&self) -> KeyHasher {
        self.root.hasher
    }

    /// Records that requests were decided at `now`.
    pub(crate) fn reached(&self, now: Nanos) {
        self.root.file.reached(now);
    }

    /// Returns true if the clients of the limit are kept in memory.
    pub(crate) fn leaves_in_memory(&self, limit: &Limit) -> bool {
        self.accepts_other_rules && !limit.fits_words()
    }

    /// Calls `open` with the file of a rule.
    pub(crate) fn with_file<T>(
        &self,
        name: &str,
        limit: &Limit,
        capacity: usize,
        open: impl FnOnce(&FileSpec<'_>) -> T,
    ) -> T {
        let shared: &KeyAndClock = &self.root.file.shared;
        let key = Some(&shared.key);
        let shared = Some(shared);
        open(&FileSpec {
            path: &self.path.join(name),
            limit,
            capacity,
            known,
            key,
            shared,
        })
    }
}

impl core::fmt::Debug for StateDirectory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("StateDirectory").field(&self.path).finish()
    }
}

/// Returns a limit for the table of the root file, which is never used.
pub(super) fn root_limit() -> Option<Limit> {
    Some(
        TokenBucket::new(Cost::ONE, Rate::per_second(1).ok()?)
            .ok()?
            .into(),
    )
}

/// Hashes a known key as an engine hashes keys.
pub(super) fn known(hasher: &KeyHasher) -> u64 {
    hasher.hash_bytes(b"a known key of some length").bits()
}
