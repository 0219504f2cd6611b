//! RESP2 and RESP3, the protocol of Redis clients.

mod buffers;
pub mod codec;
mod command;
mod decide;
pub mod gather;
mod overlap;
pub mod reply;
pub mod serve;
pub mod session;
