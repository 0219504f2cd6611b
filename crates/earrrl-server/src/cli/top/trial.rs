//! Rules that are tried on the requests of a log.

use earrrl_logs::reading::{ClientNumbers, LoggedRequest};

use super::snapshot::TopSnapshot;

/// Rules that are tried on the requests of a log. Time is that of the log's latest request.
pub(super) trait LogTrial: Send {
    /// Decides a request.
    fn take(&mut self, clients: &ClientNumbers, request: LoggedRequest);

    /// Returns the state after the requests so far.
    fn snapshot(&self, rule: Option<&str>, limit: usize) -> Result<TopSnapshot, String>;

    /// Resets a client.
    fn reset(&mut self, rule: &str, key: &[u8]) -> Result<(), String>;
}
