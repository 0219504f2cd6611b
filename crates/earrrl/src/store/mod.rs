//! Stores of clients' states: words in a bounded table, larger states in a bounded map.

mod by_rank;
mod clients;
pub(crate) mod file;
mod identity;
pub(crate) mod live;
mod states;
pub mod table;
mod walk;

pub(crate) use by_rank::ByRank;
pub use clients::BuildError;
pub(crate) use clients::Clients;
#[cfg(target_os = "linux")]
pub use file::StateSummary;
pub use file::{StateDirectory, StateError};
pub(crate) use identity::{Identity, checksum, random_id};
pub(crate) use live::LiveHold;
pub(crate) use states::{Bounds, Passed, Shard, States, View};

/// Returns the bytes of the table for `capacity` clients of a limit, all of which are allocated
/// when the table is built. Returns 0 if clients take memory only as they come, and `None` on
/// overflow.
pub fn table_bytes(limit: &crate::algorithm::Limit, capacity: usize) -> Option<usize> {
    if limit.fits_words() {
        table::Table::bytes_of(capacity)
    } else {
        Some(0)
    }
}
