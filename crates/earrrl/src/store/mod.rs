//! What keeps the states of clients: words in a bounded table, larger states in a bounded map.

mod clients;
pub(crate) mod older;
mod states;
pub mod table;

pub use clients::BuildError;
pub(crate) use clients::{Clients, Kept, Next};
pub(crate) use older::Older;
pub(crate) use states::{Shard, States};

/// Bytes of the table that so many clients of a limit take as soon as it is made; 0 where clients take
/// memory as they come, `None` where it is beyond all counting.
pub fn table_bytes(limit: &crate::algorithm::Limit, capacity: usize) -> Option<usize> {
    if limit.is_one_time() { table::Table::bytes_of(capacity) } else { Some(0) }
}
