//! What the user knows of a log.

use std::sync::Arc;

use super::pattern::Pattern;

/// Where to look for what the format does not settle.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// The field with the time, instead of the usual ones.
    pub time_field: Option<String>,
    /// The field with the client, instead of the usual ones.
    pub key_field: Option<String>,
    /// The year of the first syslog line.
    pub year: Option<u32>,
    /// What `--pattern` or `--log-format` says.
    pub pattern: Option<Arc<Pattern>>,
    /// Whether lines must not be shown.
    pub private: bool,
}
