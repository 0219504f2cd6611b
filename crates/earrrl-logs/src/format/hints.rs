//! Details of a log that the user gives.

use std::sync::Arc;

use super::pattern::LinePattern;

/// The user's settings for details that the format leaves open.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// The field with the time, instead of the usual ones.
    pub time_field: Option<String>,
    /// The field with the client, instead of the usual ones.
    pub key_field: Option<String>,
    /// The year of the first syslog line.
    pub year: Option<u32>,
    /// The pattern of `--pattern` or `--log-format`.
    pub pattern: Option<Arc<LinePattern>>,
    /// True if lines must not be shown.
    pub private: bool,
}
