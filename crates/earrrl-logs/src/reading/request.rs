//! A request of a log, as rules judge it.

use earrrl::Cost;

/// The number of requests whose clients and states are looked up together.
pub(crate) const TOGETHER: usize = 64;

/// A request of a log.
#[derive(Debug, Clone, Copy)]
pub struct LoggedRequest {
    /// The time of the request, in nanoseconds since the epoch.
    pub time: u64,
    /// The number of the client in [`ClientNumbers`](super::ClientNumbers).
    pub client: u32,
    /// The cost of the request.
    pub cost: Cost,
}
