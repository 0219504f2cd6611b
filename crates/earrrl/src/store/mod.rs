//! What keeps the states of clients: words in a bounded table, larger states in a bounded map.

mod clients;
mod older;
mod states;
pub mod table;

pub use clients::BuildError;
pub(crate) use clients::{Clients, Kept, Next};
pub(crate) use older::Older;
pub(crate) use states::{Shard, States};
