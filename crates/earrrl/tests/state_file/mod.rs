//! State files: limits that several processes share, and that outlive them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod changed;
mod cleared;
mod damage;
mod engine;
mod killed;
mod opening;
mod process;

use std::path::{Path, PathBuf};
use std::sync::RwLockReadGuard;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use earrrl::internal::StateDirectory;
use earrrl::{BuildError, Limiter, Rule, StateError};

use crate::starts::no_starts;

/// A bucket that refills too slowly to matter within a test.
const BUCKET: &str = "token-bucket 5 refill=1/d";
/// A recent average that admits 5 requests and decays too slowly to matter within a test.
const AVERAGE: &str = "recent-average 4/30d period=30d leaky";

/// A rule of every algorithm whose states are in files: each admits 5 requests.
const FIVE: [&str; 7] = [
    BUCKET,
    "gcra 1/d burst=5",
    AVERAGE,
    "fixed-window 5/3650d",
    "fixed-window 5/year tz=Asia/Kolkata",
    "sliding-counter 5/3650d",
    "sliding-counter 5/3650d strict",
];

/// The capacity of files that several processes share.
const CAPACITY: usize = 1 << 15;

/// A directory that is removed at the end of a test.
struct Scratch(PathBuf, Option<RwLockReadGuard<'static, ()>>);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "earrrl-state-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        assert!(!path.exists());
        Self(path, None)
    }

    /// Returns a directory for a test that notices other users of its files.
    fn alone() -> Self {
        let mut scratch = Self::new();
        scratch.1 = Some(no_starts());
        scratch
    }

    /// Returns the path that a limiter is given.
    fn path(&self) -> PathBuf {
        self.0.join("login.earrrl")
    }

    /// Returns the path of the only file of the rule.
    fn file(&self) -> PathBuf {
        let [file] = &self.files_of("login")[..] else {
            panic!("{:?}", self.files_of("login"))
        };
        file.clone()
    }

    /// Returns the paths of the files of a rule, which have its name and a tag.
    fn files_of(&self, rule: &str) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.0).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let is_of_rule = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let tag = name
                .strip_prefix(rule)
                .and_then(|rest| rest.strip_prefix('.'));
            tag.and_then(|tag| tag.strip_suffix(".earrrl"))
                .is_some_and(|tag| tag.len() == 8)
        };
        files.filter(is_of_rule).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(rule: &str, path: &Path, capacity: usize) -> Result<Limiter<u64>, BuildError> {
    let rule: Rule = rule.parse().unwrap();
    Limiter::builder(rule)
        .capacity(capacity)
        .state_file(path)
        .build()
}

/// Prunes a directory, and returns the removed files.
fn pruned(scratch: &Scratch, names: &[String]) -> Vec<PathBuf> {
    let pruned = StateDirectory::prune(&scratch.0, names).unwrap();
    pruned.into_iter().map(Result::unwrap).collect()
}

/// Returns the field that an error names, and the error's text.
fn field(result: Result<Limiter<u64>, BuildError>) -> (String, String) {
    match result {
        Err(BuildError::State(error)) => {
            let text = error.to_string();
            match error {
                StateError::Refused { field, .. } => (field.to_string(), text),
                _ => (String::new(), text),
            }
        }
        Err(error) => panic!("{error}"),
        Ok(_) => ("accepted".to_string(), String::new()),
    }
}
