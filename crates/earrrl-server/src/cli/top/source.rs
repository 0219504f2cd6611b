//! The source of what the screen shows, and the messages between the two.

use super::snapshot::TopSnapshot;

/// The source of the snapshots.
pub(super) trait ClientSource: Send {
    /// Returns the present state, with the clients of the named rule or of the first one.
    fn snapshot(&mut self, rule: Option<&str>, limit: usize) -> Result<TopSnapshot, String>;

    /// Resets a client.
    fn reset(&mut self, rule: &str, key: &[u8]) -> Result<(), String>;
}

/// A request of the screen to the thread that reads the source.
pub(super) enum ScreenRequest {
    /// Show this rule from now on.
    Show(String),
    /// Reset the client of this rule and key.
    Reset(String, Vec<u8>),
}

/// A message of the thread that reads the source to the screen.
pub(super) enum Update {
    /// The present state, or the reason why it is not known.
    State(Result<TopSnapshot, String>),
    /// A client was not reset, for this reason.
    NotReset(String),
}
