//! One request of a log.

use earrrl::Cost;

/// Requests whose clients and states are looked for together.
pub const TOGETHER: usize = 64;

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct LoggedRequest {
    /// Nanoseconds since the epoch.
    pub time: u64,
    /// The client's number.
    pub client: u32,
    /// The cost of the request.
    pub cost: Cost,
}
