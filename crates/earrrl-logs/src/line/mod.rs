//! The parts of a line that all formats share: times, addresses, printable text, and reasons for skipping a line.

mod address;
mod escape;
mod skips;
pub mod time;
mod years;

pub(crate) use address::{is_address, is_dotted, overlaps};
pub use address::{is_client, is_edge, is_private, last_of_list, network};
pub use escape::Escaped;
pub use escape::shell_word;
pub use skips::{Example, Skip, Skips};
pub(crate) use years::Years;
