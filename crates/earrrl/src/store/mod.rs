//! Stores of clients' states: words in a bounded table, larger states in a bounded map.

mod clients;
pub(crate) mod older;
mod states;
pub mod table;

pub use clients::BuildError;
pub(crate) use clients::{Clients, Kept, Next};
pub(crate) use older::Older;
pub(crate) use states::{Shard, States};

/// Returns the bytes of the table that this many clients of a limit take as soon as it is made: 0 if clients
/// take memory as they come, `None` on overflow.
pub fn table_bytes(limit: &crate::algorithm::Limit, capacity: usize) -> Option<usize> {
    if limit.is_one_time() { table::Table::bytes_of(capacity) } else { Some(0) }
}
