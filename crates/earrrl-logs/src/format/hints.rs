//! Details of a log that the user specifies.

use std::sync::Arc;

use super::pattern::LinePattern;

/// The user's settings for details that a log format leaves open.
///
/// ```
/// use earrrl_logs::format::Hints;
///
/// let syslog_of_2024 = Hints { year: Some(2024), ..Hints::default() };
/// # let _ = syslog_of_2024;
/// ```
#[derive(Debug, Clone, Default)]
pub struct Hints {
    /// The name of the field with the time, which replaces the usual names.
    pub time_field: Option<String>,
    /// The name of the field with the client, which replaces the usual names.
    pub key_field: Option<String>,
    /// The year of the first syslog line, since syslog lines contain no year.
    pub year: Option<u32>,
    /// The pattern of `--pattern` or `--log-format`.
    pub pattern: Option<Arc<LinePattern>>,
    /// True if the output must not show lines of the log.
    pub private: bool,
}
