//! What the user knows of a log.

use std::sync::Arc;

use super::pattern::Pattern;

/// Where to look for what the format does not settle.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hints {
    /// The field with the time, instead of the usual ones.
    pub(crate) time_field: Option<String>,
    /// The field with the client, instead of the usual ones.
    pub(crate) key_field: Option<String>,
    /// The year of the first syslog line.
    pub(crate) year: Option<u32>,
    /// What `--pattern` or `--log-format` says.
    pub(crate) pattern: Option<Arc<Pattern>>,
    /// Whether lines must not be shown.
    pub(crate) private: bool,
}
