//! The reasons why a state file is not used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::vec::Vec;

use crate::algorithm::Limit;

/// The reason why a state file cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The system refused an operation on the file or its directory.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation, such as `open`.
        operation: &'static str,
        /// The system's message.
        error: String,
    },
    /// A property of the file or its directory is not as it must be. Nothing was changed.
    Refused {
        /// The file or directory.
        path: PathBuf,
        /// The property, such as `layout version`.
        field: &'static str,
        /// Its value.
        found: String,
        /// The value or range that would be accepted.
        expected: String,
        /// The processes that use the file, as `pid (command)`.
        holders: Vec<String>,
    },
    /// The states of the rule are too large for a file.
    Unsupported {
        /// The rule.
        rule: String,
        /// The largest quota, in units, with which a file could keep the states; `None` if no file
        /// keeps states of this algorithm.
        largest: Option<u64>,
    },
}

impl StateError {
    pub(super) fn io(path: &Path, operation: &'static str, error: impl fmt::Display) -> Self {
        Self::Io {
            path: path.into(),
            operation,
            error: error.to_string(),
        }
    }

    pub(crate) fn refused(
        path: &Path,
        field: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        let found = found.to_string();
        let expected = expected.to_string();
        Self::Refused {
            path: path.into(),
            field,
            found,
            expected,
            holders: Vec::new(),
        }
    }

    /// Returns an error if no file can keep states under a limit.
    pub(crate) fn accept(limit: &Limit) -> Result<(), Self> {
        if limit.fits_words() {
            return Ok(());
        }
        Err(Self::Unsupported {
            rule: limit.text(),
            largest: limit.largest_in_words(),
        })
    }

    /// Returns an error of the content of a file, which [`of`](Self::of) then names.
    #[cfg(target_os = "linux")]
    pub(super) fn fault(
        field: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self::refused(Path::new(""), field, found, expected)
    }

    /// Names the file whose property is not as it must be, and the processes that use it.
    #[cfg(target_os = "linux")]
    pub(super) fn of(mut self, file: &Path, processes: Vec<String>) -> Self {
        if let Self::Refused { path, holders, .. } = &mut self {
            *path = file.into();
            *holders = processes;
        }
        self
    }

    #[cfg(test)]
    pub(super) fn field(&self) -> &'static str {
        match self {
            Self::Refused { field, .. } => field,
            _ => "",
        }
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io {
                path,
                operation,
                error,
            } => {
                write!(f, "state file {}: {operation}: {error}", path.display())
            }
            Self::Refused {
                path,
                field,
                found,
                expected,
                holders,
            } => {
                write!(
                    f,
                    "state file {}: {field}: {found}; expected {expected}",
                    path.display()
                )?;
                if !holders.is_empty() {
                    write!(f, "; in use by {}", holders.join(", "))?;
                }
                Ok(())
            }
            Self::Unsupported {
                rule,
                largest: Some(largest),
            } => write!(
                f,
                "state file: `{rule}`: the quota is too large for a file; expected at most {largest}"
            ),
            Self::Unsupported {
                rule,
                largest: None,
            } => write!(
                f,
                "state file: `{rule}` keeps its states in memory only; expected recent-average, \
                 token-bucket, gcra, fixed-window or sliding-counter"
            ),
        }
    }
}

impl std::error::Error for StateError {}
