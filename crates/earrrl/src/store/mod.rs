//! What keeps the states of clients: words in a bounded table, larger states in a bounded map.

mod clients;
mod states;
pub mod table;

pub use clients::BuildError;
pub(crate) use clients::Clients;
pub(crate) use states::{Shard, States};
