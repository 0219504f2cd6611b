//! One request of a log.

use earrrl::Cost;

/// Requests whose clients and states are looked for together.
pub(crate) const TOGETHER: usize = 64;

/// One request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoggedRequest {
    /// Nanoseconds since the epoch.
    pub(crate) time: u64,
    /// The client's number.
    pub(crate) client: u32,
    /// What it costs.
    pub(crate) cost: Cost,
}
